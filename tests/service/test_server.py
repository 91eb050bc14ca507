"""The server's start; draining and stopping are tested with a real process (test_main.py)."""

import gc
import resource
import socket
from typing import Any

import pytest
import uvicorn

from service.server import _Server, within_files
from service.settings import Settings

pytestmark = pytest.mark.anyio


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


async def test_what_is_there_at_the_start_is_not_collected_again(running: Any) -> None:
    logged: list[str] = []
    config = uvicorn.Config(_nothing, lifespan="off", log_level="error")
    config.load()
    server = _Server(config, running.service, lambda: logged.append("ready"))
    server.lifespan = config.lifespan_class(config)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        try:
            await server.startup([bound])
            assert gc.get_freeze_count() > 10_000
            assert logged == ["ready"]
        finally:
            gc.unfreeze()
            await server.shutdown([bound])


@pytest.mark.parametrize(
    ("limits", "most", "raised"),
    [((4096, 4096), 2000, None), ((1024, 4096), 2000, 2080), ((128, 128), 48, None), ((64, 200), 120, 200)],
)
def test_connections_fit_into_the_open_files(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: tuple[int, int],
    most: int,
    raised: int | None,
) -> None:
    logged: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: logged.append(pair))
    assert within_files(Settings()).max_connections == most
    assert logged == ([] if raised is None else [(raised, limits[1])])
    assert ("too low for PATHLINE_MAX_CONNECTIONS=2000" in caplog.text) == (most < 2000)
