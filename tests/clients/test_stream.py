"""Streams: events in order, errors before and after the start, broken connections, and leaving early."""

from __future__ import annotations

import asyncio
import io
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pathline
import pytest
from pathline import AsyncClient, Client, Completed, Progress, RetryPolicy, Started, State

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService

SSE = {"content-type": "text/event-stream; charset=utf-8"}


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def completed(count: int = 2, **changes: Any) -> dict[str, Any]:
    """The data of a last event: an npz with the first samples of a response."""
    meta = {
        "model": "moons",
        "version": 3,
        "checkpoint": "sha256:00",
        "seed": 5,
        "first_index": 0,
        "deterministic": True,
        "noise": "philox-ndtri-v1",
        "solver": {"name": "rk4", "steps": 20, "text": "rk4-20"},
        "shape": [count, 2],
        "nfe": 80,
        "nfe_per_sample": {"min": 80, "mean": 80.0, "max": 80},
        "network_rows": 160,
        "status": "non_finite",
        "failed": [{"index": 1, "status": "non_finite", "t": 0.25}],
        "saved": {"t": [0.5]},
        "latency": {"queue_s": 0.0, "solve_s": 0.1, "network_s": 0.09, "encode_s": 0.001, "total_s": 0.1},
        **changes,
    }
    gap = [np.nan, np.nan]
    arrays = {"samples": [[0.5, -1.5], gap], "saved": [[[0.25, 0.5]], [gap]], "nfe": [80, 80], "t": [1.0, 0.25]}
    arrays = {name: np.array(rows)[:count] for name, rows in {**arrays, "status": ["success", "non_finite"]}.items()}
    trace = {"sample": [0], "t": [0.0], "h": [0.05], "error": [np.nan], "accepted": [True]}
    arrays |= {f"trace_{name}": np.array(column) for name, column in trace.items()}
    content = io.BytesIO()
    archive: dict[str, Any] = {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays}
    np.savez(content, **archive)
    return {"npz": b64encode(content.getvalue()).decode()}


EVENTS = [
    event("start", {"model": "moons", "version": 3, "seed": 5}),
    b": still here\n\n",
    event("progress", {"nfe": 40, "t": 0.5, "share": 0.5}),
    event("sample", {"t": 0.5, "states": [[0.25, 0.5], None]}),
    event("something-new", {"x": 1}),
    event("completed", completed()),
]


def drawn(service: FakeService, client: Client, body: bytes) -> list[pathline.Event]:
    service.replies = [(200, SSE, body)]
    return list(client.stream("moons", 2, solver="rk4", steps=20, seed=5, save_at=[0.5]))


def check(events: list[pathline.Event]) -> None:
    started, progress, state, end = events
    assert isinstance(started, Started)
    assert started.fields["version"] == 3
    assert isinstance(progress, Progress)
    assert (progress.nfe, progress.t, progress.fields["share"]) == (40, 0.5, 0.5)
    assert isinstance(state, State)
    np.testing.assert_array_equal(state.samples, [[0.25, 0.5], [np.nan, np.nan]])
    assert isinstance(end, Completed)
    result = end.result
    np.testing.assert_array_equal(result.samples, [[0.5, -1.5], [np.nan, np.nan]])
    np.testing.assert_array_equal(result.saved, [[[0.25, 0.5]], [[np.nan, np.nan]]])
    assert result.status_per_sample.tolist() == ["success", "non_finite"]
    np.testing.assert_array_equal(result.t, [1.0, 0.25])
    assert (result.nfe, result.seed, result.trace.h.tolist()) == (80, 5, [0.05])
    assert "nfe      80 (per sample: min 80, mean 80.0, max 80)\n" in str(result)


def test_events_come_in_order(service: FakeService, client: Client) -> None:
    check(drawn(service, client, b"".join(EVENTS)))
    assert service.seen[0]["path"] == "/v1/sample/stream"
    assert service.seen[0]["headers"]["accept"] == "text/event-stream; completed=npz"


def test_any_cut_into_packets_gives_the_same(service: FakeService) -> None:
    body = b"".join(EVENTS).replace(b"\n", b"\r\n")

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=SSE, content=(body[i : i + 1] for i in range(len(body))))

    with Client("http://fake", transport=httpx.MockTransport(answer)) as client:
        check(list(client.stream("moons", 2, seed=5)))


def test_the_async_client_does_the_same(service: FakeService, async_client: AsyncClient) -> None:
    service.replies = [(200, SSE, b"".join(EVENTS))]

    async def run() -> list[pathline.Event]:
        async with async_client as client:
            return [found async for found in client.stream("moons", 2, seed=5)]

    check(asyncio.run(run()))


def test_an_error_in_the_stream_has_its_class(service: FakeService, client: Client) -> None:
    document = json.loads(service.problem(504, "deadline-exceeded", "too slow")[2])
    with pytest.raises(pathline.DeadlineExceeded, match=r"too slow \[504, request r-1\]"):
        drawn(service, client, EVENTS[0] + event("error", document))


def test_an_error_before_the_stream_is_retried(service: FakeService, client: Client) -> None:
    service.replies = [service.problem(429, "overloaded"), (200, SSE, b"".join(EVENTS))]
    check(list(client.stream("moons", 2, seed=5)))
    assert len(service.seen) == 2


def test_a_stream_that_has_begun_is_not_begun_again(service: FakeService, client: Client) -> None:
    with pytest.raises(pathline.ProtocolError, match="ended before its result; repeat the request"):
        drawn(service, client, b"".join(EVENTS[:3]))
    assert len(service.seen) == 1


@pytest.mark.parametrize(
    "broken",
    [
        b"event: progress\ndata: {\n\n",
        event("progress", {"nfe": 3}),
        event("progress", [3]),
        event("completed", {}),
        event("completed", completed(seed=6)),
        event("completed", completed(1)),
        event("sample", {"t": 0.5, "states": [[1.0], [1.0, 2.0]]}),
    ],
)
def test_what_is_not_understood_is_said(service: FakeService, client: Client, broken: bytes) -> None:
    with pytest.raises(pathline.ProtocolError):
        drawn(service, client, EVENTS[0] + broken)


def test_an_older_service_says_so(service: FakeService, client: Client) -> None:
    service.replies = [service.problem(404, "no-such-route")]
    with pytest.raises(pathline.NotFound):
        list(client.stream("moons", 2, seed=5))


def test_leaving_early_closes_the_connection() -> None:
    closed = []

    class Endless(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            while True:
                yield EVENTS[2]

        def close(self) -> None:
            closed.append(True)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=SSE, stream=Endless())

    once = RetryPolicy(max_attempts=1)
    with Client("http://fake", retry=once, transport=httpx.MockTransport(answer)) as client:
        events = client.stream("moons", 2)
        assert isinstance(next(events), Progress)
        assert not closed
        events.close()
        assert closed


def test_what_cannot_be_sent_is_refused_by_the_call(service: FakeService, client: Client) -> None:
    with pytest.raises(ValueError, match="seed=-1"):
        client.stream("moons", seed=-1)
    assert service.seen == []


def test_a_blocking_client_needs_no_loop_and_leaves_nothing_to_one_that_runs(client: Client) -> None:
    async def begin() -> tuple[Iterator[Any], Iterator[Any]]:
        pages, events = client.iter_samples("moons", 12, 4, seed=0), client.stream("moons", 4, seed=0)
        assert next(pages).first_index == 0
        assert isinstance(next(events), Started)
        client.sample("moons", 4)
        assert client.models()
        loop: Any = asyncio.get_running_loop()
        assert not loop._asyncgens
        return pages, events

    pages, events = asyncio.run(begin())  # which closes the asynchronous generators that are the loop's own
    assert [page.first_index for page in pages] == [4, 8]
    assert isinstance(list(events)[-1], Completed)
