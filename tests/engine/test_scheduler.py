"""The scheduler alone: no tensors, no threads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduler import BULK_SHARE, Entry, Scheduler, Turns, part_of


def backlog(scheduler: Scheduler) -> float:
    """Return the expected network rows of all jobs."""
    return sum(place.work(scheduler.tick) for place in scheduler.snapshot().places)


def finish(scheduler: Scheduler, granted: list[tuple[int, int, int]]) -> set[int]:
    return {number for number, _, count in granted if scheduler.ended(number, count)}


def test_small_jobs_enter_in_order_and_together() -> None:
    scheduler = Scheduler(64)
    for number, samples in enumerate([3, 1, 16]):
        scheduler.add(Entry(number, samples, cost=10))
    assert scheduler.snapshot().queued == 3
    assert scheduler.grant() == [(0, 0, 3), (1, 0, 1), (2, 0, 16)]
    assert scheduler.snapshot().queued == 0
    assert scheduler.active_rows == 20


def test_a_large_job_is_sliced_and_leaves_room_for_the_next_small_one() -> None:
    scheduler = Scheduler(64)
    scheduler.add(Entry(0, 100_000, cost=10))
    assert scheduler.grant() == [(0, 0, 48)]
    assert scheduler.grant() == []
    scheduler.add(Entry(1, 1, cost=10))
    assert scheduler.grant() == [(1, 0, 1)]
    assert scheduler.ended(1, 1)
    assert not scheduler.ended(0, 8)
    assert scheduler.grant() == [(0, 48, 8)]


def test_large_jobs_share_equally() -> None:
    scheduler = Scheduler(64)
    for number in range(3):
        scheduler.add(Entry(number, 1000, cost=10))
    granted = scheduler.grant()
    assert [count for _, _, count in granted] == [16, 16, 16]


def test_small_jobs_leave_a_quarter_to_waiting_large_ones() -> None:
    scheduler = Scheduler(64)
    scheduler.add(Entry(0, 1000, cost=10))
    for number in range(1, 10):
        scheduler.add(Entry(number, 16, cost=10))
    granted = scheduler.grant()
    assert sum(count for number, _, count in granted if number > 0) == 48
    assert sum(count for number, _, count in granted if number == 0) == 16


def test_a_guided_sample_takes_two_rows_of_the_arena() -> None:
    scheduler = Scheduler(64)
    scheduler.add(Entry(0, 100_000, cost=10, width=2))
    assert scheduler.grant() == [(0, 0, 24)]
    assert scheduler.active_rows == 48
    scheduler.add(Entry(1, 8, cost=10, width=2))  # a quarter: the largest that is small
    scheduler.add(Entry(2, 1, cost=10))
    assert scheduler.grant() == [(1, 0, 8)]
    assert not scheduler.ended(0, 1)
    assert scheduler.grant() == [(2, 0, 1)]
    assert scheduler.active_rows == 63  # the last row has room for only half a guided sample
    scheduler.add(Entry(3, 1, cost=10, width=2))
    assert scheduler.grant() == []
    scheduler.remove(0)
    assert scheduler.active_rows == 17
    assert scheduler.snapshot().is_small(16)
    assert not scheduler.snapshot().is_small(17)


def test_guided_and_plain_large_jobs_get_the_same_rows() -> None:
    scheduler = Scheduler(64)
    for number, width in enumerate([1, 2]):
        scheduler.add(Entry(number, 1000, cost=10, width=width))
    assert [count for _, _, count in scheduler.grant()] == [24, 12]


def test_a_guided_sample_is_served_even_where_only_one_row_fits() -> None:
    scheduler = Scheduler(1)
    scheduler.add(Entry(0, 2, cost=10, width=2))
    for first in range(2):
        assert scheduler.grant() == [(0, first, 1)]
        assert scheduler.grant() == []
        assert scheduler.ended(0, 1) is (first == 1)


def test_a_small_whole_job_is_never_sliced_and_waits_for_room() -> None:
    scheduler = Scheduler(64)
    for number in range(4):
        scheduler.add(Entry(number, 14, cost=10))
    assert len(scheduler.grant()) == 4
    scheduler.add(Entry(9, 16, cost=10, whole=True))
    assert scheduler.grant() == []
    assert scheduler.ended(0, 14)
    assert scheduler.grant() == [(9, 0, 16)]


def test_a_removed_job_frees_its_lanes_and_ends_silently() -> None:
    scheduler = Scheduler(64)
    scheduler.add(Entry(0, 1000, cost=10))
    scheduler.grant()
    scheduler.remove(0)
    assert not scheduler.ended(0, 48)
    assert len(scheduler) == 0
    assert scheduler.snapshot().places == ()
    scheduler.add(Entry(1, 1000, cost=10))
    assert scheduler.grant() == [(1, 0, 48)]


def test_dropping_what_waits_lets_the_job_end_with_its_lanes() -> None:
    scheduler = Scheduler(64)
    scheduler.add(Entry(0, 1000, cost=10))
    scheduler.grant()
    assert scheduler.first_waiting(0) == 48
    scheduler.drop_waiting(0)
    assert scheduler.grant() == []
    assert scheduler.ended(0, 48)


@settings(deadline=None)
@given(
    budget=st.integers(1, 200),
    sizes=st.lists(st.tuples(st.integers(1, 500), st.booleans(), st.integers(1, 2)), min_size=1, max_size=30),
)
def test_every_job_ends_and_every_sample_is_admitted_once(budget: int, sizes: list[tuple[int, bool, int]]) -> None:
    scheduler = Scheduler(budget)
    small = [samples * width <= part_of(budget) for samples, _, width in sizes]
    for number, (samples, whole, width) in enumerate(sizes):
        scheduler.add(Entry(number, samples, cost=1, whole=whole and small[number], width=width))
    admitted = dict.fromkeys(range(len(sizes)), 0)
    ended: set[int] = set()
    for _ in range(20_000):
        granted = scheduler.grant()
        for number, first, count in granted:
            assert first == admitted[number]
            assert not (sizes[number][1] and small[number]) or count == sizes[number][0]
            admitted[number] += count
        assert granted, "the scheduler holds jobs but admits nothing into an empty arena"
        assert scheduler.active_rows == sum(count * sizes[number][2] for number, _, count in granted)
        if scheduler.active_rows > budget:  # a pair of rows in an arena of one
            assert len(granted) == 1
            assert budget == 1
        ended |= finish(scheduler, granted)
        if len(ended) == len(sizes):
            break
    assert [admitted[number] for number in range(len(sizes))] == [samples for samples, _, _ in sizes]
    assert len(scheduler) == 0


def test_the_backlog_counts_what_waits_and_what_running_lanes_still_need() -> None:
    scheduler = Scheduler(64)
    scheduler.add(Entry(0, 10, cost=8))
    assert backlog(scheduler) == pytest.approx(80)
    scheduler.grant()
    scheduler.tick = 5
    assert backlog(scheduler) == pytest.approx(30)
    scheduler.add(Entry(1, 100, cost=8))
    scheduler.grant()
    assert backlog(scheduler) == pytest.approx(30 + 52 * 8 + 48 * 4)  # old and new lanes of a large job: half


def test_the_backlog_of_guided_samples_is_twice_that_of_others() -> None:
    plain, guided = Scheduler(64), Scheduler(64)
    for scheduler, width, samples in ((plain, 1, 200), (guided, 2, 100)):
        scheduler.add(Entry(0, samples, cost=8, width=width))
        scheduler.grant()
        scheduler.tick = 3
    assert backlog(guided) == backlog(plain) > 0


def test_a_job_that_takes_longer_than_thought_is_repriced() -> None:
    scheduler = Scheduler(64)
    scheduler.add(Entry(0, 2, cost=8))
    scheduler.grant()
    scheduler.tick = 20
    assert backlog(scheduler) == 2
    scheduler.reprice(0, nfe=20, share=0.5, least=0.25)  # the rest as expected, after its calls so far
    assert backlog(scheduler) == 2 * (20 + 0.5 * 8 - 20)
    [place] = scheduler.snapshot().places
    assert place.calls == 20 + 0.75 * 8


def test_a_guess_gives_way_to_the_pace_so_far() -> None:
    scheduler = Scheduler(64)
    scheduler.add(Entry(0, 2, cost=8, known=False))
    assert scheduler.reprice(0, nfe=20, share=0.5, least=0.1) is None  # too early for an estimate
    place = scheduler.reprice(0, nfe=30, share=0.75, least=0.5)
    assert place is not None
    assert (place.cost, place.calls) == (40, 60)


def test_small_jobs_enter_by_their_deadlines() -> None:
    scheduler = Scheduler(64)
    for number, deadline in enumerate([9.0, 3.0, 9.0, 5.0]):
        scheduler.add(Entry(number, 16, cost=1, deadline=deadline))
    assert [number for number, _, _ in scheduler.grant()] == [1, 3, 0, 2]


def test_bulk_gets_its_part_of_the_time_and_no_more() -> None:
    turns, used = Turns(), {True: 0.0, False: 0.0}
    for _ in range(10_000):
        bulk = turns.bulk(3, 48)
        turns.used(3, 48 if bulk else 0, 0.012 if bulk else 0.001)
        used[bulk] += 0.012 if bulk else 0.001
    assert used[True] / (used[True] + used[False]) == pytest.approx(1 / BULK_SHARE, rel=0.2)


def test_bulk_alone_has_every_turn_and_none_without_lanes() -> None:
    turns = Turns()
    assert turns.bulk(0, 5)
    assert not turns.bulk(5, 0)
    assert not turns.bulk(0, 0)


def test_beyond_enough_rows_jobs_wait_for_each_other() -> None:
    scheduler = Scheduler(64, enough=20)
    for number in range(3):
        scheduler.add(Entry(number, 8, cost=100, deadline=number))
    assert scheduler.grant() == [(0, 0, 8), (1, 0, 8), (2, 0, 4)]
    scheduler.add(Entry(3, 8, cost=100, deadline=0.5))
    assert scheduler.ended(0, 8)
    assert scheduler.grant() == [(3, 0, 8)]  # the earliest deadline first
    assert not scheduler.ended(1, 7)
    assert scheduler.grant() == [(2, 4, 4)]


def test_a_much_shorter_job_does_not_wait_for_longer_ones() -> None:
    scheduler = Scheduler(64, enough=16)
    scheduler.add(Entry(0, 16, cost=100))
    assert scheduler.grant() == [(0, 0, 16)]
    scheduler.add(Entry(1, 1, cost=30))
    scheduler.add(Entry(2, 10, cost=20))
    assert scheduler.grant() == [(2, 0, 10)]
    scheduler.tick = 99
    assert scheduler.grant() == []
    assert scheduler.ended(0, 16)
    assert scheduler.grant() == [(1, 0, 1)]


def test_a_whole_job_larger_than_enough_runs_once_nothing_else_does() -> None:
    scheduler = Scheduler(64, enough=8)
    scheduler.add(Entry(0, 4, cost=100))
    scheduler.grant()
    scheduler.add(Entry(1, 16, cost=100, whole=True, deadline=1.0))
    scheduler.add(Entry(2, 2, cost=100, deadline=2.0))
    assert scheduler.grant() == []
    assert scheduler.ended(0, 4)
    assert scheduler.grant() == [(1, 0, 16)]
