"""Forecasts for queues with an end that can be computed by hand."""

import math

import numpy as np
import pytest

from engine.cost import Curve
from engine.forecast import Demand, Lot, Prospects, hopeless, walk, wall
from engine.scheduler import Entry, Scheduler

BUDGET = 100


def linear(rows: float) -> float:
    """A millisecond per row."""
    return 0.001 * rows


def flat(rows: float) -> float:
    return 0.01


def demand(number: int, rows: int, calls: float, **about: object) -> Demand:
    given = {"small": rows <= BUDGET // 4, "runs": True, **about}
    return Demand(number, rows, calls, rows * calls, **given)  # pyright: ignore[reportArgumentType]


def lot(*demands: Demand, bulk: bool = False) -> Lot:
    return Lot(bulk, BUDGET, Curve([(1.0, 0.001)]), list(demands))  # in proportion: a millisecond a row


def promised(number: int, rows: int, calls: float, left_s: float, **about: object) -> Demand:
    return demand(number, rows, calls, left_s=left_s, promised=True, **about)


def test_alone_a_job_takes_its_calls() -> None:
    assert walk([demand(0, 20, 10)], BUDGET, linear) == [pytest.approx(0.2)]


def test_all_lanes_take_part_in_every_tick() -> None:
    assert walk([demand(0, 20, 10), demand(1, 10, 30)], BUDGET, linear) == pytest.approx([0.3, 0.5])


def test_small_jobs_wait_for_room_by_their_deadlines() -> None:
    running = [demand(k, 25, 10) for k in range(4)]
    late, early = (demand(k, 25, 5, runs=False, left_s=left) for k, left in ((4, 9.0), (5, 8.0)))
    more = demand(6, 80, 1, small=True, runs=False, left_s=10.0)
    ends = walk([*running, late, early, more], BUDGET, flat)
    assert ends[4] == ends[5] == pytest.approx(0.15)
    assert ends[6] == pytest.approx(0.16)
    ends = walk([*running, *(demand(k, 60, 5, small=True, runs=False, left_s=9 - k) for k in (4, 5))], BUDGET, flat)
    assert ends[4:] == pytest.approx([0.2, 0.15])


def test_large_jobs_share_three_quarters_equally() -> None:
    assert walk([demand(0, 1000, 3)], BUDGET, flat) == pytest.approx([0.4])
    assert walk([demand(0, 1000, 3), demand(1, 500, 3)], BUDGET, flat) == pytest.approx([0.6, 0.4])
    small = [demand(k, 25, 100) for k in (1, 2, 3)]
    assert walk([demand(0, 250, 10), *small], BUDGET, flat)[0] == pytest.approx(1.0)  # it gets a quarter


def test_who_joins_later_finds_what_is_left_then() -> None:
    first, second = demand(0, 20, 10), demand(1, 10, 10, runs=False)
    assert walk([first, second], BUDGET, linear, 0.1) == pytest.approx([0.25, 0.3])
    assert walk([first, second], BUDGET, linear, 5.0) == pytest.approx([0.2, 5.1])


def test_samples_under_error_control_leave_one_by_one() -> None:
    job = Demand(0, 20, 20, 200.0, runs=True)  # ten calls on average, twenty at most
    assert walk([job], BUDGET, linear) == pytest.approx([0.2])


@pytest.mark.parametrize(("rows", "calls"), [(20, 10.0), (1000, 4.0)])
def test_a_walk_ends_when_the_scheduler_does(rows: int, calls: float) -> None:
    scheduler, rows_now = Scheduler(BUDGET), []
    for number, (samples, cost) in enumerate([(rows, calls), (20, 30.0), (25, 12.0), (25, 7.0), (25, 9.0)]):
        scheduler.add(Entry(number, samples, cost))
    places = scheduler.snapshot().places
    expected = walk([Demand.of(place, 0, 0.0) for place in places], BUDGET, flat)
    lanes: list[tuple[float, int, int]] = []
    found: dict[int, float] = {}
    while len(scheduler):
        lanes += [(scheduler.tick + places[number].cost, number, count) for number, _, count in scheduler.grant()]
        scheduler.tick += 1
        rows_now.append(scheduler.active_rows)
        for end, number, count in [each for each in lanes if each[0] <= scheduler.tick]:
            lanes.remove((end, number, count))
            if scheduler.ended(number, count):
                found[number] = 0.01 * scheduler.tick
    assert max(rows_now) <= BUDGET
    assert [found[k] for k in range(5)] == pytest.approx(expected, rel=0.25)


def test_other_models_and_priorities_take_their_turns() -> None:
    mine, ends = lot(demand(0, 10, 10)), np.array([0.1])
    other, bulk = lot(demand(1, 20, 100)), lot(demand(2, 20, 100), bulk=True)
    assert wall(mine, ends, [(other, other.total)]) == pytest.approx([0.2])
    assert wall(mine, ends, [(other, 0.03)]) == pytest.approx([0.13])
    assert wall(mine, ends, [(bulk, bulk.total)]) == pytest.approx([0.1 * 8 / 7])
    assert wall(bulk, ends, [(mine, math.inf)]) == pytest.approx([0.8])


def fits(present: Lot, newcomer: Demand, joins_s: float = 0.0) -> bool:
    return Prospects([present], present, newcomer).fits(joins_s)


def test_a_newcomer_is_taken_only_if_all_stay_in_time() -> None:
    here = lot(promised(0, 20, 50, 2.8))  # a second by itself
    assert fits(here, promised(1, 4, 40, 2.8, runs=False))
    assert not fits(here, promised(1, 20, 40, 9.0, runs=False))  # it would end in time, the other would not
    assert not fits(here, promised(1, 4, 40, 0.5, runs=False))  # it would be late itself
    assert fits(here, promised(1, 20, 40, 9.0, runs=False), joins_s=0.9)


def test_a_newcomer_among_other_models_is_held_to_their_promises() -> None:
    here, other = lot(), lot(promised(0, 20, 50, 1.8))
    newcomer = promised(1, 20, 100, 60.0, runs=False)
    assert Prospects([here], here, newcomer).fits()
    assert not Prospects([here, other], here, newcomer).fits()


def test_those_who_are_late_anyway_keep_nobody_out() -> None:
    assert fits(lot(promised(0, 20, 50, 0.5)), promised(1, 20, 20, 9.0, runs=False))


def test_the_job_that_wants_most_is_given_up() -> None:
    first, second = lot(promised(0, 20, 40, 1.0), promised(1, 20, 60, 1.2)), lot(demand(2, 1, 1))
    assert hopeless([first, second]) == (first, 1)
    assert hopeless([first.without(1), second]) is None
    assert hopeless([lot(promised(0, 20, 60, 0.1))]) is None  # no other job would gain
