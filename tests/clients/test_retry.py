from __future__ import annotations

import asyncio
import json
import socket
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import pathline
import pytest
from pathline import AsyncClient, Client, RetryPolicy

if TYPE_CHECKING:
    from tests.clients.conftest import FakeService


def overloaded(seconds: float | None = None) -> pathline.Unavailable:
    return pathline.Unavailable(429, "busy", retry_after_s=seconds)


def test_waits_double_up_to_the_cap_and_are_jittered() -> None:
    policy = RetryPolicy(base_s=1.0, cap_s=5.0)
    assert [policy.wait(attempt, None, 1.0) for attempt in (1, 2, 3, 4, 99)] == [1, 2, 4, 5, 5]
    assert policy.wait(2, None, 0.5) == 1.0
    waits = [policy.wait_after(overloaded(), 1, 0.0) or 0.0 for _ in range(50)]
    assert all(0.5 <= wait <= 1.0 for wait in waits)
    assert len(set(waits)) > 1


def test_retry_after_is_a_lower_bound() -> None:
    policy = RetryPolicy(base_s=0.1)
    assert 3.0 <= policy.wait(1, 3.0, 1.0) <= 3.3
    assert policy.wait(1, 0.0, 1.0) == 0.1


def test_attempts_are_bounded_in_number_and_in_time() -> None:
    policy = RetryPolicy(max_attempts=3, base_s=0.1)
    assert 0.05 <= (policy.wait_after(overloaded(), 1, 1.0) or 0) <= 0.1
    assert 0.1 <= (policy.wait_after(overloaded(), 2, 2.0) or 0) <= 0.2
    last = overloaded()
    assert policy.wait_after(last, 3, 3.0) is None
    assert last.attempts == 3

    late = RetryPolicy(max_total_s=10.0)
    assert late.wait_after(overloaded(9.0), 1, 0.0) is not None
    assert late.wait_after(overloaded(60.0), 1, 0.0) is None


def test_a_client_counts_the_time_from_its_first_attempt(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = [100.0], [0.0] * 0

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("pathline._calls.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("pathline._io.time", SimpleNamespace(sleep=sleep))
    service.replies = [service.problem(503, "draining", retry_after_s=4) for _ in range(9)]
    policy = RetryPolicy(max_attempts=9, max_total_s=10.0)
    with (
        Client("http://fake", retry=policy, transport=httpx.MockTransport(service.handle)) as client,
        pytest.raises(pathline.Unavailable, match="gave up after 3 attempts in 8") as caught,
    ):
        client.models()
    assert all(4 <= wait < 4.5 for wait in waits)
    assert caught.value.elapsed_s == pytest.approx(sum(waits))
    assert len(waits) == 2


def test_nobody_to_connect_to_is_waited_for_a_second_at_most() -> None:
    policy, last = RetryPolicy(), pathline.TransportError("gone", connected=False)
    assert policy.wait_after(pathline.TransportError("gone", connected=False), 1, 0.1) is not None
    assert policy.wait_after(last, 2, 0.9) is None
    assert str(last) == "gone (gave up after 2 attempts in 0.9 s)"


def test_an_error_of_the_connection_shows_no_other_below_it(unused_port: int) -> None:
    with Client(f"http://127.0.0.1:{unused_port}", retry=RetryPolicy(base_s=0.001)) as client:
        with pytest.raises(pathline.TransportError, match="gave up after 5 attempts") as caught:
            client.models()
        shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1
    assert shown.count("File ") < 8


@pytest.fixture
def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("field", ["max_attempts", "max_total_s", "base_s", "cap_s", "connect_s"])
def test_a_policy_out_of_range_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=-1 is not allowed"):
        RetryPolicy(**{field: -1})


def test_a_retry_is_the_same_request(service: FakeService, client: Client) -> None:
    cut = httpx.ReadError("reset")
    service.replies = [service.problem(429, "overloaded"), service.problem(503, "draining"), cut]
    result = client.sample("moons", 4)
    assert len(service.seen) == 4
    assert len({seen["body"] for seen in service.seen}) == 1
    assert len({seen["headers"]["x-request-id"] for seen in service.seen}) == 1
    assert json.loads(service.seen[0]["body"])["seed"] == result.seed


def test_the_async_client_retries_alike(service: FakeService, async_client: AsyncClient) -> None:
    service.replies = [service.problem(429, "overloaded", retry_after_s=0.001), service.problem(502, "")]

    async def run() -> int:
        async with async_client:
            return (await async_client.sample("moons", 4, seed=5)).seed

    assert asyncio.run(run()) == 5
    assert len(service.seen) == 3


def test_giving_up_says_how_often_it_was_tried(service: FakeService, client: Client) -> None:
    service.replies = [service.problem(429, "overloaded") for _ in range(9)]
    with pytest.raises(pathline.Unavailable, match="gave up after 4 attempts") as caught:
        client.sample("moons")
    assert caught.value.attempts == len(service.seen) == 4


def test_a_wait_beyond_the_budget_is_not_begun(service: FakeService, client: Client) -> None:
    service.replies = [service.problem(429, "overloaded", retry_after_s=3600)]
    with pytest.raises(pathline.Unavailable) as caught:
        client.sample("moons")
    assert (caught.value.retry_after_s, len(service.seen)) == (3600, 1)


@pytest.mark.parametrize(
    ("status", "slug"),
    [(422, "invalid-request"), (404, "unknown-model"), (504, "deadline-exceeded"), (500, "internal-error"),
     (503, "model-unavailable")],
)  # fmt: skip
def test_what_waiting_does_not_help_is_not_retried(
    service: FakeService, client: Client, status: int, slug: str
) -> None:
    service.replies = [service.problem(status, slug)] * 2
    with pytest.raises(pathline.APIError) as caught:
        client.sample("moons")
    assert caught.value.slug == slug
    assert len(service.seen) == 1
