"""Tasks and leases that remain after clients have left: real sockets and the real engine, in this process."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from service.app import create_app
from service.http.connections import protocol
from service.settings import Settings

pytestmark = pytest.mark.anyio

BODY = json.dumps(
    {"model": "gaussian", "num_samples": 3, "solver": "bosh3", "rtol": 1e-13, "atol": 1e-13, "timeout_s": 0.2}
)
HEAD = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"


@pytest.fixture
async def address(models: Path) -> AsyncIterator[tuple[str, int]]:
    settings = Settings(models_dir=models, threads=1, timeout_s=60, watch_s=0)
    app = create_app(settings)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        found = bound.getsockname()
        config = uvicorn.Config(app, http=protocol(settings), ws="none", log_level="error")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.01)
        yield found
        server.should_exit = True
        await serving


async def _ask(address: tuple[str, int], path: str) -> bytes:
    """Return the whole response: the connection is closed after it."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"POST {path} HTTP/1.1\r\nConnection: close\r\n{HEAD}".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_two_hundred_timeouts_leave_no_task(address: tuple[str, int]) -> None:
    before = asyncio.all_tasks()
    paths = ["/v1/sample", "/v1/sample/stream"]
    answers = await asyncio.gather(*(_ask(address, paths[k % 2]) for k in range(200)))
    plain, streamed = answers[::2], answers[1::2]
    # Some may be refused at once instead, as the queue would make them late.
    assert {answer.split()[1] for answer in plain} <= {b"504", b"429"}
    assert any(b"/problems/deadline-exceeded" in answer for answer in plain)
    assert any(b"event: error" in answer for answer in streamed)
    async with asyncio.timeout(60):
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.01)
