"""Admission: what is ahead of a job, and what it and the refused are told."""

import itertools
from typing import Any

import pytest

from engine.admission import Gate, Queue
from engine.job import Overloaded, Priority, TooSlow
from engine.scheduler import Entry, TickCostModel

from .conftest import Board, job

TICKS = TickCostModel()
TICKS.measured(1, 0.001)  # proportional: a millisecond per row


class Loop:
    """A stand-in for the engine, in which jobs run when a test says so."""

    def __init__(self, max_queue: int = 100) -> None:
        self.now, self.queue = 50.0, Queue(64, TICKS)
        self.board = Board({7: self.queue})
        self.gate = Gate(max_queue, lambda: self.now, self.board)

    def take(self, rows: int = 1, steps: int = 10, **about: Any) -> Entry:
        bulk = about.get("priority") is Priority.BULK
        entry = self.gate.take(self.queue, job(rows, solver="euler", steps=steps, **about), 0.0, Entry)
        self.queue.schedulers[bulk].add(entry)
        return entry

    def run(self) -> None:
        """Let lanes of the waiting jobs start."""
        self.queue.schedulers[False].grant()


@pytest.mark.parametrize("running", [False, True])
def test_a_full_queue_has_room_at_a_deadline_at_the_latest(running: bool) -> None:
    loop = Loop(max_queue=2)
    for left_s in (5.0, 60.0):
        loop.take(16, steps=10_000, deadline=loop.now + left_s, partial=True)  # 160 s alone
    if running:
        loop.run()
    with pytest.raises(Overloaded, match="queue is full") as caught:
        loop.take()
    assert caught.value.retry_after_s == pytest.approx(5.0)
    loop.queue.schedulers[False].remove(loop.queue.schedulers[False].entries[0])
    loop.take()


@pytest.mark.parametrize("running", [False, True])
def test_work_ahead_and_its_own_must_fit_into_half_of_the_time(running: bool) -> None:
    loop = Loop()
    loop.take(16, steps=50, deadline=loop.now + 2.0)  # 0.8 s alone
    if running:
        loop.run()
    with pytest.raises(Overloaded, match="at capacity") as caught:
        loop.take(16, steps=40, deadline=loop.now + 2.5)  # 40 ticks of 32 rows, of 1.25 s
    assert caught.value.retry_after_s == pytest.approx(0.1)
    loop.take(16, steps=40, deadline=loop.now + 2.6)


def test_what_waits_with_a_later_deadline_is_not_ahead() -> None:
    loop = Loop()
    for _ in range(6):
        loop.take(16, steps=50, deadline=loop.now + 20.0)  # 4.8 s
    loop.run()  # four of them fill the arena
    with pytest.raises(Overloaded):
        loop.take(16, steps=50, deadline=loop.now + 6.3)
    loop.take(16, steps=50, deadline=loop.now + 6.5)  # 50 ticks of 64 rows
    with pytest.raises(Overloaded):
        loop.take(16, steps=50, deadline=loop.now + 6.5)  # now there is one ahead


def test_what_runs_delays_a_short_job_only_while_that_runs() -> None:
    loop = Loop()
    loop.take(16, steps=1000, deadline=loop.now + 60.0)  # 16 s
    loop.run()
    loop.take(1, steps=10, deadline=loop.now + 0.4)  # ten ticks of both take 0.17 s
    with pytest.raises(Overloaded):
        loop.take(1, steps=10, deadline=loop.now + 0.3)


def test_a_job_that_needs_most_of_its_time_is_taken_if_nothing_is_ahead() -> None:
    loop, settings = Loop(), {"rows": 16, "steps": 100, "deadline": 52.0}  # 1.6 s of 2 s
    loop.take(**settings)
    with pytest.raises(Overloaded):
        loop.take(**settings)
    with pytest.raises(TooSlow, match=r"about 3\.2 s"):
        loop.take(16, steps=200, deadline=loop.now + 2.0)


def test_a_partial_job_needs_half_of_its_time_for_what_is_ahead_and_none_for_its_own() -> None:
    loop = Loop()
    loop.take(16, steps=150, deadline=loop.now + 5.0)  # 2.4 s
    loop.take(64, steps=1, deadline=loop.now + 5.0)  # fills the arena with it, for another 64 ms
    with pytest.raises(Overloaded) as caught:
        loop.take(64, steps=10_000, deadline=loop.now + 4.0, partial=True)  # 640 s alone
    assert caught.value.retry_after_s == pytest.approx(2.4 + 0.064 - 2.0)
    loop.take(64, steps=10_000, deadline=loop.now + 5.0, partial=True)


def test_the_refused_are_told_different_times() -> None:
    loop = Loop()
    loop.take(16, steps=60, deadline=loop.now + 2.0)
    waits: list[float] = []
    for _ in range(200):
        with pytest.raises(Overloaded) as caught:
            loop.take(16, steps=60, deadline=loop.now + 2.0)
        waits.append(caught.value.retry_after_s)
    apart = [later - sooner for sooner, later in itertools.pairwise(waits)]
    assert apart[:60] == pytest.approx([0.96] * 60)  # as long as one of them takes
    assert max(waits) < 62


def test_jobs_of_other_arenas_share_the_time() -> None:
    loop = Loop()
    loop.take(16, steps=50, deadline=loop.now + 2.0)
    loop.board.queues[8] = other = Queue(64, TICKS)
    with pytest.raises(Overloaded, match="at capacity"):
        loop.gate.take(other, job(16, solver="euler", steps=50, deadline=loop.now + 2.0), 0.0, Entry)


def test_bulk_jobs_get_an_eighth_of_the_time_beside_others_and_take_as_much() -> None:
    loop = Loop()
    loop.take(16, steps=200, deadline=loop.now + 9.0)  # 3.2 s
    with pytest.raises(Overloaded):
        loop.take(16, steps=50, priority=Priority.BULK, deadline=loop.now + 7.9)
    loop.take(16, steps=50, priority=Priority.BULK, deadline=loop.now + 8.1)  # 0.8 s + 3.2 s
    with pytest.raises(Overloaded):
        loop.take(1, steps=70, deadline=loop.now + 2.5)  # 70 ticks of 17 ms, and a seventh of that
    loop.take(1, steps=70, deadline=loop.now + 3.0)
