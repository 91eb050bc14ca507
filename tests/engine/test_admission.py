"""Admission with outdated snapshots: every job counts once, whether or not the engine's thread has seen it."""

from typing import Any

import pytest

from engine.admission import Admission
from engine.cost import Curve, NfeEstimates
from engine.job import Overloaded, Priority
from engine.scheduler import Entry, Scheduler
from engine.snapshot import ArenaSnapshot, EngineSnapshot

from .conftest import job

CURVE = Curve([(1.0, 0.001)])  # proportional: a millisecond per row


class Loop:
    """A stand-in for the engine's thread, which sees jobs when a test says so."""

    def __init__(self, max_queue: int = 100) -> None:
        self.now, self.snapshot = 50.0, EngineSnapshot()
        self.scheduler, self.bulk = Scheduler(64), Scheduler(16)
        self.admission = Admission(max_queue, lambda: self.now, lambda: self.snapshot)
        self.admission.open(7, self.arena())
        self.taken: list[Entry] = []

    def arena(self) -> ArenaSnapshot:
        return ArenaSnapshot(self.scheduler.snapshot(), self.bulk.snapshot(), CURVE, NfeEstimates())

    def take(self, rows: int = 1, steps: int = 10, **about: Any) -> Entry:
        entry = self.admission.take(7, job(rows, solver="euler", steps=steps, **about))
        self.taken.append(entry)
        return entry

    def see(self, *numbers: int) -> None:
        """Take jobs from the queue, and publish."""
        for number in numbers:
            self.scheduler.add(self.taken[number])
        self.scheduler.grant()
        self.publish(self.taken[numbers[-1]].number)

    def publish(self, seen: float) -> None:
        self.snapshot = EngineSnapshot({7: self.arena()}, len(self.scheduler), seen, self.now)


def test_a_job_counts_once_before_and_after_it_is_seen() -> None:
    loop = Loop(max_queue=3)
    for _ in range(3):
        loop.take()
    assert (loop.admission.jobs, loop.admission.queued, loop.admission.lanes) == (3, 3, 0)
    loop.see(0, 1)
    assert (loop.admission.jobs, loop.admission.queued, loop.admission.lanes) == (3, 1, 2)
    with pytest.raises(Overloaded, match="queue is full"):
        loop.take()
    loop.see(2)
    assert (loop.admission.jobs, loop.admission.queued, loop.admission.lanes) == (3, 0, 3)
    with pytest.raises(Overloaded, match="queue is full"):
        loop.take()
    loop.scheduler.ended(loop.taken[0].number, 1)
    loop.publish(loop.taken[2].number)
    loop.take()
    assert loop.admission.jobs == 3


def test_a_job_that_ended_before_it_was_ever_shown_is_not_counted() -> None:
    loop = Loop(max_queue=1)
    entry = loop.take()
    loop.publish(entry.number)  # accepted and cancelled between two snapshots
    assert loop.admission.jobs == 0
    loop.take()


@pytest.mark.parametrize("seen", [False, True])
def test_a_full_queue_has_room_at_a_deadline_at_the_latest(seen: bool) -> None:
    loop = Loop(max_queue=2)
    for left_s in (5.0, 60.0):
        loop.take(16, steps=10_000, deadline=loop.now + left_s, partial=True)  # 160 s alone
    if seen:
        loop.see(0, 1)
    with pytest.raises(Overloaded, match="queue is full") as caught:
        loop.take()
    assert caught.value.retry_after_s == pytest.approx(5.0)


def test_refused_jobs_leave_nothing() -> None:
    loop = Loop(max_queue=1)
    loop.take()
    for _ in range(3):
        with pytest.raises(Overloaded):
            loop.take()
    assert loop.admission.jobs == 1


@pytest.mark.parametrize("seen", [False, True])
def test_a_promise_holds_whether_its_job_has_been_seen_or_not(seen: bool) -> None:
    loop = Loop()
    loop.take(16, steps=50, deadline=loop.now + 2.0)  # 0.8 s alone
    if seen:
        loop.see(0)
    with pytest.raises(Overloaded, match="at capacity") as caught:
        loop.take(16, steps=50, deadline=loop.now + 9.0)  # in time itself, but it would make the first one late
    assert 0.1 <= caught.value.retry_after_s < 1.0
    loop.take(1, steps=1, deadline=loop.now + 9.0)


def test_forecasts_count_jobs_once() -> None:
    loop = Loop()
    loop.take(16, steps=50)
    before = loop.admission.ends_s()
    loop.see(0)
    loop.now += 1.0  # so that the forecast is renewed
    after = loop.admission.ends_s()
    assert list(before) == list(after) == [loop.taken[0].number]
    assert after == pytest.approx(before)


def test_jobs_of_an_arena_that_is_closed_before_it_was_seen_still_count() -> None:
    loop = Loop()
    loop.take(16, steps=50, deadline=loop.now + 2.0)
    loop.admission.open(8, loop.arena())
    loop.admission.close(7)
    with pytest.raises(Overloaded, match="at capacity"):
        loop.admission.take(8, job(16, solver="euler", steps=50, deadline=loop.now + 2.0))
    assert len(loop.admission.ends_s()) == 1


def test_silence_counts_from_the_last_snapshot_or_the_first_job_after_it() -> None:
    loop = Loop()
    loop.now += 10
    assert loop.admission.silent_s == 0
    loop.take()
    loop.now += 3
    assert loop.admission.silent_s == 3
    loop.see(0)
    assert loop.admission.silent_s == 0
    loop.now += 2
    loop.take()
    loop.now += 2
    assert loop.admission.silent_s == 4


def test_bulk_jobs_are_held_to_a_smaller_arena() -> None:
    loop = Loop()
    entry = loop.take(16, priority=Priority.BULK, deadline=loop.now + 9.0)
    assert (entry.relaxed, entry.bears_s) == (False, 0.0)
    assert loop.take(16, steps=10, deadline=loop.now + 9.0).relaxed
