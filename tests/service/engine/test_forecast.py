"""Forecasts against queues whose end can be counted by hand."""

from typing import Any

import pytest

from service.engine.forecast import Outlook, Snapshot
from service.engine.scheduler import Entry, Scheduler


def outlook(**changed: Any) -> Outlook:
    plain: dict[str, Any] = {
        "wait": 0.0,
        "work": 100.0,
        "cost": 10.0,
        "rivals": (),
        "rows": 100,
        "backlog_s": 0.0,
        "busy_tick_s": 0.02,
        "idle_tick_s": 0.01,
    }
    return Outlook(**{**plain, **changed})


def test_alone_a_job_takes_its_calls() -> None:
    assert outlook().end_s() == outlook().alone_s() == pytest.approx(0.1)


def test_more_work_than_lanes_takes_longer() -> None:
    assert outlook(work=5000.0).alone_s() == pytest.approx(0.5)


def test_a_small_job_waits_and_ticks_slowly_while_others_are_there() -> None:
    # 30 ticks of 20 ms until its lanes start, then 2 slow ones while the backlog lasts, then 8 of its own.
    assert outlook(wait=30.0, backlog_s=0.64).end_s() == pytest.approx(0.6 + 0.04 + 0.08)


def test_a_large_job_shares_with_each_rival_as_far_as_its_own_work_goes() -> None:
    large = outlook(work=10_000.0, rivals=(2_000.0, 50_000.0))
    assert large.end_s() == pytest.approx((2_000 + 10_000 + 10_000) / 100 * 0.02)


def test_other_models_take_turns_and_no_more_than_they_have() -> None:
    assert outlook(elsewhere_s=[0.03, 9.0]).end_s() == pytest.approx(0.1 + 0.03 + 0.1)


def test_bulk_yields_but_never_starves() -> None:
    assert outlook(above_s=1000.0).end_s() == pytest.approx(8 * 0.1)
    assert outlook(above_s=0.05).end_s() == pytest.approx(0.15)


@pytest.mark.parametrize("rivals", [(), (100_000.0,)])
def test_taken_when_the_forecast_meets_the_deadline(rivals: tuple[float, ...]) -> None:
    work = 100.0 if not rivals else 60_000.0
    queued = outlook(wait=1000.0, work=work, rivals=rivals, backlog_s=20.0)
    limit = queued.alone_s() + 3.0 if not rivals else 14.0
    after = queued.taken_in_s(limit)
    assert 0 < after < 20
    assert queued.end_s(after) == pytest.approx(limit, rel=1e-3)
    assert queued.end_s(after + 1) <= limit


def filled(budget: int, *jobs: tuple[int, float]) -> Scheduler:
    scheduler = Scheduler(budget)
    for number, (samples, cost) in enumerate(jobs):
        scheduler.add(Entry(number, samples, cost))
    scheduler.grant()
    return scheduler


def test_room_means_no_wait() -> None:
    assert Snapshot(filled(100, (25, 50.0))).wait([], 25) == 0


def test_a_full_arena_is_waited_for_in_the_order_of_the_queue() -> None:
    # Four jobs fill it, with 10, 20, 30 and 40 calls; a fifth waits for the first to end.
    scheduler = filled(100, (25, 10.0), (25, 20.0), (25, 30.0), (25, 40.0), (25, 100.0))
    snapshot = Snapshot(scheduler)
    assert snapshot.first_end == 10
    assert snapshot.wait([], 25) == 20
    assert snapshot.wait([], 25) == 20  # asking changes nothing
    assert snapshot.wait([Entry(9, 25, 5.0)], 25) == 25  # the one on its way starts at 20 and ends at 25


def test_the_forecast_is_what_the_scheduler_then_does() -> None:
    scheduler = filled(64, *[(16, 7.0 + 3 * k) for k in range(12)])
    expected = Snapshot(scheduler).wait([], 16)
    scheduler.add(Entry(99, 16, 5.0))
    running = {number: 7.0 + 3 * number for number in range(4)}
    ticks = 0
    while True:
        ticks += 1
        scheduler.tick += 1
        for number in [number for number, left in running.items() if left <= ticks]:
            del running[number]
            scheduler.ended(number, 16)
        granted = [number for number, _, _ in scheduler.grant()]
        if 99 in granted:
            break
        running |= {number: ticks + 7.0 + 3 * number for number in granted}
    assert ticks == expected


def test_large_jobs_are_rivals() -> None:
    snapshot = Snapshot(filled(100, (1000, 10.0), (20, 5.0)))
    assert len(snapshot.rivals) == 1
    assert snapshot.against([Entry(7, 500, 4.0), Entry(8, 5, 4.0)])[1:] == [2000.0]
    assert 25 <= snapshot.large_rows <= 75


def test_guided_samples_are_forecast_as_the_rows_they_cost() -> None:
    plain, guided = filled(100, (24, 10.0), (20, 30.0), (1000, 10.0)), Scheduler(100)
    for number, (samples, cost) in enumerate([(12, 10.0), (10, 30.0), (500, 10.0)]):
        guided.add(Entry(number, samples, cost, width=2))
    guided.grant()
    expected, found = Snapshot(plain), Snapshot(guided)
    for name in ("rows", "small_rows", "work", "rivals", "large_rows", "first_end"):
        assert getattr(found, name) == getattr(expected, name), name
    one, pair = [Entry(9, 24, 5.0)], [Entry(9, 12, 5.0, width=2)]
    assert found.wait(pair, 20) == expected.wait(one, 20) > 0
    assert found.against([Entry(9, 300, 5.0, width=2)]) == expected.against([Entry(9, 600, 5.0)])
