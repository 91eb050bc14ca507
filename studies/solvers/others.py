"""The same problem for each library: one function per library, (field, x0, end, method, tolerance) -> x at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchdiffeq
import torchode
from scipy.integrate import solve_ivp
from torch import Tensor

from solvers import integrate
from studies.solvers.problems import Field

_torchode: Any = torchode  # its type variables require its own tensor types

Run = Callable[[Field, Tensor, float, str, float], Tensor]


def pathline(field: Field, x0: Tensor, end: float, method: str, tolerance: float) -> Tensor:
    """Pathline, with the classical controller `i`."""
    return integrate(
        field, x0, solver=method, rtol=tolerance, atol=tolerance, t_span=(0.0, end), controller="i", max_nfe=10**6
    ).x


def scipy(field: Field, x0: Tensor, end: float, method: str, tolerance: float) -> Tensor:
    """SciPy; one trajectory only."""
    name = {"dopri5": "RK45", "bosh3": "RK23"}[method]

    def scalar(t: float, y: np.ndarray) -> np.ndarray:
        return field(torch.from_numpy(y)[None], torch.tensor([t], dtype=x0.dtype))[0].numpy()

    return torch.from_numpy(
        solve_ivp(scalar, (0, end), x0[0].numpy(), method=name, rtol=tolerance, atol=tolerance).y[:, -1]
    )[None]


def torchdiffeq_(field: Field, x0: Tensor, end: float, method: str, tolerance: float) -> Tensor:
    """torchdiffeq: one step size for the whole batch."""
    times = torch.tensor([0.0, end], dtype=x0.dtype)
    found = torchdiffeq.odeint(
        lambda t, x: field(x, t.expand(len(x))), x0, times, method=method, rtol=tolerance, atol=tolerance
    )
    return found[-1]  # type: ignore[index]  (a tuple only if events are requested)


def torchode_(field: Field, x0: Tensor, end: float, method: str, tolerance: float) -> Tensor:
    """torchode: a step size for each sample, all samples evaluated until the last is done."""
    term = _torchode.ODETerm(lambda t, x: field(x, t))
    step = {"dopri5": _torchode.Dopri5, "tsit5": _torchode.Tsit5}[method](term=term)
    control = _torchode.IntegralController(atol=tolerance, rtol=tolerance, term=term)
    solver = _torchode.AutoDiffAdjoint(step, control)
    ends = x0.new_zeros(len(x0)), x0.new_full((len(x0),), end)
    problem = _torchode.InitialValueProblem(y0=x0, t_start=ends[0], t_end=ends[1], t_eval=None)
    return solver.solve(problem).ys[:, -1]


LIBRARIES: dict[str, Run] = {"pathline": pathline, "scipy": scipy, "torchdiffeq": torchdiffeq_, "torchode": torchode_}
METHODS: dict[str, tuple[str, ...]] = {
    "dopri5": ("pathline", "scipy", "torchdiffeq", "torchode"),
    "bosh3": ("pathline", "scipy", "torchdiffeq"),
    "tsit5": ("pathline", "torchode"),
}
"""The libraries that offer each method under error control."""
