"""What the server does around its start; how it drains and stops is tried with a real process (test_main.py)."""

import gc
import socket
from typing import Any

import pytest
import uvicorn

from service.server import _Server

pytestmark = pytest.mark.anyio


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


async def test_what_is_there_at_the_start_is_not_collected_again(running: Any) -> None:
    told: list[str] = []
    config = uvicorn.Config(_nothing, lifespan="off", log_level="error")
    config.load()
    server = _Server(config, running.service, 1.0, lambda: told.append("ready"))
    server.lifespan = config.lifespan_class(config)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        try:
            await server.startup([bound])
            assert gc.get_freeze_count() > 10_000
            assert told == ["ready"]
        finally:
            gc.unfreeze()
            await server.shutdown([bound])
