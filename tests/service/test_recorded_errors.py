"""Examples of errors in the OpenAPI description are recorded from the service.

``RECORD=1 pytest tests/service/test_recorded_errors.py`` records them again. The comparison ignores numbers, which
depend on machine and moment.
"""

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from engine.job import EngineFailed
from service import examples
from service.app import create_app
from service.errors import Kind
from service.settings import Settings

from .serving import serving

pytestmark = pytest.mark.anyio

FILE = Path(examples.__file__).with_name("recorded_errors.json")
ID = "13ab3e9823504b96a0b98c09289534c0"
ASK = {"model": "moons", "num_samples": 2, "seed": 0, "solver": "rk4", "steps": 4}
LONG = {"model": "moons", "num_samples": 20_000, "solver": "euler", "steps": 10_000, "trace": "none", "timeout_s": 300}
HEAD = b"POST /v1/sample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

JSON: dict[Kind, dict[str, Any]] = {
    Kind.UNKNOWN_MODEL: {**ASK, "model": "moon"},
    Kind.UNKNOWN_VERSION: {**ASK, "version": 7},
    Kind.INVALID: {**ASK, "steps": 0},
    Kind.BROKEN_MODEL: {**ASK, "model": "broken"},
    Kind.JOB_TOO_LARGE: {**ASK, "num_samples": 100_000, "save_at": [0.25, 0.5, 0.75]},
}
"""Bodies of ``POST /v1/sample`` that are refused."""

OTHERS: dict[Kind, dict[str, Any]] = {
    Kind.MALFORMED: {"content": b'{"model": moons}', "headers": {"Content-Type": "application/json"}},
    Kind.MEDIA: {"content": b"model=moons", "headers": {"Content-Type": "text/plain"}},
    Kind.NOT_ACCEPTABLE: {"json": ASK, "headers": {"Accept": "text/csv"}},
    Kind.NO_ROUTE: {"method": "GET", "url": "/v1/samples"},
    Kind.NO_FRONTIER: {"method": "GET", "url": "/v1/models/digits/frontier"},
    Kind.METHOD: {"method": "GET"},
    Kind.UNAUTHORIZED: {"url": "/v1/models:reload"},
    Kind.TOO_LARGE: {"json": {**ASK, "x0": [[0.0, 0.0]] * 1000}},
}
"""Other requests that are refused, as arguments of httpx."""


@asynccontextmanager
async def _started(
    repository: Path, engine: Any = None, **settings: Any
) -> AsyncIterator[tuple[Any, httpx.AsyncClient]]:
    limits: dict[str, Any] = {"max_job_bytes": 2**23, "max_body_bytes": 2**12, "max_queue": 1} | settings
    app = create_app(Settings(models_dir=repository, watch_s=0, threads=1, **limits), engine)
    transport = httpx.ASGITransport(app)
    headers = {"X-Request-ID": ID}
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as http:
        yield app, http


async def _asked(http: httpx.AsyncClient, **request: Any) -> dict[str, Any]:
    answer = await http.request(**{"method": "POST", "url": "/v1/sample", **request})
    return answer.json()


async def _with_the_engine(repository: Path) -> AsyncIterator[dict[str, Any]]:
    async with _started(repository, admin_key=SecretStr("an-admin-key")) as (app, http):
        yield await _asked(http, method="GET", url="/readyz")  # nothing is loaded yet
        async with app.router.lifespan_context(app):
            for body in JSON.values():
                yield await _asked(http, json=body)
            for request in OTHERS.values():
                yield await _asked(http, **request)
            answer = await _asked(http, json=ASK)
            yield await _asked(http, url="/v1/replay", json=answer | {"checkpoint": f"sha256:{64 * '0'}"})
            long = asyncio.ensure_future(_asked(http, json=LONG))
            while not (long.done() or app.state.service.engine.active_jobs):
                await asyncio.sleep(0.01)
            yield await _asked(http, json=ASK)  # the queue is full
            app.state.service.drain()
            yield await _asked(http, json=ASK)
            long.cancel()


async def _with_a_failing_engine(repository: Path, engine: Any) -> AsyncIterator[dict[str, Any]]:
    async with _started(repository, engine) as (app, http), app.router.lifespan_context(app):
        yield await _asked(http, url="/v1/models:reload")  # there is no admin key
        engine.hold = True
        yield await _asked(http, json={**ASK, "timeout_s": 0.01})
        engine.hold, engine.fail = False, EngineFailed("OutOfMemoryError: CUDA out of memory")
        yield await _asked(http, json=ASK)
        engine.refuse = ZeroDivisionError()
        yield await _asked(http, json=ASK)


def _from_sockets(repository: Path) -> Iterator[dict[str, Any]]:
    """Yield the errors of the server for requests that never reach the application."""
    with serving(repository, max_connections="1", receive_s="0.5", max_header_bytes="1024") as (url, _):
        host, port = url.removeprefix("http://").split(":")
        for sent in (b"POST\r\n\r\n", HEAD, HEAD + b"X: " + b"x" * 1024 + b"\r\n\r\n"):
            with socket.create_connection((host, int(port)), 10) as raw:
                raw.sendall(sent)
                yield _body(raw)
        with socket.create_connection((host, int(port)), 10) as busy:
            busy.sendall(HEAD + b"Content-Length: 10\r\n\r\n")
            yield httpx.get(f"{url}/v1/models").json()


def _body(raw: socket.socket) -> dict[str, Any]:
    received = b""
    while part := raw.recv(1 << 16):
        received += part
    return json.loads(received.partition(b"\r\n\r\n")[2])


async def _recorded(repository: Path, engine: Any) -> dict[str, dict[str, Any]]:
    found = [problem async for problem in _with_the_engine(repository)]
    found += [problem async for problem in _with_a_failing_engine(repository, engine)]
    found += await asyncio.to_thread(lambda: list(_from_sockets(repository)))
    for problem in found:
        problem["detail"] = problem["detail"].replace(f"{repository}", "checkpoints")
    return {problem["type"].removeprefix("/problems/"): problem | {"request_id": ID} for problem in found}


def _without_numbers(problems: Any) -> str:
    return re.sub(r"sha256:[0-9a-f]+|[0-9a-f]{64}|\d+(\.\d+)?", "#", json.dumps(problems, indent=1, sort_keys=True))


async def test_examples_are_what_the_service_answers(repository: Path, engine: Any) -> None:
    answers = await _recorded(repository, engine)
    assert set(answers) == {kind.slug for kind in Kind}
    if os.environ.get("RECORD"):
        FILE.write_text(json.dumps(dict(sorted(answers.items())), indent=1, ensure_ascii=False) + "\n")
    assert _without_numbers(answers) == _without_numbers(json.loads(FILE.read_text()))
