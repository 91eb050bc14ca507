"""Learned times and weights: exact derivatives, the stock methods as starting points, and what tuning gains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from selection import tuning
from selection.tuning import Calibration, stock_weights, tune_grid, tune_plan
from solvers import SolverSpec, integrate
from solvers.tuned import TunedPlans
from tests.solvers.support import EXPONENTIAL, MULTISTEP

UNIFORM = np.linspace(0.0, 1.0, 5)


def field(x: Tensor, t: Tensor, rows: slice | None = None) -> Tensor:
    """A field with two humps, neither linear nor autonomous."""
    t = t[:, None]
    return torch.tanh(3 * x) - x + torch.sin(2 * t) * x.flip(1) / (1.2 - t)


def target(samples: int, seed: int = 0) -> Calibration:
    x0 = torch.randn(samples, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ends = integrate(lambda x, t: field(x, t), x0, rtol=1e-10, atol=1e-10).x
    return Calibration(field, x0, ends, float((ends - ends.mean(0)).square().sum(1).mean().sqrt()))


@pytest.mark.parametrize("most", [1, 2])
def test_normal_equations_are_those_of_finite_differences(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = target(40)
    weights = stock_weights(SolverSpec("ab3", 4), UNIFORM)
    slope, square = paths.normal_equations(UNIFORM, weights)

    def residuals(times: np.ndarray, w: np.ndarray) -> np.ndarray:
        x, found = paths.x0, []
        for n in range(4):
            found.append(field(x, torch.full((40,), times[n], dtype=torch.float64)))
            x = x + w[n, 0] * paths.x0 + sum(w[n, 1 + j] * found[j] for j in range(n + 1))
        return (x - paths.ends).flatten().numpy()

    columns = []
    for k in range(5 + 20):
        moved = [(UNIFORM.copy(), weights.copy()) for _ in range(2)]
        for sign, (times, w) in zip((1, -1), moved, strict=True):
            if k < 5:
                times[k] += sign * 1e-6
            elif k - 5 in np.ravel_multi_index(np.tril_indices(4, 1, 5), (4, 5)):
                w.flat[k - 5] += sign * 1e-6
        columns.append((residuals(*moved[0]) - residuals(*moved[1])) / 2e-6)
    jacobian = np.array(columns).T
    assert np.allclose(slope, jacobian.T @ residuals(UNIFORM, weights), rtol=1e-5, atol=1e-7)
    assert np.allclose(square, jacobian.T @ jacobian, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(tuning, "_MAX_DIRECTIONS", 1)
    estimated = paths.normal_equations(UNIFORM, weights)
    assert np.allclose(estimated[0], slope)
    kept = np.diag(square) > 1e-3 * square.max()
    assert np.allclose(np.diag(estimated[1])[kept], np.diag(square)[kept], rtol=1.0)


@pytest.mark.parametrize("solver", [*MULTISTEP, *EXPONENTIAL])
def test_stock_weights_give_the_stock_method(solver: str) -> None:
    times = np.array([0.0, 0.1, 0.25, 0.5, 0.8, 1.0])
    paths = target(9)
    found = paths.error(times, stock_weights(SolverSpec(solver, 5), times))
    x = integrate(lambda x, t: field(x, t), paths.x0, solver=solver, grid=times.tolist()).x
    assert found == pytest.approx(float((x - paths.ends).square().sum(1).mean().sqrt()) / paths.spread, rel=1e-9)


def test_the_derivatives_of_times() -> None:
    p = np.array([0.3, -1.0, 0.2, 0.8])
    times, by_p = tuning._times(p)
    for k in range(4):
        ahead, behind = p.copy(), p.copy()
        ahead[k] += 1e-6
        behind[k] -= 1e-6
        assert np.allclose(by_p[:, k], (tuning._times(ahead)[0] - tuning._times(behind)[0]) / 2e-6, atol=1e-9)
    again, _ = tuning._times(tuning._unknowns(times))
    assert np.allclose(again, times, atol=1e-12)
    assert (times[0], times[-1]) == (0.0, 1.0)


def test_tuning_gains_on_noise_that_it_never_saw_and_is_deterministic() -> None:
    calibration, validation, spec = target(128), target(128, seed=1), SolverSpec("ab2", 4)
    reports: list[float] = []
    times = tune_grid(calibration, spec, 8, reports.append)
    assert min(reports) <= reports[0]
    before = validation.error(UNIFORM, stock_weights(spec, UNIFORM))
    on_grid = validation.error(times, stock_weights(spec, times))
    plan = tune_plan(calibration, times, stock_weights(spec, times), 25, reports.append)
    assert plan.weights is not None
    assert plan.x0_weights is not None
    assert plan.x0_weights.any()
    learned = validation.error(plan.times, np.column_stack([plan.x0_weights, plan.weights]))
    assert on_grid < 0.9 * before
    assert learned < 0.6 * on_grid
    served = integrate(lambda x, t: field(x, t), validation.x0, solver="tuned-4", tuned=TunedPlans({4: plan})).x
    assert float((served - validation.ends).square().sum(1).mean().sqrt()) / validation.spread == pytest.approx(learned)
    again = tune_plan(calibration, times, stock_weights(spec, times), 25, reports.append)
    assert np.array_equal(again.times, plan.times)


def test_a_path_that_is_lost_is_no_progress() -> None:
    paths = target(4)
    assert paths.error(UNIFORM, np.tril(np.full((4, 5), 1e200), 1)) == np.inf
