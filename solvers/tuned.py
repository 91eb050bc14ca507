"""Tuned plans: times and weights that were learned for one network, as data.

    x_(n+1) = x_n + c[n] x_0 + sum_(j <= n) w[n, j] v_j,    v_n = v(x_n, t_n),    n = 0, ..., N - 1,

a multistep method whose weights differ from step to step and reach back to the first velocity and the starting state:
N calls in N steps. A stock method on a tuned grid keeps its own weights and takes only the times.

References:
    Shaul et al. 2024, Bespoke Non-Stationary Solvers, arXiv:2403.01329. Frankel et al. 2025, S4S, arXiv:2502.17423.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solvers.errors import SolverError

TUNED = "tuned"
"""The name of tuned plans among solvers, and of tuned times among grids."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TunedPlan:
    """Times, and weights where these were learned too. Compared by identity.

    Attributes:
        times: (N + 1,) from 0 to 1.
        weights: (N, N) w[n, j] in units of t, zero for j > n; None for a tuned grid.
        x0_weights: (N,) c[n]; None for zeros.
    """

    times: Numbers
    weights: Numbers | None = None
    x0_weights: Numbers | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: for shapes that do not fit, numbers that are not finite, times that do not move strictly from 0
                to 1, or weights of velocities that are not known yet.
        """
        steps = len(self.times) - 1
        if steps < 1:
            raise ValueError("times: a plan needs at least two")
        shapes = {"times": (steps + 1,), "weights": (steps, steps), "x0_weights": (steps,)}
        for name, shape in shapes.items():
            if (array := getattr(self, name)) is not None:
                if array.shape != shape:
                    raise ValueError(f"{name}: have shape {list(array.shape)}, but {steps} steps need {list(shape)}")
                if not np.isfinite(array).all():
                    raise ValueError(f"{name}: contain a non-finite number")
        if self.times[0] != 0 or self.times[-1] != 1 or (np.diff(self.times) <= 0).any():
            raise ValueError("times: must move strictly from 0 to 1")
        if self.weights is not None and np.triu(self.weights, 1).any():
            raise ValueError("weights: use velocities that are not known yet")
        if self.weights is None and self.x0_weights is not None:
            raise ValueError("x0_weights: a tuned grid has the weights of its method")

    @cached_property
    def digest(self) -> str:
        """`sha256:` and the hash of its numbers as little-endian float64; equal plans give the same samples."""
        parts = [array.ravel() for array in (self.times, self.weights, self.x0_weights) if array is not None]
        return f"sha256:{hashlib.sha256(np.concatenate(parts).astype('<f8').tobytes()).hexdigest()}"

    @property
    def slots(self) -> int:
        """Number of velocities and starting states that a lane must keep for learned weights."""
        return len(self.times) - 1 + (self.x0_weights is not None)


@dataclass(frozen=True, eq=False)
class TunedPlans:
    """All plans and grids that were tuned for one checkpoint.

    Attributes:
        plans: learned plans by their number of steps, which is their NFE.
        grids: tuned times by the method and its steps, as `ab4-9`.
    """

    plans: Mapping[int, TunedPlan] = field(default_factory=dict)
    grids: Mapping[str, TunedPlan] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        """The tuned solvers as text: `tuned-6`, `ab4-9/tuned`."""
        return [*(f"{TUNED}-{steps}" for steps in sorted(self.plans)), *(f"{text}/{TUNED}" for text in self.grids)]

    @property
    def slots(self) -> int:
        """The slots that a lane needs for any of its learned plans."""
        return max((plan.slots for plan in self.plans.values()), default=0)

    @cached_property
    def digests(self) -> frozenset[str]:
        """The digests of all plans and grids."""
        return frozenset(plan.digest for plan in (*self.plans.values(), *self.grids.values()))

    def plan(self, steps: int) -> TunedPlan:
        """Return the learned plan with this number of steps.

        Raises:
            SolverError: there is none; the message lists the existing ones.
        """
        if steps not in self.plans:
            texts = ", ".join(f"{TUNED}-{texts}" for texts in sorted(self.plans)) or "none"
            raise SolverError("steps", f"steps = {steps}: no such plan was tuned for this model; available: {texts}")
        return self.plans[steps]

    def grid(self, text: str) -> TunedPlan:
        """Return the tuned times for a method and its steps.

        Raises:
            SolverError: there are none; the message lists the existing ones.
        """
        if text not in self.grids:
            texts = ", ".join(f"{texts}/{TUNED}" for texts in self.grids) or "none"
            raise SolverError("grid", f"no grid was tuned for {text} on this model; available: {texts}")
        return self.grids[text]
