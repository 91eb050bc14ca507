"""The scheduler alone: no tensors, no threads."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.scheduler import BULK_SHARE, BulkShare, Entry, Scheduler, part_of


def backlog(scheduler: Scheduler[Entry]) -> float:
    """Return the expected network rows of all jobs."""
    return sum(entry.work(scheduler.tick) for entry in scheduler.entries.values())


def made(budget: int, enough: int | None = None) -> Scheduler[Entry]:
    scheduler = Scheduler[Entry](budget)
    scheduler.enough = scheduler.enough if enough is None else enough
    return scheduler


def grant(scheduler: Scheduler[Entry]) -> list[tuple[int, int, int]]:
    return [(entry.number, first, count) for entry, first, count in scheduler.grant()]


def ended(scheduler: Scheduler[Entry], number: int, lanes: int) -> bool:
    return scheduler.ended(scheduler.entries[number], lanes)


def queued(scheduler: Scheduler[Entry]) -> int:
    return sum(not entry.admitted for entry in scheduler.entries.values())


def finish(scheduler: Scheduler[Entry], granted: list[tuple[int, int, int]]) -> set[int]:
    return {number for number, _, count in granted if ended(scheduler, number, count)}


def test_small_jobs_enter_in_order_and_together() -> None:
    scheduler = made(64)
    for number, samples in enumerate([3, 1, 16]):
        scheduler.add(Entry(number, samples, cost=10))
    assert queued(scheduler) == 3
    assert grant(scheduler) == [(0, 0, 3), (1, 0, 1), (2, 0, 16)]
    assert queued(scheduler) == 0
    assert scheduler.active_rows == 20


def test_a_large_job_is_sliced_and_leaves_room_for_the_next_small_one() -> None:
    scheduler = made(64)
    scheduler.add(Entry(0, 100_000, cost=10))
    assert grant(scheduler) == [(0, 0, 48)]
    assert grant(scheduler) == []
    scheduler.add(Entry(1, 1, cost=10))
    assert grant(scheduler) == [(1, 0, 1)]
    assert ended(scheduler, 1, 1)
    assert not ended(scheduler, 0, 8)
    assert grant(scheduler) == [(0, 48, 8)]


def test_large_jobs_share_equally() -> None:
    scheduler = made(64)
    for number in range(3):
        scheduler.add(Entry(number, 1000, cost=10))
    granted = grant(scheduler)
    assert [count for _, _, count in granted] == [16, 16, 16]


def test_small_jobs_leave_a_quarter_to_waiting_large_ones() -> None:
    scheduler = made(64)
    scheduler.add(Entry(0, 1000, cost=10))
    for number in range(1, 10):
        scheduler.add(Entry(number, 16, cost=10))
    granted = grant(scheduler)
    assert sum(count for number, _, count in granted if number > 0) == 48
    assert sum(count for number, _, count in granted if number == 0) == 16


def test_a_guided_sample_takes_two_rows_of_the_arena() -> None:
    scheduler = made(64)
    scheduler.add(Entry(0, 100_000, cost=10, width=2))
    assert grant(scheduler) == [(0, 0, 24)]
    assert scheduler.active_rows == 48
    scheduler.add(Entry(1, 8, cost=10, width=2))  # a quarter: the largest that is small
    scheduler.add(Entry(2, 1, cost=10))
    assert grant(scheduler) == [(1, 0, 8)]
    assert not ended(scheduler, 0, 1)
    assert grant(scheduler) == [(2, 0, 1)]
    assert scheduler.active_rows == 63  # the last row has room for only half a guided sample
    scheduler.add(Entry(3, 1, cost=10, width=2))
    assert grant(scheduler) == []
    scheduler.remove(scheduler.entries[0])
    assert scheduler.active_rows == 17
    assert scheduler.is_small(16)
    assert not scheduler.is_small(17)


def test_guided_and_plain_large_jobs_get_the_same_rows() -> None:
    scheduler = made(64)
    for number, width in enumerate([1, 2]):
        scheduler.add(Entry(number, 1000, cost=10, width=width))
    assert [count for _, _, count in grant(scheduler)] == [24, 12]


def test_a_guided_sample_is_served_even_where_only_one_row_fits() -> None:
    scheduler = made(1)
    scheduler.add(Entry(0, 2, cost=10, width=2))
    for first in range(2):
        assert grant(scheduler) == [(0, first, 1)]
        assert grant(scheduler) == []
        assert ended(scheduler, 0, 1) is (first == 1)


def test_a_small_whole_job_is_never_sliced_and_waits_for_room() -> None:
    scheduler = made(64)
    for number in range(4):
        scheduler.add(Entry(number, 14, cost=10))
    assert len(grant(scheduler)) == 4
    scheduler.add(Entry(9, 16, cost=10, whole=True))
    assert grant(scheduler) == []
    assert ended(scheduler, 0, 14)
    assert grant(scheduler) == [(9, 0, 16)]


def test_a_removed_job_frees_its_lanes_and_ends_silently() -> None:
    scheduler = made(64)
    scheduler.add(Entry(0, 1000, cost=10))
    grant(scheduler)
    entry = scheduler.entries[0]
    scheduler.remove(entry)
    assert not scheduler.ended(entry, 48)
    assert scheduler.entries == {}
    scheduler.add(Entry(1, 1000, cost=10))
    assert grant(scheduler) == [(1, 0, 48)]


def test_dropping_what_waits_lets_the_job_end_with_its_lanes() -> None:
    scheduler = made(64)
    scheduler.add(Entry(0, 1000, cost=10))
    grant(scheduler)
    assert scheduler.entries[0].admitted == 48
    scheduler.drop_waiting(scheduler.entries[0])
    assert grant(scheduler) == []
    assert ended(scheduler, 0, 48)


@settings(deadline=None)
@given(
    budget=st.integers(1, 200),
    sizes=st.lists(st.tuples(st.integers(1, 500), st.booleans(), st.integers(1, 2)), min_size=1, max_size=30),
)
def test_every_job_ends_and_every_sample_is_admitted_once(budget: int, sizes: list[tuple[int, bool, int]]) -> None:
    scheduler = made(budget)
    small = [samples * width <= part_of(budget) for samples, _, width in sizes]
    for number, (samples, whole, width) in enumerate(sizes):
        scheduler.add(Entry(number, samples, cost=1, whole=whole and small[number], width=width))
    admitted = dict.fromkeys(range(len(sizes)), 0)
    complete: set[int] = set()
    for _ in range(20_000):
        granted = grant(scheduler)
        for number, first, count in granted:
            assert first == admitted[number]
            assert not (sizes[number][1] and small[number]) or count == sizes[number][0]
            admitted[number] += count
        assert granted, "the scheduler holds jobs but admits nothing into an empty arena"
        assert scheduler.active_rows == sum(count * sizes[number][2] for number, _, count in granted)
        if scheduler.active_rows > budget:  # a pair of rows in an arena of one
            assert len(granted) == 1
            assert budget == 1
        complete |= finish(scheduler, granted)
        if len(complete) == len(sizes):
            break
    assert [admitted[number] for number in range(len(sizes))] == [samples for samples, _, _ in sizes]
    assert not scheduler.entries


def test_the_backlog_counts_what_waits_and_what_running_lanes_still_need() -> None:
    scheduler = made(64)
    scheduler.add(Entry(0, 10, cost=8))
    assert backlog(scheduler) == pytest.approx(80)
    grant(scheduler)
    scheduler.tick = 5
    assert backlog(scheduler) == pytest.approx(30)
    scheduler.add(Entry(1, 100, cost=8))
    grant(scheduler)
    assert backlog(scheduler) == pytest.approx(30 + 52 * 8 + 48 * 4)  # old and new lanes of a large job: half


def test_the_backlog_of_guided_samples_is_twice_that_of_others() -> None:
    plain, guided = made(64), made(64)
    for scheduler, width, samples in ((plain, 1, 200), (guided, 2, 100)):
        scheduler.add(Entry(0, samples, cost=8, width=width))
        grant(scheduler)
        scheduler.tick = 3
    assert backlog(guided) == backlog(plain) > 0


def test_a_job_that_takes_longer_than_thought_is_repriced() -> None:
    scheduler = made(64)
    scheduler.add(Entry(0, 2, cost=8))
    grant(scheduler)
    scheduler.tick = 20
    assert backlog(scheduler) == 2
    scheduler.reprice(0, nfe=20, share=0.5, least=0.25)  # the rest as expected, after its calls so far
    assert backlog(scheduler) == 2 * (20 + 0.5 * 8 - 20)
    [place] = scheduler.entries.values()
    assert place.calls == 20 + 0.75 * 8


def test_a_guess_gives_way_to_the_pace_so_far() -> None:
    scheduler = made(64)
    scheduler.add(Entry(0, 2, cost=8, certain=False))
    assert scheduler.reprice(0, nfe=20, share=0.5, least=0.1) is None  # too early for an estimate
    place = scheduler.reprice(0, nfe=30, share=0.75, least=0.5)
    assert place is not None
    assert (place.cost, place.calls) == (40, 60)


def test_small_jobs_enter_by_their_deadlines() -> None:
    scheduler = made(64)
    for number, deadline in enumerate([9.0, 3.0, 9.0, 5.0]):
        scheduler.add(Entry(number, 16, cost=1, deadline=deadline))
    assert [number for number, _, _ in grant(scheduler)] == [1, 3, 0, 2]


def test_bulk_gets_its_part_of_the_time_and_no_more() -> None:
    turns, used = BulkShare(), {True: 0.0, False: 0.0}
    for _ in range(10_000):
        bulk = turns.takes_part(3, 48)
        turns.used(3, 48 if bulk else 0, 0.012 if bulk else 0.001)
        used[bulk] += 0.012 if bulk else 0.001
    assert used[True] / (used[True] + used[False]) == pytest.approx(1 / BULK_SHARE, rel=0.2)


def test_bulk_alone_has_every_turn_and_none_without_lanes() -> None:
    turns = BulkShare()
    assert turns.takes_part(0, 5)
    assert not turns.takes_part(5, 0)
    assert not turns.takes_part(0, 0)


def test_beyond_enough_rows_jobs_wait_for_each_other() -> None:
    scheduler = made(64, enough=20)
    for number in range(3):
        scheduler.add(Entry(number, 8, cost=100, deadline=number))
    assert grant(scheduler) == [(0, 0, 8), (1, 0, 8), (2, 0, 4)]
    scheduler.add(Entry(3, 8, cost=100, deadline=0.5))
    assert ended(scheduler, 0, 8)
    assert grant(scheduler) == [(3, 0, 8)]  # the earliest deadline first
    assert not ended(scheduler, 1, 7)
    assert grant(scheduler) == [(2, 4, 4)]


def test_a_much_shorter_job_does_not_wait_for_longer_ones() -> None:
    scheduler = made(64, enough=16)
    scheduler.add(Entry(0, 16, cost=100))
    assert grant(scheduler) == [(0, 0, 16)]
    scheduler.add(Entry(1, 1, cost=30))
    scheduler.add(Entry(2, 10, cost=20))
    assert grant(scheduler) == [(2, 0, 10)]
    scheduler.tick = 99
    assert grant(scheduler) == []
    assert ended(scheduler, 0, 16)
    assert grant(scheduler) == [(1, 0, 1)]


def test_a_guided_sample_enters_where_one_row_is_enough() -> None:
    scheduler = made(64, enough=1)
    scheduler.add(Entry(0, 2, cost=10, width=2))
    assert grant(scheduler) == [(0, 0, 1)]
    assert grant(scheduler) == []
    assert not ended(scheduler, 0, 1)
    assert grant(scheduler) == [(0, 1, 1)]


def test_a_small_job_enters_beside_a_large_one_where_one_row_is_enough() -> None:
    scheduler = made(64, enough=1)
    scheduler.add(Entry(0, 100_000, cost=10))
    assert grant(scheduler) == [(0, 0, 48)]
    for number in (1, 2):
        scheduler.add(Entry(number, 1, cost=10))
    assert grant(scheduler) == [(1, 0, 1)]


def test_a_whole_job_larger_than_enough_runs_once_nothing_else_does() -> None:
    scheduler = made(64, enough=8)
    scheduler.add(Entry(0, 4, cost=100))
    grant(scheduler)
    scheduler.add(Entry(1, 16, cost=100, whole=True, deadline=1.0))
    scheduler.add(Entry(2, 2, cost=100, deadline=2.0))
    assert grant(scheduler) == []
    assert ended(scheduler, 0, 4)
    assert grant(scheduler) == [(1, 0, 16)]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40), st.floats(1, 100)), max_size=40))
def test_what_waits_is_summed_anew_after_each_change(changes: list[tuple[int, int, float]]) -> None:
    scheduler = made(64)
    for number, (change, size, value) in enumerate(changes):
        entries = list(scheduler.entries.values())
        chosen = entries[size % len(entries)] if entries else None
        if chosen is None or change == 0:
            scheduler.add(Entry(number, size, cost=value, certain=size % 2 == 0, deadline=value), held=size % 3 == 0)
        elif change == 1:
            scheduler.grant()
        elif change == 2:
            scheduler.ended(chosen, chosen.active)
        elif change == 3:
            scheduler.remove(chosen)
        elif change == 4:
            scheduler.reprice(chosen.number, value, 0.5, 0.5)
        elif chosen.admitted < chosen.samples:
            scheduler.drop_waiting(chosen)
        waiting = [each for each in scheduler.entries.values() if each.admitted < each.samples]
        small = [(each, (each.samples - each.admitted) * each.width) for each in waiting if each.small]
        rows, before, latest, others = scheduler.line()
        assert rows == sum(own for _, own in small)
        assert before == pytest.approx(sum(own * each.cost for each, own in small))
        assert latest == max((each.deadline for each, _ in small), default=-math.inf)
        assert others == sum((each.samples - each.admitted) * each.width for each in waiting if not each.small)
