"""Time outside the network: Pathline, plain loops and other libraries, with the paper's 546,818-parameter network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torchdiffeq
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from solvers import integrate
from studies.solvers.others import torchode_
from studies.solvers.problems import Field
from studies.solvers.timing import Counted, clock, median

STEPS, TOLERANCE = 20, 1e-4


def network(scale: float = 1.0) -> ResidualMLP:
    """Return the paper's network for 2-D data, untrained; `scale` multiplies its last layer so that paths bend."""
    torch.manual_seed(0)
    module = ResidualMLP(ResidualMLPConfig(dim=2)).eval().requires_grad_(False)
    for parameter in list(module.parameters())[-2:]:
        parameter.mul_(scale)
    return module


def plain_euler(field: Field, x: Tensor) -> Tensor:
    """Solve with Euler in a loop written by hand, with as many calls as RK4."""
    h = 1 / (4 * STEPS)
    for k in range(4 * STEPS):
        x = x + h * field(x, torch.full((len(x),), k * h))
    return x


def plain_rk4(field: Field, x: Tensor) -> Tensor:
    """Solve with RK4 in a loop written by hand."""
    h = 1 / STEPS
    for k in range(STEPS):
        t = torch.full((len(x),), k * h)
        k1 = field(x, t)
        k2 = field(x + h / 2 * k1, t + h / 2)
        k3 = field(x + h / 2 * k2, t + h / 2)
        k4 = field(x + h * k3, t + h)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return x


def diffeq(method: str) -> Callable[[Field, Tensor], object]:
    """Return a solve with torchdiffeq; its `rk4` is the 3/8 rule, at the same NFE."""
    options = {"step_size": 1 / STEPS} if method == "rk4" else None

    def solve(field: Field, x: Tensor) -> object:
        return torchdiffeq.odeint(
            lambda t, y: field(y, t.expand(len(y))), x, torch.tensor([0.0, 1.0]), method=method,
            rtol=TOLERANCE, atol=TOLERANCE, options=options,
        )  # fmt: skip

    return solve


SOLVES: dict[str, Callable[[Field, Tensor], object]] = {
    "pathline rk4": lambda field, x: integrate(field, x, solver="rk4", steps=STEPS),
    "pathline dopri5": lambda field, x: integrate(field, x, rtol=TOLERANCE, atol=TOLERANCE),
    "pathline dopri5, batch": lambda field, x: integrate(
        field, x, rtol=TOLERANCE, atol=TOLERANCE, error_control="batch", controller="i"
    ),
    "plain loop, euler": plain_euler,
    "plain loop, rk4": plain_rk4,
    "torchdiffeq rk4": diffeq("rk4"),
    "torchdiffeq dopri5": diffeq("dopri5"),
    "torchode dopri5": lambda field, x: torchode_(field, x, 1.0, "dopri5", TOLERANCE),
}


@dataclass(frozen=True)
class Overhead:
    """Results of one way to solve: calls, mean rows per call, total milliseconds, and time outside over inside."""

    name: str
    samples: int
    calls: int
    mean_rows: float
    milliseconds: float
    outside: float

    @property
    def milliseconds_a_call(self) -> float:
        """Milliseconds for each network call, everything included."""
        return self.milliseconds / self.calls


def measure(samples: int, repetitions: int) -> list[Overhead]:
    """Measure all of `SOLVES`, in turn; return medians."""
    module = network()
    x0 = torch.randn(samples, 2, generator=torch.Generator().manual_seed(0))
    total: dict[str, list[float]] = {name: [] for name in SOLVES}
    ratio: dict[str, list[float]] = {name: [] for name in SOLVES}
    calls: dict[str, tuple[int, float]] = {}
    with torch.no_grad():
        for repetition in range(repetitions + 1):
            for name, solve in SOLVES.items():
                counted = Counted(module)
                begin = clock()
                solve(counted, x0)
                seconds = clock() - begin
                if repetition:  # the first one warms up
                    total[name].append(seconds)
                    ratio[name].append((seconds - counted.inside) / counted.inside)
                calls[name] = counted.calls, counted.rows / counted.calls
    return [Overhead(name, samples, *calls[name], 1000 * median(total[name]), median(ratio[name])) for name in SOLVES]
