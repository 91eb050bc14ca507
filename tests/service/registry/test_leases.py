"""A request returns its lease once, however it ends; a lease that is not returned is reported."""

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.job import EngineFailed, Overloaded, TooLate
from service.http.context import Context
from service.responses import arrays
from tests.service.registry.asking import acquired, leased, loaded, registry_of

FIXED: dict[str, Any] = {"model": "moons", "num_samples": 2, "seed": 0, "solver": "rk4", "steps": 2}
SAMPLE, STREAM = "/v1/sample", "/v1/sample/stream"
ENCODE, INFER = "/v1/models/moons/encode", "/v2/models/moons/infer"
BODIES: dict[str, dict[str, Any]] = {
    SAMPLE: FIXED,
    STREAM: FIXED,
    ENCODE: {"samples": [[0, 0]], "solver": "rk4", "steps": 2},
    INFER: {"parameters": {"num_samples": 2, "solver": "rk4", "steps": 2}},
}
LARGE = {"num_samples": 60_000}


class Exchange:
    """One request at the ASGI interface; the client leaves, or fails to receive, when the test says so."""

    def __init__(self, running: Any, path: str, **more: Any) -> None:
        self.app = running.http._transport.app
        self.path, self.body = path, json.dumps({**BODIES[path], **more}).encode()
        self.leaves, self.sent = asyncio.Event(), list[dict[str, Any]]()
        self.breaks_at: int | None = None
        self._asked = False

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if len(self.sent) == self.breaks_at:
            raise OSError("connection lost")

    async def run(self) -> int:
        """Run the request and return its status, or 0 for none."""
        scope = {
            "type": "http",
            "method": "POST",
            "path": self.path,
            "raw_path": self.path.encode(),
            "root_path": "",
            "query_string": b"",
            "http_version": "1.1",
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
            "headers": [(b"host", b"test"), (b"content-type", b"application/json")],
        }
        await self.app(scope, self._receive, self._send)
        return self.sent[0]["status"] if self.sent else 0


Ending = Callable[[Any, str], Awaitable[None]]


async def answered(running: Any, path: str) -> None:
    assert await Exchange(running, path).run() == 200


async def refused(running: Any, path: str) -> None:
    more = {"parameters": {"num_samples": 2, "solver": "rk4", "steps": 0}} if path == INFER else {"steps": 0}
    assert await Exchange(running, path, **more).run() in (400, 422)


async def refused_by_its_model(running: Any, path: str) -> None:
    t_span = {"t_span": [0.0, 2.0]}
    more = {"parameters": {**BODIES[INFER]["parameters"], "x0": 1}} if path == INFER else t_span
    assert await Exchange(running, path, **more).run() in (400, 422)


async def no_room(running: Any, path: str) -> None:
    running.engine.refuse = Overloaded("full", 1.0)
    assert await Exchange(running, path).run() == 429


async def failed(running: Any, path: str) -> None:
    running.engine.fail = EngineFailed("broken")
    assert await Exchange(running, path).run() == (200 if path == STREAM else 500)


async def late(running: Any, path: str) -> None:
    running.engine.fail = TooLate()
    assert await Exchange(running, path).run() == (200 if path == STREAM else 504)


async def client_left(running: Any, path: str) -> None:
    running.engine.hold = True
    exchange = Exchange(running, path)
    running_ = asyncio.ensure_future(exchange.run())
    while not running.engine.submitted:
        await asyncio.sleep(0.001)
    exchange.leaves.set()
    await running_
    assert len(running.engine.cancelled) == 1


async def cancelled(running: Any, path: str) -> None:
    running.engine.hold = True
    leaving = asyncio.ensure_future(Exchange(running, path).run())
    while not running.engine.submitted:
        await asyncio.sleep(0.001)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert leaving.cancelled()


async def cancelled_while_it_loads(running: Any, path: str) -> None:
    running.service.registry.unload("moons").result()
    go, entered, load = threading.Event(), threading.Event(), running.engine.load

    def slowly(*what: Any) -> Any:
        entered.set()
        assert go.wait(60)
        return load(*what)

    running.engine.load = slowly
    leaving = asyncio.ensure_future(Exchange(running, path).run())
    await asyncio.to_thread(entered.wait)
    leaving.cancel()
    await asyncio.wait([leaving])
    go.set()
    running.service.registry.refresh()  # after it
    await asyncio.sleep(0)  # the loop is notified


async def broken_off(running: Any, path: str) -> None:
    exchange = Exchange(running, path)
    exchange.breaks_at = 2
    with pytest.raises(OSError, match="connection lost"):
        await exchange.run()


ENDINGS: list[Ending] = [
    answered, refused, refused_by_its_model, no_room, failed, late, client_left, cancelled, cancelled_while_it_loads,
    broken_off,
]  # fmt: skip


async def _all_is_returned(running: Any) -> None:
    """Check that only one lease, besides those of requests, keeps the version, and nothing once it is returned."""
    registry = running.service.registry
    with await registry.lease("moons") as model:
        assert model.leases.out == 2  # and the registry's own
        registry.unload("moons").result()
        assert "moons" in {arena.name for arena in running.engine.arenas}
    assert "moons" not in {arena.name for arena in running.engine.arenas}


@pytest.mark.anyio
@pytest.mark.parametrize("path", [SAMPLE, STREAM, ENCODE, INFER])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_request_returns_its_lease_once(running: Any, ending: Ending, path: str) -> None:
    for _ in range(2):
        await ending(running, path)
        running.engine.submitted.clear()
        running.engine.cancelled.clear()
    await _all_is_returned(running)


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["whole", "broken off", "failed", "cancelled"])
async def test_a_large_answer_holds_its_lease_until_it_is_out(
    running: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    exchange = Exchange(running, SAMPLE, **LARGE)
    out: list[int] = []
    [model] = [model for model in loaded(running.service.registry) if model.name == "moons"]
    send, write = exchange._send, arrays.ENCODERS["application/json"].encode

    async def watched(message: Any) -> None:
        out.append(model.leases.out)
        await send(message)
        if how == "cancelled" and len(out) == 2:
            asking.cancel()
            await asyncio.sleep(0)

    def breaking(answer: Any) -> Any:
        yield next(write(answer))
        raise MemoryError

    monkeypatch.setattr(exchange, "_send", watched)
    if how == "broken off":
        exchange.breaks_at = 2
    if how == "failed":
        object.__setattr__(arrays.ENCODERS["application/json"], "encode", breaking)
    asking = asyncio.ensure_future(exchange.run())
    await asyncio.wait([asking])
    object.__setattr__(arrays.ENCODERS["application/json"], "encode", write)
    assert asking.cancelled() == (how == "cancelled")
    assert asking.cancelled() or (asking.exception() is None) == (how == "whole")
    assert len(out) >= 2
    assert set(out) == {2}
    await _all_is_returned(running)


@pytest.mark.anyio
async def test_a_description_returns_its_lease(running: Any) -> None:
    assert (await running.http.get("/v2/models/moons")).status_code == 200
    await _all_is_returned(running)


def test_a_lease_that_comes_when_its_request_is_over_is_returned(repository: Any, engine: Any) -> None:
    registry = registry_of(repository, engine)
    registry.load_all()
    lease, context = acquired(registry, "moons"), Context({"type": "http", "headers": []})
    model = lease.model
    context.end()
    context.keep_lease(lease.release)
    assert model.leases.out == 1


def test_a_lease_is_returned_once_however_often_it_is_released(repository: Any, engine: Any) -> None:
    registry = registry_of(repository, engine)
    registry.load_all()
    with leased(registry, "moons") as model:
        leases = [acquired(registry, "moons") for _ in range(50)]
        assert model.leases.out == 52
        threads = [
            threading.Thread(target=lambda: [lease.release() for lease in leases for _ in range(20)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert model.leases.out == 2
    assert model.leases.out == 1


def test_a_dropped_lease_is_logged_and_no_collector_unloads(
    repository: Any, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry = registry_of(repository, engine)
    registry.load_all()
    acquired(registry, "moons")
    gc.collect()
    [record] = [record for record in caplog.records if "lease" in record.getMessage()]
    assert record.getMessage().startswith("a lease of model moons version 2 was dropped without being returned")
    registry.unload("moons").result()
    assert "moons" in {arena.name for arena in engine.arenas}


@pytest.mark.anyio
async def test_an_error_within_a_block_returns_the_lease(running: Any) -> None:
    with pytest.raises(ValueError, match="odd"), await running.service.lease("moons", None):
        raise ValueError("odd")
    await _all_is_returned(running)
