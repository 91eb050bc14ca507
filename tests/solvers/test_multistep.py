"""Adams-Bashforth: textbook weights, exactness on any grid, starts, costs and observed orders."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from solvers import SolverError, catalogue, integrate, resolve
from solvers.multistep import adams_bashforth_weights
from tests.solvers.support import MULTISTEP, Watched, decay, fall, fall_exact, gaussian, ones, slope

TEXTBOOK = {
    2: (3 / 2, -1 / 2),
    3: (23 / 12, -16 / 12, 5 / 12),
    4: (55 / 24, -59 / 24, 37 / 24, -9 / 24),
}
"""Hairer I, III.1 eq. (1.5')."""

UNEVEN = np.array([0.0, 0.07, 0.1, 0.26, 0.3, 0.55, 0.61, 0.8, 1.0])


@pytest.mark.parametrize("order", [2, 3, 4])
def test_uniform_weights_are_the_textbook_ones(order: int) -> None:
    assert np.allclose(adams_bashforth_weights(np.linspace(0, 1, 9), order), TEXTBOOK[order], atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("direction", [1, -1])
def test_weights_integrate_polynomials_exactly_on_any_grid(order: int, direction: int) -> None:
    points = UNEVEN[::direction]
    table = adams_bashforth_weights(points, order)
    for degree in range(order):
        for row, n in enumerate(range(order - 1, len(points) - 1)):
            h = points[n + 1] - points[n]
            found = h * table[row] @ points[n - np.arange(order)] ** degree
            exact = (points[n + 1] ** (degree + 1) - points[n] ** (degree + 1)) / (degree + 1)
            assert found == pytest.approx(exact, abs=1e-13)


@pytest.mark.parametrize("start", [None, "ramp", "rk"])
@pytest.mark.parametrize("solver", MULTISTEP)
def test_cost(solver: str, start: str | None) -> None:
    """N calls with a ramp, N + 1, N + 2, N + 6 with a Runge-Kutta start (fewer if there are fewer steps)."""
    for steps in (*range(1, 9), 100):
        watched = Watched(decay)
        solution = integrate(watched, ones(), solver=solver, steps=steps, start=start)
        per_step, most = {"ab2": (1, 1), "ab3": (1, 2), "ab4": (2, 3)}[solver]
        extra = per_step * min(steps, most) if start == "rk" else 0
        assert (
            watched.calls
            == solution.nfe[0]
            == resolve(solver=solver, steps=steps, start=start).nfe_bound
            == steps + extra
        )
        assert solution.t[0] == 1.0
        assert len(solution.trace) == steps


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize(("solver", "order"), [(name, catalogue.find(name).order) for name in MULTISTEP])
def test_observed_orders_with_a_runge_kutta_start(solver: str, order: int, uneven: bool) -> None:
    counts = [32, 64, 128, 256]
    grid = {"name": "sway", "coefficient": -0.7} if uneven else "uniform"
    ends = [integrate(fall, ones(), solver=solver, steps=n, start="rk", grid=grid).x for n in counts]
    errors = [(end - fall_exact(ones(), 1.0)).abs().item() for end in ends]
    assert slope(counts, errors) == pytest.approx(order, abs=0.2)


def test_a_ramp_starts_with_lower_orders() -> None:
    """The first step is Euler, the second the two-step formula, as the definition says."""
    found = integrate(decay, ones(), solver="ab4", steps=2).x.item()
    first = 1 - 0.5
    assert found == pytest.approx(first + 0.5 * (-1.5 * first + 0.5 * 1.0), abs=1e-15)


def test_steps_of_a_start_ask_where_the_starter_does() -> None:
    watched = Watched(decay)
    integrate(watched, ones(), solver="ab4", steps=4, start="rk")
    sixth = [0.0, 1 / 2, 3 / 4]
    expected = [(n + c) / 4 for n in range(3) for c in sixth] + [0.75]
    assert watched.times == pytest.approx(expected, abs=1e-15)


def test_stability_limits_are_the_textbook_ones() -> None:
    limits = [catalogue.find(name).stability_limit for name in MULTISTEP]
    assert limits == pytest.approx([1.0, 6 / 11, 0.3], abs=1e-6)


@pytest.mark.parametrize("start", ["euler", "", 3, True])
def test_unknown_start(start: object) -> None:
    with pytest.raises(SolverError, match=r"unknown start .* for ab3; use one of ramp, rk") as caught:
        integrate(decay, ones(), solver="ab3", steps=4, start=start)  # type: ignore[arg-type]
    assert caught.value.field == "start"


def test_reversed_spans_come_back() -> None:
    x0 = torch.linspace(-2, 2, 5).double()[:, None]
    forth = integrate(gaussian, x0, solver="ab4", steps=400, start="rk").x
    back = integrate(gaussian, forth, solver="ab4", steps=400, start="rk", t_span=(1.0, 0.0)).x
    assert torch.allclose(back, x0, atol=1e-6)
    assert math.isclose(forth[0].item(), 2 + 0.5 * -2, abs_tol=1e-6)
