"""Memory of requests in progress: reserved, refused and returned, on a simulated clock."""

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from service.errors import ProblemError
from service.ledger import Ledger
from tests.service.conftest import Clock


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(1_000, clock)


def test_what_is_set_aside_comes_back_once(ledger: Ledger) -> None:
    first, second = ledger.take(400, 1030.0), ledger.take(600, 130.0)
    assert ledger.reserved == 1_000
    first.release()
    first.release()
    assert ledger.reserved == 600
    second.release()
    assert ledger.reserved == 0


def test_more_than_there_ever_is(ledger: Ledger) -> None:
    with pytest.raises(ProblemError, match=r"needs 1,001 bytes .* over the limit of 1,000") as caught:
        ledger.take(1_001, 1030.0)
    assert caught.value.kind.status == 413
    assert caught.value.members == {"needed_bytes": 1_001, "limit_bytes": 1_000}
    assert "PATHLINE_MAX_JOB_BYTES" in caught.value.detail
    assert ledger.reserved == 0


def refused(ledger: Ledger, wanted: int) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        ledger.take(wanted, 1030.0)
    assert caught.value.kind.status == 429
    return caught.value


def test_more_than_there_is_now(ledger: Ledger) -> None:
    hold = ledger.take(600, 1030.0)
    problem = refused(ledger, 401)
    assert "600 of 1,000 bytes" in problem.detail
    assert ledger.reserved == 600
    hold.release()
    ledger.take(401, 1030.0).release()


def test_retry_after_is_when_enough_was_given_back_as_those_before_did(ledger: Ledger, clock: Clock) -> None:
    for _ in range(60):
        hold = ledger.take(1_000, clock.now + 30)
        clock.now += 8.0
        hold.release()
    ledger.take(300, clock.now + 30)
    clock.now += 2.0
    ledger.take(500, clock.now + 30)
    clock.now += 1.0
    for wanted, seconds in ((201, 5.0), (500, 5.0), (501, 7.0), (1_000, 7.0)):
        problem = refused(ledger, wanted)
        assert problem.members["retry_after_s"] == pytest.approx(seconds, abs=0.1)
        assert int(problem.headers["Retry-After"]) in (int(seconds), int(seconds) + 1)


def test_retry_after_is_never_past_the_deadline_of_what_is_in_the_way(ledger: Ledger, clock: Clock) -> None:
    for _ in range(60):
        hold = ledger.take(1_000, clock.now + 90)
        clock.now += 60.0
        hold.release()
    ledger.take(1_000, clock.now + 3.0)
    assert refused(ledger, 1).members["retry_after_s"] == pytest.approx(3.0)
    clock.now += 10.0
    assert refused(ledger, 1).members["retry_after_s"] == pytest.approx(0.1)


@pytest.mark.parametrize("first", ["request", "job"])
def test_it_is_kept_until_request_and_job_are_over(ledger: Ledger, first: str) -> None:
    hold, future = ledger.take(10, 1030.0), Future[Any]()
    hold.until(future)
    ends = {"request": hold.release, "job": lambda: future.set_result(None)}
    ends.pop(first)()
    assert ledger.reserved == 10
    next(iter(ends.values()))()
    assert ledger.reserved == 0


def test_a_second_job_and_one_that_is_cancelled(ledger: Ledger) -> None:
    hold = ledger.take(10, 1030.0)
    futures = [Future[Any]() for _ in range(2)]
    futures[0].set_result(None)
    for future in futures:
        hold.until(future)
    hold.release()
    assert ledger.reserved == 10
    futures[1].cancel()
    assert ledger.reserved == 0


def test_what_grows_is_never_refused_but_others_are(ledger: Ledger) -> None:
    hold = ledger.take(900, 1030.0)
    hold.grow(500)
    assert ledger.reserved == hold.bytes == 1_400
    refused(ledger, 1)
    hold.release()
    assert ledger.reserved == 0


def test_many_threads(ledger: Ledger) -> None:
    most = []

    def work() -> None:
        for _ in range(300):
            try:
                hold = ledger.take(300, 1030.0)
            except ProblemError:
                continue
            most.append(ledger.reserved)
            hold.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.reserved == 0
    assert 300 <= max(most) <= 900
