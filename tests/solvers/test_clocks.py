"""Limits of error control: a slow start, a pulse that comes later, and `max_step`, which bounds every step."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from models.architectures.analytic import Gaussian
from solvers import Status, catalogue, integrate, log_density, resolve
from solvers.lanes import Admission, Lanes
from tests.solvers.support import ADAPTIVE, DENSE, Watched, attempts_nfe, cases, decay, ones, run

LARGEST_FACTOR = 10.0
SPANS = [(0.0, 1.0), (1.0, 0.0)]
DTYPES = [torch.float32, torch.float64]


def pulse(x: Tensor, t: Tensor) -> Tensor:
    """1, and 3 from t = 0.4 to 0.6: over the whole span x moves by 1.4, or by 1 if the pulse is missed."""
    return (1 + 2 * ((t > 0.4) & (t < 0.6)))[:, None].expand_as(x).to(x.dtype)


def start(rows: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.full((rows, 1), 0.3, dtype=dtype)


def moved(solution: Any) -> list[float]:
    return (solution.x - 0.3).abs().flatten().tolist()


@pytest.mark.parametrize("settings", [{}, {"error_control": "batch"}, {"controller": "pi"}], ids=str)
@pytest.mark.parametrize("solver", ADAPTIVE)
def test_a_constant_start_does_not_hide_a_later_pulse(solver: str, settings: dict[str, Any]) -> None:
    for t_span, dtype in product(SPANS, DTYPES):
        solution = integrate(pulse, start(3, dtype), solver=solver, t_span=t_span, **settings)
        assert moved(solution) == pytest.approx([1.4] * 3, abs=5e-3)


@pytest.mark.parametrize("solver", ADAPTIVE)
@pytest.mark.parametrize(
    "settings",
    [{}, {"first_step": 0.02}, {"error_control": "batch"}, {"controller": "pi"}, {"save_at": [0.5]}],
    ids=str,
)
def test_max_step_lets_no_solver_pass_over_a_pulse(settings: dict[str, Any], solver: str) -> None:
    for t_span, dtype in product(SPANS, DTYPES):
        if solver not in DENSE:
            settings = {name: value for name, value in settings.items() if name != "save_at"}
        solution = integrate(pulse, start(3, dtype), solver=solver, t_span=t_span, max_step=0.05, **settings)
        assert moved(solution) == pytest.approx([1.4] * 3, abs=5e-3)
        assert abs(solution.trace.h).max() <= 0.05
        if solution.saved is not None:
            assert (solution.saved - 0.3).abs().flatten().tolist() == pytest.approx([0.7] * 3, abs=5e-3)


@pytest.mark.parametrize("value", [0.0, 3.0])
@pytest.mark.parametrize("solver", ADAPTIVE)
@pytest.mark.parametrize("error_control", ["sample", "batch"])
def test_a_constant_field_is_crossed_in_steps_that_grow_tenfold(error_control: str, solver: str, value: float) -> None:
    solution = integrate(lambda x, t: torch.full_like(x, value), ones(1, 2), solver=solver, error_control=error_control)
    assert solution.x.flatten().tolist() == pytest.approx([1 + value] * 2, abs=1e-6)
    h = solution.trace.h
    assert (h[1:-1] / h[:-2]).tolist() == pytest.approx([LARGEST_FACTOR] * (len(h) - 2))
    assert h[-1] <= LARGEST_FACTOR * 1.01 * h[-2]


def test_a_velocity_that_stands_still_at_first_is_not_jumped_over() -> None:
    """A velocity of zero at the start gives the smallest first step; then steps grow by the factor alone."""
    found = integrate(lambda x, t: torch.relu(t - 0.5)[:, None].expand_as(x), ones(), rtol=1e-8, atol=1e-8)
    assert found.x.item() == pytest.approx(1.125, abs=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("solver", ADAPTIVE)
def test_host_loops_and_tensors_keep_to_max_step(solver: str, compiled: bool) -> None:
    """A field that needs no small steps takes exactly as many as max_step requires."""
    for t_span, dtype in product([*SPANS, (0.3, 0.8), (-2.0, 5.0)], DTYPES):
        width = abs(t_span[1] - t_span[0])
        solve = resolve(solver=solver, max_step=width / 7, t_span=t_span, first_step=width / 7, dtype=dtype)
        watched = Watched(lambda x, t: torch.zeros_like(x))
        ended = run(Lanes((1,), dtype, compiled=compiled), watched, [Admission(solve, ones(2, dtype=dtype))])
        assert {(end.status, end.t, end.nfe) for end in ended.values()} == {
            (Status.SUCCESS, t_span[1], 1 + attempts_nfe(solver, 7))
        }
        assert watched.calls == solve.nfe_least  # type: ignore[union-attr]


@pytest.mark.parametrize("max_step", [1.0, 0.1, 1 / 3, 0.7, 0.9999, 0.3, 0.0101, 1e-3])
@pytest.mark.parametrize("first_step", [None, "max_step"])
def test_no_step_is_longer_and_none_is_a_sliver(max_step: float, first_step: str | None) -> None:
    """Ten steps of 0.1 add up to slightly less than 1, which must not cost another step."""
    given = {} if first_step is None else {"first_step": max_step}
    solution = integrate(decay, ones(), rtol=1e-2, atol=1e-2, max_step=max_step, **given)  # type: ignore[arg-type]
    h = solution.trace.h
    assert solution.status == (Status.SUCCESS,)
    assert solution.t[0] == 1.0
    assert h.max() <= max_step * (1 + 1e-6)
    assert h.sum() == pytest.approx(1.0)
    if first_step:
        assert len(h) == math.ceil(1 / max_step - 1e-6)
        assert h[0] == max_step


@pytest.mark.parametrize("max_step", [1.0, 5.0, 1e300])
def test_a_bound_of_the_span_or_more_changes_no_bit(max_step: float) -> None:
    for settings in cases(
        {}, {"solver": "bosh3", "error_control": "batch"}, {"first_step": 0.2}, {"t_span": (1.0, 0.0)}
    ):
        free = integrate(decay, ones(3), **settings)
        bound = integrate(decay, ones(3), max_step=max_step, **settings)
        assert torch.equal(free.x, bound.x)
        assert free.nfe.tolist() == bound.nfe.tolist()


@pytest.mark.parametrize("solver", ADAPTIVE)
@pytest.mark.parametrize("first_step", [None, 0.05])
def test_the_least_nfe_of_a_bound_is_enough_and_no_less_is(solver: str, first_step: float | None) -> None:
    given: dict[str, Any] = {"solver": solver, "rtol": 1.0, "atol": 1.0, "max_step": 0.05, "first_step": first_step}
    least = resolve(**given, dtype=torch.float64).nfe_least  # type: ignore[union-attr]
    assert least == (2 if first_step is None else 1) + attempts_nfe(solver, 20)
    found = integrate(decay, ones(), **given, max_nfe=int(least) + catalogue.find(solver).tableau.stages)
    assert found.status == (Status.SUCCESS,)
    assert least <= found.nfe[0]


def test_log_density_keeps_to_max_step() -> None:
    x = torch.tensor([[2.0, 2.0], [2.5, 1.0]], dtype=torch.float64)
    free = log_density(Gaussian(), x, rtol=1e-3, atol=1e-3)
    bound = log_density(Gaussian(), x, rtol=1e-3, atol=1e-3, max_step=0.04)
    assert abs(bound.trace.h).max() <= 0.04 < abs(free.trace.h).max()
    assert bound.settings["max_step"] == 0.04
    exact = torch.distributions.Normal(2.0, 0.5).log_prob(x).sum(dim=1)
    assert torch.allclose(bound.log_p, exact, atol=1e-4)
