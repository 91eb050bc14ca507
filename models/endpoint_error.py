"""Endpoint errors: distances of samples from the exact ends of their own paths.

The exact ends are a solution by DOPRI5 at a tight tolerance in float64 with the same weights.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import bdtr
from torch import Tensor

from models.guidance import Guided
from models.named_conditions import NamedConditions
from models.velocity import kind_of
from solvers import SolverSpec, Status
from solvers import compile as compiled
from solvers.integrate import Solution, integrate_indexed
from solvers.tuned import TunedPlans

TIGHT = 1e-9
"""Tolerance of the exact ends."""

COVERED, CONFIDENCE = 0.95, 0.95
"""The share of all samples within the limit of `limit_95`, and its confidence."""


@dataclass(frozen=True)
class Field:
    """A velocity with its conditions and guidance.

    Attributes:
        velocity: called as velocity(x, t), or velocity(x, t, condition) with conditions.
        conditions: one row for each sample, or None.
        takes: the conditioning of the model; needed only for guidance.
        guidance: strength of classifier-free guidance, or None.
    """

    velocity: Any
    conditions: Tensor | None = None
    takes: NamedConditions | None = None
    guidance: float | None = None

    def since(self, first: int) -> Field:
        """Return the field of the samples from index `first` on."""
        return self if self.conditions is None else replace(self, conditions=self.conditions[first:])

    def double(self) -> Field:
        """Return the field in float64."""
        given = self.conditions
        given = given.double() if given is not None and given.is_floating_point() else given
        return Field(copy.deepcopy(self.velocity).double(), given, self.takes, self.guidance)

    def __call__(self, x: Tensor, t: Tensor, index: NDArray[np.int64]) -> Tensor:
        """Evaluate states x of the samples `index`."""
        if self.conditions is None:
            return self.velocity(x, t)
        rows = self.conditions[torch.from_numpy(index)]
        if self.takes is None or self.guidance in (None, 1):
            return self.velocity(x, t, rows)
        return Guided(self.velocity, self.takes)(x, t, rows, torch.full_like(t, self.guidance))


@torch.no_grad()
def solve(
    field: Field,
    x0: Tensor,
    spec: SolverSpec,
    save_at: NDArray[np.float64] | None = None,
    progress: bool = False,
    plans: TunedPlans | None = None,
) -> Solution:
    """Solve from the noise x0 (samples, *event) to t = 1.

    Raises:
        SolverError: the solver does not support this dtype.
    """
    ends = kind_of(field.velocity).takes_ends
    return integrate_indexed(field, x0, compiled(spec, x0.dtype, plans), save_at, progress=progress, step_ends=ends)


def exact_ends(field: Field, x0: Tensor, tolerance: float = TIGHT) -> Tensor:
    """Solve in float64 with the same weights, by DOPRI5 at a tight tolerance.

    Returns:
        (samples, *event) float64; NaN for a sample that did not reach t = 1.
    """
    spec = SolverSpec(rtol=tolerance, atol=tolerance, controller="i", max_nfe=100_000)
    solution = solve(field.double(), x0.double(), spec)
    return torch.where(ended(solution).reshape(-1, *([1] * (x0.ndim - 1))), solution.x, torch.nan)


def endpoint_error(x: Tensor, ends: Tensor) -> float:
    """Return the root mean square distance of samples (n, *event) from their exact ends, over those that have one."""
    distance = (x.double() - ends).flatten(1).square().sum(1)
    return float(distance[distance.isfinite()].mean().sqrt())


def limit_95(distances: NDArray[np.float64]) -> float:
    """Return the distance that 95 % of all samples stay within, with 95 % confidence: an order statistic.

    The k-th smallest of n exceeds the 95 % quantile with probability P(Bin(n, 0.95) < k). Below 59 samples no k is
    large enough, and the largest distance is returned.
    """
    n = len(distances)
    k = min(n, int(np.searchsorted(bdtr(np.arange(n), n, COVERED), CONFIDENCE)) + 1)
    return float(np.sort(distances)[k - 1])


def ended(solution: Solution) -> Tensor:
    """Whether each sample (n,) reached t = 1."""
    return torch.tensor([status == Status.SUCCESS for status in solution.status])
