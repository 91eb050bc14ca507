"""The service behind the tunnel, without Ray: responses equal those of the service itself."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.tunnel import Call, Front, Local, answered
from service.app import create_app
from service.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def both(repository: Path) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Clients of the service, and of the same service behind the tunnel."""
    settings = Settings(threads=1, max_body_bytes=1000, max_header_bytes=4000)
    app = create_app(settings)
    front = Front(lambda call: Local(answered(app, call)), settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as direct,
        httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://test") as through,
    ):
        yield direct, through


async def test_responses_equal_those_of_the_service(both: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    direct, through = both
    body = {"model": "net", "solver": "rk4-4", "seed": 5, "num_samples": 20}
    v2 = {"id": "1", "inputs": [], "parameters": {"num_samples": 2, "seed": 1, "solver": "euler-2"}}
    for method, path, content, accept in (
        ("POST", "/v1/sample", body, "application/x-npy"),
        ("POST", "/v1/sample", {"model": "net", "num_sample": 1}, "*/*"),
        ("POST", "/v1/sample", body | {"trace": "x" * 2000}, "*/*"),
        ("POST", "/v2/models/net/infer", v2, "*/*"),
        ("GET", "/v1/solvers", None, "*/*"),
        ("GET", "/nowhere", None, "*/*"),
        ("GET", "/v1/models/net?x=%20", None, "*/*"),
    ):
        headers = {"Accept": accept, "X-Request-ID": "mine"}
        one, other = [await each.request(method, path, json=content, headers=headers) for each in both]
        assert (other.status_code, other.content) == (one.status_code, one.content)
        assert other.headers.get("content-type") == one.headers.get("content-type")
    assert direct is not through


async def test_a_short_response_is_sent_as_one_item(repository: Path) -> None:
    app = create_app(Settings(threads=1))
    async with app.router.lifespan_context(app):
        scope = {"type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/v1/solvers"}
        scope |= {"raw_path": b"/v1/solvers", "query_string": b"", "headers": [], "client": None, "server": None}
        items = [item async for item in answered(app, Call(scope, b"", 1.0))]
    assert [[message["type"] for message in item] for item in items] == [["http.response.start", "http.response.body"]]


async def test_streams_pass_through(both: tuple[httpx.AsyncClient, httpx.AsyncClient]) -> None:
    _, through = both
    answer = await through.post("/v1/sample/stream", json={"model": "net", "solver": "rk4-4", "num_samples": 2})
    events = [line for line in answer.text.splitlines() if line.startswith("event:")]
    assert (events[0], events[-1]) == ("event: start", "event: completed")


async def test_too_large_headers_are_refused_before_a_replica_is_called(both: tuple[Any, httpx.AsyncClient]) -> None:
    answer = await both[1].get("/v1/models", headers={"X-Long": "x" * 5000})
    assert answer.status_code == 431
    assert answer.headers["content-type"] == "application/problem+json"


async def test_their_refusal_has_the_form_and_the_links_of_the_path() -> None:
    def dispatch(call: Call) -> Local:
        pytest.fail("nothing is dispatched")

    front = Front(dispatch, Settings(root_path="/ml", max_header_bytes=1024))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://test") as http:
        large = {"X-Long": "x" * 2000}
        plain, inference = (
            await http.get("/ml/v1/models", headers=large),
            await http.get("/ml/v2/models", headers=large),
        )
    assert (plain.status_code, plain.json()["type"]) == (431, "/ml/problems/head-too-large")
    assert set(inference.json()) == {"error"}


def requested() -> Callable[[], Awaitable[Any]]:
    """Return the `receive` of a request without a body, after which the client stays connected."""
    messages = iter([{"type": "http.request", "body": b""}])

    async def receive() -> Any:
        for message in messages:
            return message
        return await asyncio.Event().wait()

    return receive


async def test_an_answer_is_closed_where_the_client_disconnects_during_a_message() -> None:
    sending, ended = asyncio.Event(), []

    async def batches() -> AsyncIterator[Any]:
        try:
            yield [{"type": "http.response.start", "status": 200, "headers": []}]
        finally:
            ended.append(True)

    async def send(message: Any) -> None:
        sending.set()
        await asyncio.Event().wait()

    held = batches()  # so that it is not closed because nothing refers to it
    scope = {"type": "http", "path": "/", "headers": []}
    running = asyncio.ensure_future(Front(lambda call: Local(held), Settings())(scope, requested(), send))
    await asyncio.wait_for(sending.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert ended


async def test_a_client_that_disconnects_cancels_the_call() -> None:
    seen, left, cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        seen.set()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    class Cancellable(Local):
        def cancel(self) -> None:
            cancelled.set()

    async def send(message: Any) -> None:
        pytest.fail("nothing is sent")

    scope = {"type": "http", "path": "/", "headers": []}
    front = Front(lambda call: Cancellable(answered(app, call)), Settings())
    running = asyncio.ensure_future(front(scope, requested(), send))
    await asyncio.wait_for(seen.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    assert cancelled.is_set()
    await asyncio.wait_for(left.wait(), 60)


async def test_a_call_that_fails_is_cancelled_and_one_that_ends_is_not() -> None:
    cancelled: list[str] = []

    class Named(Local):
        def cancel(self) -> None:
            cancelled.append("one")

    async def fails() -> AsyncIterator[Any]:
        yield [{"type": "http.response.start", "status": 200, "headers": []}]
        raise RuntimeError("lost")

    async def ends() -> AsyncIterator[Any]:
        yield [{"type": "http.response.start", "status": 200, "headers": []}, {"type": "http.response.body"}]

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "path": "/", "headers": []}
    await Front(lambda call: Named(ends()), Settings())(scope, requested(), send)
    assert not cancelled
    with pytest.raises(RuntimeError, match="lost"):
        await Front(lambda call: Named(fails()), Settings())(scope, requested(), send)
    assert cancelled == ["one"]


def test_without_ray_the_extra_is_named() -> None:
    code = "import sys; sys.modules['ray'] = None; import fleet, fleet.bulk.command; import fleet.ray_serve"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "ray is not installed; pip install -e '.[ray]'" in done.stderr.splitlines()[-1]
