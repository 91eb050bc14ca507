"""Progress of `sample` and `iter_samples`: what the callback receives, and that results stay the same."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING

import numpy as np
import pathline
import pytest
from pathline import AsyncClient, Client, Progress, _bar
from pathline._events import Forecast

from tests.clients.conftest import SSE, event

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService


def test_a_callback_hears_of_the_way_and_the_result_is_the_same(service: FakeService, client: Client) -> None:
    reports: list[Progress] = []
    result = client.sample("moons", 9, seed=1, progress=reports.append)
    assert [(each.share, each.nfe, each.t) for each in reports] == [(0.5, 25, 0.5), (1.0, 50, 1.0)]
    plain = client.sample("moons", 9, seed=1)
    np.testing.assert_array_equal(result.samples, plain.samples)
    np.testing.assert_array_equal(result.nfe_per_sample, plain.nfe_per_sample)
    assert result.samples.dtype == plain.samples.dtype == np.float32
    assert [seen["path"] for seen in service.seen] == ["/v1/sample/stream", "/v1/sample"]


def test_the_async_client_tells_it_too(async_client: AsyncClient) -> None:
    reports: list[Progress] = []

    async def run() -> pathline.SampleResult:
        async with async_client as client:
            return await client.sample("moons", 9, seed=1, progress=reports.append)

    assert len(asyncio.run(run())) == 9
    assert [each.share for each in reports] == [0.5, 1.0]


def test_pages_have_one_progress(client: Client) -> None:
    reports: list[Progress] = []
    pages = list(client.iter_samples("moons", 10, 4, seed=1, progress=reports.append))
    assert [len(page) for page in pages] == [4, 4, 2]
    assert [each.share for each in reports] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.9, 1.0])


def test_a_bar_is_drawn_and_gone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(_bar, "_EVERY_S", 0.0)
    client.sample("moons", 9, progress=True)
    list(client.iter_samples("moons", 9, 4, progress=True))
    assert not stream.getvalue().split("\r")[-1].strip()


def test_a_stream_that_is_cut_is_asked_for_again(service: FakeService, client: Client) -> None:
    service.replies = [
        (200, SSE, event("progress", {"nfe": 1, "t": 0.1, "share": 0.1})),
        service.problem(503, "draining"),
    ]
    assert len(client.sample("moons", 9, seed=1, progress=lambda _: None)) == 9
    assert len(service.seen) == 3
    assert len({seen["body"] for seen in service.seen}) == 1


def test_a_deadline_says_how_far_it_came(service: FakeService, client: Client) -> None:
    document = json.loads(service.problem(504, "deadline-exceeded", "too slow")[2])
    half = event("progress", {"nfe": 1, "t": 0.5, "share": 0.5}) + event("error", document)
    service.replies = [(200, SSE, half)]
    with pytest.raises(pathline.DeadlineExceeded) as caught:
        client.sample("moons", 9, progress=lambda _: None)
    assert caught.value.share == 0.5
    service.replies = [service._stream({"model": "moons", "num_samples": 6, "seed": 1}), (200, SSE, half)]
    with pytest.raises(pathline.DeadlineExceeded) as caught:
        list(client.iter_samples("moons", 12, 6, seed=1, progress=lambda _: None))
    assert caught.value.share == 0.75


def test_what_a_callback_raises_comes_out_and_closes_the_connection(service: FakeService, client: Client) -> None:
    def refuse(progress: Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        client.sample("moons", 9, progress=refuse)
    assert len(client.sample("moons", 2)) == 2


def test_the_estimate_never_grows_and_ends_at_nothing() -> None:
    clock = iter([0.0, 1.0, 2.0, 6.0, 20.0, 21.0, 22.0])
    forecast = Forecast(lambda: next(clock))
    reports = [forecast.left(share) for share in (0.0, 0.1, 0.2, 0.25, 0.5, 0.9, 1.0)]
    assert reports[0] is None
    seconds = [left for left in reports if left is not None]
    assert len(seconds) == 6
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == 0.0


def test_waiting_in_the_queue_is_not_work() -> None:
    clock = iter([100.0, 101.0])
    forecast = Forecast(lambda: next(clock))
    assert forecast.left(0.0) is None
    left = forecast.left(0.5)
    assert left is not None
    assert 1.0 <= left <= 1.5
