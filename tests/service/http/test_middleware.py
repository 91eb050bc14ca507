"""Request IDs, timing headers, and responses that break half-way."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest

from engine.job import TooLate
from service.http.middleware import BurstLimiter, Door
from service.metrics import Metrics
from service.settings import Settings

pytestmark = pytest.mark.anyio


def _service(draining: bool = False) -> Any:
    return SimpleNamespace(draining=draining, metrics=Metrics(), burst_limiter=BurstLimiter())


@pytest.mark.parametrize("wanted", ["abc-123", "0af7651916cd43dd8448eb211c80319c", "a" * 128, "x/y:z=+1"])
async def test_sane_id_is_echoed(shared: Any, wanted: str) -> None:
    answer = await shared.http.get("/livez", headers={"X-Request-ID": wanted})
    assert answer.headers["x-request-id"] == wanted


@pytest.mark.parametrize("wanted", ["", "a b", "a" * 129, "<script>", "a\tb", "é".encode()])
async def test_other_ids_are_replaced(shared: Any, wanted: str | bytes) -> None:
    answer = await shared.http.get("/livez", headers={"X-Request-ID": wanted})
    assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


async def test_server_timing(shared: Any) -> None:
    plain = (await shared.http.get("/livez")).headers["server-timing"]
    assert re.fullmatch(r"total;dur=\d+\.\d{3}", plain)
    solved = (await shared.post()).headers["server-timing"]
    assert re.fullmatch(
        r"queue;dur=1\.000, solve;dur=10\.000, network;dur=8\.000, encode;dur=\d+\.\d{3}, total;dur=\d+\.\d{3}", solved
    )


async def test_answer_that_breaks_half_way_is_cut() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("half-way")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with pytest.raises(ValueError, match="half-way"):
        await Door(app, _service(), Settings())(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start"]


async def test_access_log(running: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pathline.access")
    running.http._transport.app.door._access_log = True
    await running.http.get("/v1/models/moons", headers={"X-Request-ID": "r7"})
    assert re.search(r"GET /v1/models/\{name\} 200 \d+\.\d ms request=r7", caplog.text)


@pytest.mark.parametrize("draining", [True, False])
async def test_who_is_cancelled_by_a_server_that_ends_is_told_so(draining: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise asyncio.CancelledError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    door = Door(app, _service(draining), Settings())
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    if not draining:  # cancellation by other code, such as a time limit around the whole
        with pytest.raises(asyncio.CancelledError):
            await door(scope, receive, send)
        assert not sent
        return
    await door(scope, receive, send)
    assert [message["status"] for message in sent if "status" in message] == [503]
    assert b"/problems/draining" in sent[1]["body"]


async def test_errors_are_counted_by_type_at_every_door(running: Any) -> None:
    def counted(slug: str, status: int) -> float | None:
        labels = {"type": slug, "status": str(status)}
        return running.service.metrics.registry.get_sample_value("pathline_errors_total", labels)

    assert counted("invalid-request", 422) == 0
    for path in ("/v1/sample", "/v1/sample/stream", "/v1/models/moons/encode"):
        await running.http.post(path, json={"model": "moons", "steps": 0})
    await running.http.post("/v2/models/moons/infer", json={"parameters": {"steps": 0}})
    assert counted("invalid-request", 422) == 4
    await running.http.get("/nothing")
    assert counted("no-such-route", 404) == 1
    running.engine.fail = TooLate()
    await running.http.post("/v1/sample/stream", json={"model": "moons"})
    assert counted("deadline-exceeded", 504) == 1
