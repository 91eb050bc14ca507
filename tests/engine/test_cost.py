"""Costs: NFE of a job before it starts; seconds of a tick, robust to stalls and quick to notice a slower machine."""

from typing import Any

import pytest

from engine.admission import NfeEstimates
from engine.scheduler import TickCostModel

from .conftest import job


def mean(costs: NfeEstimates, **settings: Any) -> float:
    return costs.of(job(**settings)).mean


def test_plans_are_known_exactly() -> None:
    cost = NfeEstimates().of(job(solver="rk4", steps=7))
    assert (cost.mean, cost.slowest, cost.typical) == (28, 28, 28)


def test_max_step_says_what_a_job_takes_at_least_before_any_was_seen() -> None:
    costs = NfeEstimates()
    guess = mean(costs)
    assert mean(costs, max_step=0.5) == guess
    assert mean(costs, max_step=1e-3) == 6002 > guess
    assert mean(costs, max_step=1e-3, first_step=1e-4, t_span=(1.0, 0.5)) == 3001
    assert mean(costs, max_nfe=7) == 7


def test_what_a_short_step_costs_is_not_expected_of_others() -> None:
    costs = NfeEstimates()
    costs.learn(job(), 50.0, 60.0)
    costs.learn(job(max_step=1e-3), 6500.0, 6600.0)
    assert mean(costs) == 50
    assert mean(costs, solver="dopri5", rtol=1e-2, atol=1e-2) == 50
    assert mean(costs, max_step=1e-3) == 6500
    assert mean(costs, max_step=1e-2) == 602  # not seen yet
    assert mean(costs, max_step=0.9) == 50
    assert costs.of(job(max_step=1e-3)).typical == 6600
    assert costs.of(job(max_step=1e-2)).typical is None


class Clock:
    """Feeds ticks to the model one after another."""

    def __init__(self, model: TickCostModel) -> None:
        self.model, self.now = model, 100.0

    def ticks(self, count: int, rows: int, cost: float, lasted: float | None = None) -> None:
        for _ in range(count):
            self.now += cost if lasted is None else lasted
            self.model.learn(rows, cost, cost if lasted is None else lasted, self.now)


@pytest.fixture
def model() -> TickCostModel:
    return TickCostModel()


@pytest.fixture
def clock(model: TickCostModel) -> Clock:
    return Clock(model)


def test_before_anything_is_known(model: TickCostModel) -> None:
    assert model.seconds(64) == 1e-3


def test_measured_sizes_are_interpolated_and_extended(model: TickCostModel) -> None:
    model.measured(64, 0.001)
    model.measured(128, 0.002)
    assert model.seconds(1) == pytest.approx(0.001)
    assert model.seconds(96) == pytest.approx(0.0015)
    assert model.seconds(256) == pytest.approx(0.004)


def test_ticks_replace_what_was_measured(model: TickCostModel, clock: Clock) -> None:
    model.measured(64, 0.001)
    clock.ticks(1, 64, 0.003)
    assert model.seconds(64) < 0.0015
    clock.ticks(40, 64, 0.003)
    assert model.seconds(64) == pytest.approx(0.003, rel=0.01)


def test_slow_first_ticks_do_not_poison_a_size(model: TickCostModel, clock: Clock) -> None:
    model.measured(64, 0.001)
    clock.ticks(1, 64, 2.0)  # machine code is being compiled
    assert model.seconds(64) < 0.0015
    clock.ticks(20, 64, 0.001)
    assert model.seconds(64) == pytest.approx(0.001, rel=0.02)


def test_enough_rows_are_those_beyond_which_a_row_costs_no_less(model: TickCostModel) -> None:
    assert model.enough(512) == 512
    for rows in (1, 32, 64, 128, 256, 512):
        model.measured(rows, 5e-4 + 8e-5 * rows)
    assert model.enough(512) == 64


def test_one_stall_hardly_moves_the_forecast(model: TickCostModel, clock: Clock) -> None:
    clock.ticks(3000, 64, 0.001)
    clock.ticks(1, 64, 0.001, lasted=10.0)
    assert 0.001 <= model.seconds(64) < 0.0013


def test_a_rare_size_seen_in_a_slow_moment_is_not_believed(model: TickCostModel, clock: Clock) -> None:
    clock.ticks(30, 512, 0.004)
    clock.ticks(6, 100, 0.5)
    assert model.seconds(100) <= 0.0041  # no more than for a larger tick


def test_cores_that_others_want_stretch_every_size(model: TickCostModel, clock: Clock) -> None:
    clock.ticks(100, 64, 0.001)
    clock.ticks(100, 512, 0.004)
    for _ in range(300):  # nine ticks run through, the tenth waits for its core
        clock.ticks(9, 64, 0.001)
        clock.ticks(1, 64, 0.001, lasted=0.031)
    assert model.stretch == pytest.approx(4, rel=0.1)
    assert model.seconds(512) == pytest.approx(0.016, rel=0.1)
    clock.ticks(10_000, 64, 0.001)
    assert model.seconds(512) == pytest.approx(0.004, rel=0.1)


def test_the_load_of_a_while_ago_is_forgotten(model: TickCostModel, clock: Clock) -> None:
    clock.ticks(200, 64, 0.001, lasted=0.02)
    assert model.stretch > 10
    clock.now += 60
    clock.ticks(1, 64, 0.001)
    assert model.stretch == pytest.approx(1)


def test_measured_sizes_lack_what_ticks_cost_beside_the_network(model: TickCostModel, clock: Clock) -> None:
    model.measured(64, 0.0001)
    model.measured(128, 0.0002)
    clock.ticks(60, 64, 0.001)
    assert model.seconds(64) == pytest.approx(0.001, rel=0.01)
    assert model.seconds(128) >= model.cost(64)
