"""The lanes against all published results in data/cases.json."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from solvers import Status, catalogue, integrate, resolve
from solvers.lanes import Admission, Lanes
from tests.solvers.support import (
    ONE_STEP,
    Watched,
    cases,
    decay,
    gaussian,
    logistic,
    logistic_exact,
    ones,
    oscillator,
    run,
)

CASES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "cases.json").read_text())
DECAY, DEGREE, GROWTH, LIMIT, COUNTS = CASES["fixed"]
FLOW = CASES["gaussian_flow"]


@pytest.mark.parametrize("solver", DECAY["answers"])
def test_ten_steps_on_decay(solver: str) -> None:
    watched = Watched(decay)
    solution = integrate(watched, ones(), solver=solver, steps=10)
    assert solution.x.item() == pytest.approx(DECAY["answers"][solver], abs=DECAY["tol"])
    assert watched.calls == solution.nfe[0] == DECAY["nfe"][solver]


@pytest.mark.parametrize("solver", DEGREE["degree"])
def test_one_step_is_exact_up_to_its_degree(solver: str) -> None:
    degree = DEGREE["degree"][solver]

    def error(p: int) -> float:
        found = integrate(lambda x, t: (p + 1) * t[:, None] ** p, 0 * ones(), solver=solver, steps=1).x
        return abs(found.item() - 1.0)

    assert all(error(p) < 1e-14 for p in range(degree + 1))
    assert error(degree + 1) > 1e-4


@pytest.mark.parametrize(("h", "amplification"), list(GROWTH["amplification"].items()))
def test_euler_grows_beyond_its_stability_limit(h: str, amplification: float) -> None:
    steps = round(1 / float(h))
    grid = np.linspace(0, 1, steps + 1).tolist()
    solution = integrate(lambda x, t: -15 * x, ones(), solver="euler", steps=steps, save_at=grid)
    assert solution.saved is not None
    values = solution.saved[0, :, 0].tolist()
    assert all(after / before == pytest.approx(amplification, rel=1e-9) for before, after in pairwise(values))


@pytest.mark.parametrize("solver", LIMIT["limit"])
def test_stability_limit(solver: str) -> None:
    assert catalogue.find(solver).stability_limit == pytest.approx(-LIMIT["limit"][solver], abs=1e-8)


def test_steps_cost_exactly_their_stages_and_end_at_exactly_one() -> None:
    """All one-step methods with N = 1..1000, thousands of plans in one set of lanes."""
    assert "N = 1..1000" in COUNTS["problem"]
    stages = {"euler": 1, "midpoint": 2, "heun2": 2, "ralston2": 2, "bosh3": 3, "rk4": 4, "rk4_38": 4}
    stages |= {"dopri5": 6, "tsit5": 6}
    stages = {name: catalogue.find(name).tableau.used_stages for name in ONE_STEP} | stages
    jobs = [(solver, steps) for solver in ONE_STEP for steps in range(1, 1001)]
    admissions = [
        Admission(resolve(solver=solver, steps=steps), ones(dtype=torch.float32), owner=number)
        for number, (solver, steps) in enumerate(jobs)
    ]
    ended = run(Lanes((1,)), decay, admissions)
    for number, (solver, steps) in enumerate(jobs):
        end = ended[number, 0]
        assert (end.nfe, end.t, end.status) == (steps * stages[solver], 1.0, Status.SUCCESS), (solver, steps)


@pytest.mark.parametrize("solver", sorted(FLOW["fixed_error"].keys() - {"steps"}))
def test_gaussian_flow_with_fixed_steps(solver: str) -> None:
    exact = FLOW["m"] + FLOW["s"] * FLOW["x0"]
    for steps, error in zip(FLOW["fixed_error"]["steps"], FLOW["fixed_error"][solver], strict=True):
        found = integrate(gaussian, FLOW["x0"] * ones(), solver=solver, steps=steps).x.item()
        assert abs(found - exact) == pytest.approx(error, rel=5e-3)


PROBLEMS = [
    (decay, [1.0], 1.0, [math.exp(-1)]),
    (oscillator, [1.0, 0.0], 2 * math.pi, [1.0, 0.0]),
    (logistic, [0.1], 1.0, [logistic_exact(1.0)]),
    (gaussian, [1.0], 1.0, [2.5]),
]
RUNS = [
    pytest.param(*problem, *numbers, id=f"{case['problem']} rtol {numbers[0]}")
    for problem, case in zip(PROBLEMS, CASES["adaptive"], strict=True)
    for numbers in case["runs"]
]


@pytest.mark.parametrize(("velocity", "x0", "end", "exact", "rtol", "atol", "nfe", "error"), RUNS)
def test_dopri5_needs_no_more_than_scipy(
    velocity: Any, x0: list[float], end: float, exact: list[float], rtol: float, atol: float, nfe: int, error: float
) -> None:
    watched = Watched(velocity)
    start = torch.tensor([x0], dtype=torch.float64)
    solution = integrate(watched, start, rtol=rtol, atol=atol, t_span=(0.0, end), controller="i")
    assert solution.status == (Status.SUCCESS,)
    assert watched.calls == solution.nfe[0] <= 1.15 * nfe
    # The cases state the largest error along the path; ours at the end must stay within three times that.
    assert (solution.x - torch.tensor([exact], dtype=torch.float64)).abs().max() <= 3 * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_field_that_raises_outside_its_span_is_never_asked_there(dtype: torch.dtype) -> None:
    def guarded(x: Tensor, t: Tensor) -> Tensor:
        if (t < 0).any() or (t > 1).any():
            raise AssertionError(f"evaluated outside [0, 1]: {t}")
        return gaussian(x, t)

    x0 = torch.linspace(-2, 2, 9, dtype=dtype)[:, None]
    for name, entry in catalogue.solvers().items():
        for t_span in ((0.0, 1.0),) if entry.stochastic else ((0.0, 1.0), (1.0, 0.0)):
            assert set(integrate(guarded, x0, solver=name, steps=7, t_span=t_span).status) == {Status.SUCCESS}
            if entry.adaptive:
                assert set(integrate(guarded, x0, solver=name, t_span=t_span).status) == {Status.SUCCESS}


def point_mass(x: Tensor, t: Tensor) -> Tensor:
    return (2.0 - x) / (1 - t[:, None])


@pytest.mark.parametrize("solver", ["euler", "midpoint"])
def test_point_mass_is_exact_in_one_step(solver: str) -> None:
    solution = integrate(point_mass, ones(4), solver=solver, steps=1)
    assert solution.x.flatten().tolist() == [2.0] * 4


@pytest.mark.parametrize("solver", ["heun2", "rk4"])
def test_point_mass_asked_at_its_end_is_reported(solver: str) -> None:
    watched = Watched(point_mass)
    solution = integrate(watched, ones(4), solver=solver, steps=1)
    assert watched.times[-1] == 1.0
    assert solution.status == (Status.NON_FINITE,) * 4
    assert torch.isfinite(solution.x).all()


@pytest.mark.parametrize("bad", [0, 17, 63])
@pytest.mark.parametrize("settings", [{"solver": "rk4", "steps": 50}, {"rtol": 1e-8, "atol": 1e-10}])
def test_a_lane_that_turns_nan_leaves_the_others_alone(bad: int, settings: dict[str, Any]) -> None:
    def velocity(x: Tensor, t: Tensor) -> Tensor:
        poisoned = (x[:, :1] > 0) & (t[:, None] > 0.02)
        return torch.where(poisoned, float("nan"), torch.cat((0 * x[:, :1], -5 * x[:, 1:]), dim=1))

    x0 = torch.cat((torch.zeros(64, 1), torch.ones(64, 1)), dim=1).double()
    healthy = integrate(velocity, x0, **settings)
    x0[bad, 0] = 1.0
    solution = integrate(velocity, x0, **settings)
    others = [k for k in range(64) if k != bad]
    assert solution.status[bad] == Status.NON_FINITE
    assert {solution.status[k] for k in others} == {Status.SUCCESS}
    assert solution.x[others, 1].tolist() == pytest.approx([0.006737947] * 63, abs=2e-7)
    assert torch.equal(solution.x[others], healthy.x[others])


def test_a_sample_is_the_same_in_any_company() -> None:
    x0 = torch.linspace(-2, 2, 1000)[:, None]
    for settings in cases({"solver": "rk4", "steps": 9}, {"solver": "ab3", "steps": 9}, {"rtol": 1e-4, "atol": 1e-4}):
        every = integrate(gaussian, x0, **settings)
        for count in (1, 10, 100):
            some = integrate(gaussian, x0[:count], **settings)
            assert torch.equal(some.x, every.x[:count])
            assert some.nfe.tolist() == every.nfe[:count].tolist()
        company = [resolve(solver="euler", steps=31), resolve(solver="tsit5"), resolve(solver="ab4", steps=5)]
        admissions = [Admission(solve, x0[:50], owner=k + 1) for k, solve in enumerate(company)]
        admissions.insert(1, Admission(resolve(**settings), x0[:10]))
        ended = run(Lanes((1,)), gaussian, admissions)
        assert torch.equal(torch.stack([ended[0, k].x for k in range(10)]), every.x[:10])


def test_no_lanes_is_an_empty_answer_without_a_call() -> None:
    for settings in cases({}, {"solver": "euler", "steps": 3}, {"save_at": [0.5]}):
        watched = Watched(decay)
        solution = integrate(watched, torch.empty(0, 3), **settings)
        assert watched.calls == 0
        assert (tuple(solution.x.shape), solution.status, len(solution.trace)) == ((0, 3), (), 0)
