"""A velocity with its conditions and guidance, and its samples: solved offline, from noise to data."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.conditions import NamedConditions, rows_at
from models.guidance import guided
from models.velocity import Condition, kind_of
from solvers import SolverSpec
from solvers import compile as compiled
from solvers.integrate import Solution, integrate_indexed
from solvers.tuned import TunedPlans


@dataclass(frozen=True)
class Field:
    """A velocity with its conditions and guidance.

    Attributes:
        velocity: called as velocity(x, t), or velocity(x, t, condition) with conditions.
        conditions: one row for each sample, as the network takes them, or None.
        takes: the conditioning of the model; needed for guidance, and for vectors in float64.
        guidance: strength of classifier-free guidance, one for all samples or one for each (n,); or None.
        first: the row of sample 0.
    """

    velocity: Any
    conditions: Condition | None = None
    takes: NamedConditions | None = None
    guidance: float | Tensor | None = None
    first: int = 0

    def double(self) -> Field:
        """Return the field in float64, with conditions in the dtypes that it then takes."""
        velocity, conditions = copy.deepcopy(self.velocity).double(), self.conditions
        if conditions is not None and self.takes is not None:
            conditions = self.takes.cast(conditions, torch.float64)
        return replace(self, velocity=velocity, conditions=conditions)

    def __call__(self, x: Tensor, t: Tensor, index: NDArray[np.int64]) -> Tensor:
        """Evaluate states x of the samples `index`."""
        if self.conditions is None:
            return self.velocity(x, t)
        place = torch.from_numpy(index) + self.first
        rows = rows_at(self.conditions, place)
        if self.takes is None or self.guidance is None:
            return self.velocity(x, t, rows)
        strength = self.guidance[place].to(t.dtype) if isinstance(self.guidance, Tensor) else self.guidance
        return guided(self.velocity, self.takes, x, t, rows, t.new_ones(len(t)) * strength)


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
