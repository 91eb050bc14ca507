"""Shared parts of the solver tests: fields with known answers, and velocities that record their calls."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from solvers import Status, catalogue
from solvers.errors import STATUSES
from solvers.integrate import Velocity
from solvers.lanes import Admission, Lanes
from solvers.tuned import TunedPlan, TunedPlans

ONE_STEP = tuple(name for name, entry in catalogue.solvers().items() if not (entry.multistep_order or entry.stochastic))
MULTISTEP = tuple(name for name, entry in catalogue.solvers().items() if entry.starts)
EXPONENTIAL = tuple(name for name, entry in catalogue.solvers().items() if entry.exponential)
ADAPTIVE = tuple(name for name, entry in catalogue.solvers().items() if entry.adaptive)
FIFTH_ORDER = tuple(name for name in ADAPTIVE if catalogue.find(name).order == 5)
DENSE = tuple(name for name in ADAPTIVE if catalogue.find(name).tableau.interpolant is not None)


def attempts_nfe(solver: str, steps: int) -> int:
    """Return the calls for a number of steps under error control, none rejected, once the first velocity is known."""
    tableau = catalogue.find(solver).tableau
    return steps * (tableau.stages - 1) + (0 if tableau.fsal else steps - 1)


def ones(rows: int = 1, width: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.ones(rows, width, dtype=dtype)


def cases(*settings: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Keyword arguments of `integrate`, for a loop."""
    return settings


def decay(x: Tensor, t: Tensor) -> Tensor:
    """y' = -y."""
    return -x


def oscillator(x: Tensor, t: Tensor) -> Tensor:
    """A circle: (x, y)' = (y, -x)."""
    return torch.stack((x[:, 1], -x[:, 0]), dim=1)


def logistic(x: Tensor, t: Tensor) -> Tensor:
    return 10 * x * (1 - x)


def logistic_exact(t: float) -> float:
    return 1 / (1 + 9 * math.exp(-10 * t))


def gaussian(x: Tensor, t: Tensor, m: float = 2.0, s: float = 0.5) -> Tensor:
    """The flow from N(0, 1) to N(m, s^2), with ends at m + s x0."""
    t = t[:, None]
    return m + (t * s**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * s**2) * (x - t * m)


def fall(x: Tensor, t: Tensor) -> Tensor:
    """y_i' = -w_i (1 + t) y_i^2, w from 1 to 1.5: smooth, neither linear nor autonomous, without special symmetries."""
    return -torch.linspace(1, 1.5, x.shape[1], dtype=x.dtype) * (1 + t[:, None]) * x**2


def fall_exact(x0: Tensor, t: float) -> Tensor:
    return x0 / (1 + x0 * torch.linspace(1, 1.5, x0.shape[1], dtype=x0.dtype) * (t + t * t / 2))


@dataclass
class Watched:
    """A velocity that counts its calls and rows, and records its arguments.

    With `ids`, the first coordinate of a state is the number of its trajectory, which the velocity does not change.
    """

    velocity: Velocity
    ids: bool = False
    calls: int = 0
    rows: int = 0
    queries: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    by_id: Counter[int] = field(default_factory=Counter)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        self.calls += 1
        self.rows += len(x)
        self.queries.append((x.clone(), t.clone()))
        if not self.ids:
            return self.velocity(x, t)
        self.by_id.update(int(number) for number in x[:, 0])
        return torch.cat((torch.zeros_like(x[:, :1]), self.velocity(x[:, 1:], t)), dim=1)

    @property
    def times(self) -> list[float]:
        return [float(value) for _, t in self.queries for value in t]


@dataclass
class Ended:
    """The end of one trajectory."""

    x: Tensor
    t: float
    nfe: int
    status: Status


def run(lanes: Lanes, velocity: Velocity, admissions: Sequence[Admission]) -> dict[tuple[int, int], Ended]:
    """Run admissions together to their ends; return them by (owner, index)."""
    lanes.admit(admissions)
    found: dict[tuple[int, int], Ended] = {}
    finished = lanes.collect()
    while True:
        if finished is not None:
            for k, (owner, index) in enumerate(zip(finished.owner, finished.index, strict=True)):
                found[int(owner), int(index)] = Ended(
                    finished.x[k].clone(), float(finished.t[k]), int(finished.nfe[k]), STATUSES[finished.status[k] - 1]
                )
        if not len(lanes):
            return found
        x, t = lanes.query()
        finished = lanes.absorb(velocity(x, t))


def same_bits(a: Tensor, b: Tensor) -> bool:
    whole = torch.int32 if a.dtype == torch.float32 else torch.int64
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(whole), b.contiguous().view(whole))


def slope(steps: Sequence[int], errors: Sequence[float]) -> float:
    """Return the observed order: minus the slope of log error over log steps, by regression."""
    return float(-np.polyfit(np.log(np.asarray(steps, dtype=float)), np.log(np.asarray(errors)), 1)[0])


TUNED = TunedPlans(
    {6: TunedPlan(np.linspace(0, 1, 7), np.tril(np.full((6, 6), 0.1)))}, {"ab4-9": TunedPlan(np.linspace(0, 1, 10))}
)
"""The plans marked `tuned` in the shared table of solvers as text."""
