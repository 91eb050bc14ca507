"""Problems with known answers, float64, one trajectory each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from models.architectures.analytic import Gaussian, Mixture

Field = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """dx/dt = field(x, t) from x0 over [0, end]; field takes (rows, D) and (rows,)."""

    name: str
    field: Field
    x0: tuple[float, ...]
    end: float
    exact: tuple[float, ...] | None = None

    def start(self) -> Tensor:
        """Return the starting state, (1, D), float64."""
        return torch.tensor([self.x0], dtype=torch.float64)

    def answer(self) -> Tensor:
        """Return the state at the end by the closed form, or by DOP853 at its tightest tolerance."""
        if self.exact is not None:
            return torch.tensor([self.exact], dtype=torch.float64)

        def scalar(t: float, y: np.ndarray) -> np.ndarray:
            return self.field(torch.from_numpy(y)[None], torch.tensor([t], dtype=torch.float64))[0].numpy()

        found = solve_ivp(scalar, (0, self.end), self.x0, method="DOP853", rtol=3e-14, atol=1e-15)
        return torch.from_numpy(found.y[:, -1])[None]


def _stack(*columns: Tensor) -> Tensor:
    return torch.stack(columns, dim=1)


def _van_der_pol(x: Tensor, t: Tensor) -> Tensor:
    return _stack(x[:, 1], 2 * (1 - x[:, 0] ** 2) * x[:, 1] - x[:, 0])


def _brusselator(x: Tensor, t: Tensor) -> Tensor:
    reaction = x[:, 0] ** 2 * x[:, 1]
    return _stack(1 + reaction - 4 * x[:, 0], 3 * x[:, 0] - reaction)


def _lotka_volterra(x: Tensor, t: Tensor) -> Tensor:
    both = x[:, 0] * x[:, 1]
    return _stack(1.5 * x[:, 0] - both, both - 3 * x[:, 1])


def _kepler(x: Tensor, t: Tensor) -> Tensor:
    cube = (x[:, :2] ** 2).sum(dim=1, keepdim=True) ** 1.5
    return torch.cat((x[:, 2:], -x[:, :2] / cube), dim=1)


_GAUSSIAN, _MIXTURE = Gaussian(), Mixture()

PROBLEMS = (
    Problem("decay", lambda x, t: -x, (1.0,), 1.0, (math.exp(-1),)),
    Problem("oscillator", lambda x, t: _stack(x[:, 1], -x[:, 0]), (1.0, 0.0), 2 * math.pi, (1.0, 0.0)),
    Problem("logistic", lambda x, t: 10 * x * (1 - x), (0.1,), 1.0, (1 / (1 + 9 * math.exp(-10)),)),
    Problem("cosine", lambda x, t: x * torch.cos(4 * t[:, None]), (1.0,), 4.0, (math.exp(math.sin(16) / 4),)),
    Problem("van der Pol", _van_der_pol, (2.0, 0.0), 5.0),
    Problem("Brusselator", _brusselator, (1.5, 3.0), 5.0),
    Problem("Lotka-Volterra", _lotka_volterra, (1.0, 1.0), 5.0),
    Problem("Kepler, e = 0.5", _kepler, (0.5, 0.0, 0.0, math.sqrt(3)), 2 * math.pi, (0.5, 0.0, 0.0, math.sqrt(3))),
    Problem("Gaussian flow", _GAUSSIAN, (1.0, -0.7), 1.0, (2.5, 1.65)),
    Problem("mixture flow", _MIXTURE, (0.5, 0.3), 1.0),
)
