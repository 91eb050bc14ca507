"""Admission with outdated snapshots: every job counts once, whether or not the engine's thread has seen it."""

import itertools
from typing import Any

import pytest

from engine.admission import Admission
from engine.cost import NfeEstimates, TickCostModel
from engine.job import Overloaded, Priority, TooSlow
from engine.scheduler import Entry, Scheduler
from engine.snapshot import ArenaSnapshot, EngineSnapshot

from .conftest import job

TICKS = TickCostModel()
TICKS.measured(1, 0.001)  # proportional: a millisecond per row


class Loop:
    """A stand-in for the engine's thread, which sees jobs when a test says so."""

    def __init__(self, max_queue: int = 100) -> None:
        self.now, self.snapshot = 50.0, EngineSnapshot()
        self.scheduler, self.bulk = Scheduler(64), Scheduler(16)
        self.admission = Admission(max_queue, lambda: self.now, lambda: self.snapshot)
        self.admission.open(7, self.arena())
        self.taken: list[Entry] = []

    def arena(self) -> ArenaSnapshot:
        return ArenaSnapshot(self.scheduler.snapshot(), self.bulk.snapshot(), TICKS, NfeEstimates())

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
def test_work_ahead_and_its_own_must_fit_into_half_of_the_time(seen: bool) -> None:
    loop = Loop()
    loop.take(16, steps=50, deadline=loop.now + 2.0)  # 0.8 s alone
    if seen:
        loop.see(0)
    with pytest.raises(Overloaded, match="at capacity") as caught:
        loop.take(16, steps=40, deadline=loop.now + 2.5)  # 40 ticks of 32 rows, of 1.25 s
    assert caught.value.retry_after_s == pytest.approx(0.1)
    loop.take(16, steps=40, deadline=loop.now + 2.6)


def test_what_waits_with_a_later_deadline_is_not_ahead() -> None:
    loop = Loop()
    for _ in range(6):
        loop.take(16, steps=50, deadline=loop.now + 20.0)  # 4.8 s
    loop.see(*range(4))  # they fill the arena
    with pytest.raises(Overloaded):
        loop.take(16, steps=50, deadline=loop.now + 6.3)
    loop.take(16, steps=50, deadline=loop.now + 6.5)  # 50 ticks of 64 rows
    with pytest.raises(Overloaded):
        loop.take(16, steps=50, deadline=loop.now + 6.5)  # now there is one ahead


def test_what_runs_delays_a_short_job_only_while_that_runs() -> None:
    loop = Loop()
    loop.take(16, steps=1000, deadline=loop.now + 60.0)  # 16 s
    loop.see(0)
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


def test_a_job_is_refused_before_its_steps_are_known_if_nothing_could_be_in_time() -> None:
    loop = Loop()
    loop.scheduler.enough = 16
    loop.publish(-1)
    for _ in range(6):
        loop.take(16, steps=50, deadline=loop.now + 10.0)  # 0.8 s each; 4.8 s in all, one after another
    loop.now += 4.0  # with the engine held up
    loop.admission.check_early(7, 1, 9.7)
    for _ in range(2):
        with pytest.raises(Overloaded, match="at capacity"):
            loop.admission.check_early(7, 1, 7.0)
    loop.admission.check_early(7, 20, 1.0)  # it would share time with bulk jobs
    assert loop.admission.jobs == 6


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


def test_jobs_of_an_arena_that_is_closed_before_it_was_seen_still_count() -> None:
    loop = Loop()
    loop.take(16, steps=50, deadline=loop.now + 2.0)
    loop.admission.open(8, loop.arena())
    loop.admission.close(7)
    with pytest.raises(Overloaded, match="at capacity"):
        loop.admission.take(8, job(16, solver="euler", steps=50, deadline=loop.now + 2.0))


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


def test_bulk_jobs_get_an_eighth_of_the_time_beside_others_and_take_as_much() -> None:
    loop = Loop()
    loop.take(16, steps=200, deadline=loop.now + 9.0)  # 3.2 s
    with pytest.raises(Overloaded):
        loop.take(16, steps=50, priority=Priority.BULK, deadline=loop.now + 7.9)
    loop.take(16, steps=50, priority=Priority.BULK, deadline=loop.now + 8.1)  # 0.8 s + 3.2 s
    with pytest.raises(Overloaded):
        loop.take(1, steps=70, deadline=loop.now + 2.5)  # 70 ticks of 17 ms, and a seventh of that
    loop.take(1, steps=70, deadline=loop.now + 3.0)
