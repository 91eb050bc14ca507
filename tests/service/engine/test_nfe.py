"""Expected NFE of a job before it has begun."""

from typing import Any

from service.engine.nfe import NfeEstimates

from .conftest import job


def mean(costs: NfeEstimates, **settings: Any) -> float:
    return costs.of(job(**settings)).mean


def test_plans_are_known_exactly() -> None:
    cost = NfeEstimates().of(job(solver="rk4", steps=7))
    assert (cost.mean, cost.most, cost.typical) == (28, 28, 28)


def test_max_step_says_what_a_job_takes_at_least_before_any_was_seen() -> None:
    costs = NfeEstimates()
    guess = mean(costs)
    assert mean(costs, max_step=0.5) == guess
    assert mean(costs, max_step=1e-3) == 6002 > guess
    assert mean(costs, max_step=1e-3, first_step=1e-4, t_span=(1.0, 0.5)) == 3001
    assert mean(costs, max_nfe=7) == 7


def test_what_a_short_step_costs_is_not_expected_of_others() -> None:
    costs = NfeEstimates()
    costs = costs.learn(job(), 50.0, 60.0).learn(job(max_step=1e-3), 6500.0, 6600.0)
    assert mean(costs) == 50
    assert mean(costs, solver="dopri5", rtol=1e-2, atol=1e-2) == 50
    assert mean(costs, max_step=1e-3) == 6500
    assert mean(costs, max_step=1e-2) == 602  # not seen yet
    assert mean(costs, max_step=0.9) == 50
    assert costs.of(job(max_step=1e-3)).typical == 6600
    assert costs.of(job(max_step=1e-2)).typical is None
