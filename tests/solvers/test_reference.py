"""Lanes against the solvers as the papers write them: the same bits on a grid, the same steps under error control."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from solvers import catalogue, integrate, reference
from solvers.grids import times
from tests.solvers.support import ADAPTIVE, MULTISTEP, ONE_STEP

X0 = torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
GRIDS: list[Any] = ["uniform", {"name": "shift", "value": 3.0}, [0.0, 0.07, 0.1, 0.4, 0.45, 0.8, 1.0]]


def field(x: Any, t: Any) -> Any:
    """A field of products, sums and quotients only, which NumPy and torch round alike."""
    return (1 + t) * x * (1 - x) / (1 + x * x) - t * x


def rows(x: Tensor, t: Tensor) -> Tensor:
    return field(x, t[:, None])


@pytest.mark.parametrize("solver", ONE_STEP)
def test_runge_kutta_on_a_grid_bit_for_bit(solver: str) -> None:
    for span, dtype in product([(0.0, 1.0), (1.0, 0.0)], [torch.float64, torch.float32]):
        for grid in GRIDS:
            settings = grid if isinstance(grid, str | dict) or span[0] == 0 else grid[::-1]
            found = integrate(rows, X0.to(dtype), solver=solver, steps=6, grid=settings, t_span=span)
            t = times(settings, 6, span).tolist()
            for x0, x in zip(X0.to(dtype).numpy(), found.x.numpy(), strict=True):
                expected = reference.runge_kutta(_rounded(x0.dtype), x0, t, catalogue.find(solver).tableau)
                assert np.array_equal(expected, x)


@pytest.mark.parametrize("start", ["ramp", "rk"])
@pytest.mark.parametrize("solver", MULTISTEP)
def test_adams_bashforth_on_a_grid_bit_for_bit(solver: str, start: str) -> None:
    for steps in (1, 2, 3, 6, 25):
        entry = catalogue.find(solver)
        for grid in GRIDS[:2] if steps != 6 else GRIDS:
            found = integrate(rows, X0, solver=solver, steps=steps, grid=grid, start=start)
            t, starter = times(grid, steps, (0.0, 1.0)).tolist(), entry.tableau if start == "rk" else None
            for x0, x in zip(X0.numpy(), found.x.numpy(), strict=True):
                expected = reference.adams_bashforth(_rounded(x0.dtype), x0, t, entry.order, starter)
                assert np.array_equal(expected, x)


@pytest.mark.parametrize("rtol", [1e-3, 1e-7])
@pytest.mark.parametrize("controller", ["paper", "i", "pi"])
@pytest.mark.parametrize("solver", ADAPTIVE)
def test_error_control_takes_the_same_steps(solver: str, controller: str, rtol: float) -> None:
    def steep(x: Any, t: Any) -> Any:
        return field(3 * x, t) + 40 / (1 + (20 * (t - 0.5)) * (20 * (t - 0.5)))

    tableau = catalogue.find(solver).tableau
    settings: dict[str, Any] = {"rtol": rtol, "atol": 1e-6, "controller": controller, "first_step": 0.3}
    found = integrate(lambda x, t: steep(x, t[:, None]), X0, solver=solver, **settings)
    assert not found.trace.accepted.all()
    for sample, x0 in enumerate(X0.numpy()):
        end, attempts = reference.embedded(steep, x0, (0.0, 1.0), tableau, rtol, 1e-6, controller, 0.3)
        mine = found.trace.sample == sample
        t, h, err = np.array(attempts).T
        assert len(attempts) == mine.sum()
        assert np.allclose(found.trace.t[mine], t, rtol=1e-9)
        assert np.allclose(found.trace.h[mine], h, rtol=1e-7)
        assert np.allclose(found.trace.error[mine], err, rtol=1e-5)
        assert np.allclose(found.x[sample].numpy(), end, rtol=1e-9)


@pytest.mark.parametrize("solver", ADAPTIVE)
def test_the_automatic_first_step(solver: str) -> None:
    found = integrate(rows, X0, solver=solver, rtol=1e-6, atol=1e-6)
    q = catalogue.find(solver).tableau.embedded_order
    assert q is not None
    first = found.trace.h[np.unique(found.trace.sample, return_index=True)[1]]
    expected = [reference.first_step(field, x0, (0.0, 1.0), 1e-6, 1e-6, q) for x0 in X0.numpy()]
    assert np.allclose(first, expected, rtol=1e-12)


def _rounded(dtype: np.dtype[Any]) -> Any:
    """The field with times in the dtype of its states, as networks receive them."""
    return lambda x, t: field(x, dtype.type(t))
