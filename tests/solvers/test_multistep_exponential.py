"""DPM-Solver++ and UniPC in flow form: the papers' own formulas, observed orders, ends, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers import SolverError, SolverSpec, Status, catalogue, integrate, multistep, resolve
from solvers.grids import times
from solvers.multistep import Exponential
from solvers.plan import B
from tests.solvers import formulas
from tests.solvers.support import EXPONENTIAL, Watched, gaussian, ones, slope

X0 = torch.linspace(-2, 2, 9).double()[:, None]
GRIDS: list[Any] = ["uniform", "karras", {"name": "shift", "value": 3.0}, [0.0, 0.07, 0.1, 0.4, 0.45, 0.8, 1.0]]


def field(x: Tensor, t: Tensor) -> Tensor:
    t = t[:, None]
    return -x + 0.3 * t * x * x + torch.sin(3 * x + 2 * t)


def plain(x: NDArray[np.floating], t: float) -> NDArray[np.floating]:
    return field(torch.from_numpy(x)[None], torch.tensor([t], dtype=torch.float64))[0].numpy()


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("solver", EXPONENTIAL)
def test_the_papers_formulas(solver: str, grid: Any) -> None:
    """With data predictions and log-SNR as the papers write them, to rounding; the plan's own sums bit for bit."""
    for steps in [1, 2, 3, 6, 20] if isinstance(grid, str | dict) else [6]:
        found = integrate(field, X0, solver=solver, steps=steps, grid=grid).x.numpy()
        t = times(grid, steps, (0.0, 1.0)).tolist()
        rows = resolve(solver=solver, steps=steps, grid=grid).rows
        slot, keep = (rows.records[name].tolist() for name in ("slot", "keep"))
        for x0, x in zip(X0.numpy(), found, strict=True):
            order = int(solver[-1]) if solver != "dpmpp_2m" else 0
            expected = formulas.unipc(plain, x0, t, order) if order else formulas.dpm_solver_2m(plain, x0, t)
            assert np.allclose(x, expected, rtol=1e-9, atol=1e-11)
            assert np.array_equal(x, formulas.plan(plain, x0, t, rows.weights[:, B], slot, keep))


@pytest.mark.parametrize(("solver", "order"), [("dpmpp_2m", 2), ("unipc2", 3), ("unipc3", 3)])
@pytest.mark.parametrize("span", [(0.1, 0.9), (0.9, 0.1)])
def test_observed_orders_between_the_ends(solver: str, order: int, span: tuple[float, float]) -> None:
    """UniC raises the order by one; the first steps of unipc3 are of lower order and keep it at 3 in most places."""
    exact = integrate(field, X0, rtol=1e-13, atol=1e-13, t_span=span).x
    counts = [128, 256, 512]
    errors = [(integrate(field, X0, solver=solver, steps=n, t_span=span).x - exact).norm().item() for n in counts]
    assert order - 0.15 < slope(counts, errors) < order + 0.7


@pytest.mark.parametrize("solver", ["unipc2", "unipc3"])
def test_observed_orders_to_both_ends(solver: str) -> None:
    """A last step of order 1 keeps the whole at order 2."""
    exact = integrate(field, X0, rtol=1e-13, atol=1e-13).x
    counts = [128, 256, 512]
    errors = [(integrate(field, X0, solver=solver, steps=n).x - exact).norm().item() for n in counts]
    assert slope(counts, errors) == pytest.approx(2, abs=0.15)
    assert catalogue.find(solver).order == 2


def test_predictors_are_exact_for_predictions_that_are_polynomials_of_lambda() -> None:
    """The integral of e^l (c0 + c1 l + c2 l^2) over a step, for UniP of order 3; moments at small and large steps."""
    t = np.array([0.2, 0.26, 0.41, 0.55, 0.9, 0.9999, 1 - 1e-12])
    lam = np.log(t / (1 - t))
    n = np.arange(2, len(t) - 1)
    table = multistep._predictor(lam, n, 3)
    for step, weights in zip(n, table, strict=True):
        h = lam[step + 1] - lam[step]
        for power in (1, 2):
            nodes = (lam[step - np.arange(3)] - lam[step]) ** power
            s = np.linspace(0, 1, 2_000_001)
            weight = np.exp(h * (s - 1))
            exact = np.trapezoid(weight * (h * s) ** power, s) / np.trapezoid(weight, s)
            assert (weights * (nodes[1:] - nodes[0])).sum() == pytest.approx(exact, rel=1e-6)


def test_one_step_is_euler_and_the_last_one_is_the_data_prediction() -> None:
    for solver in EXPONENTIAL:
        one = integrate(gaussian, X0, solver=solver, steps=1).x
        assert torch.allclose(one, integrate(gaussian, X0, solver="euler", steps=1).x, rtol=1e-14)
        before = integrate(gaussian, X0, solver=solver, steps=8, save_at=[0.875])
        assert before.saved is not None
        x = before.saved[:, 0]
        assert torch.allclose(before.x, x + 0.125 * gaussian(x, torch.full((9,), 0.875).double()), rtol=1e-12)


@pytest.mark.parametrize("solver", EXPONENTIAL)
def test_cost_and_ends(solver: str) -> None:
    for steps in (1, 2, 3, 5, 50):
        watched = Watched(gaussian)
        solution = integrate(watched, X0, solver=solver, steps=steps, t_span=(1.0, 0.0))
        assert watched.calls == solution.nfe[0] == steps
        assert set(solution.status) == {Status.SUCCESS}
        assert 0.0 not in watched.times
    assert catalogue.find(solver).slots <= 7
    assert resolve(solver=solver, steps=3).settings == {
        "name": solver,
        "steps": 3,
        "grid": "uniform",
        "max_nfe": 10_000,
        "text": f"{solver}-3",
    }


def test_kept_steps_are_the_same_on_both_kinds_of_states() -> None:
    assert Exponential(3, corrects=True).steps == 3
    rows = resolve(solver="unipc3", steps=9).rows
    assert set(rows.records["keep"]) == {4, 5, 6}
    assert set(resolve(solver="ab3", steps=9).rows.records["keep"]) == {-1}


@pytest.mark.parametrize("solver", EXPONENTIAL)
def test_refusals(solver: str) -> None:
    with pytest.raises(SolverError, match="is for times from 0 to 1; its span is 0 to 2") as caught:
        integrate(gaussian, ones(), solver=solver, steps=4, t_span=(0.0, 2.0))
    assert caught.value.field == "t_span"
    with pytest.raises(SolverError, match="start is for Adams-Bashforth methods"):
        SolverSpec(solver, steps=4, start="ramp")
    with pytest.raises(SolverError, match=f"needs steps, for example {solver}-20"):
        SolverSpec(solver)
