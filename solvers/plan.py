"""What a request resolves to: a plan (a solver and a grid, compiled) or a method under error control."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.control import Controller
from solvers.rows import ADAPTIVE_START, Rows

Settings = dict[str, object]

MAX_STEP_SLACK = 1 + 1e-6
"""A last step may be so much longer than max_step: by the rounding of times, or of a max_step that came as float32."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A solver with fixed steps, compiled: compared and cached by identity.

    Attributes:
        rows: what is asked in each call.
        times: (N + 1,) the grid.
        nfe: exactly how many calls a lane takes.
        settings: the request as resolved, JSON-ready.
    """

    rows: Rows
    times: NDArray[np.float64]
    nfe: int
    settings: Settings = field(repr=False)

    @property
    def nfe_bound(self) -> int:
        """The most calls one lane can take."""
        return self.nfe

    @property
    def t_span(self) -> tuple[float, float]:
        """(start, end)."""
        return float(self.times[0]), float(self.times[-1])


@dataclass(frozen=True, eq=False)
class Adaptive:
    """A method under error control: compared and cached by identity.

    Attributes:
        rows: the two calls that choose the first step, then one attempt.
        q: order of the error estimate.
        controller: how the next step follows from the error.
        rtol, atol: tolerances.
        first_step: the size of the first step, None for the automatic one.
        max_step: the longest step, None for no bound.
        max_nfe: calls that a lane never exceeds.
        batch: one step size for all samples of the request, instead of one for each.
        t_span: (start, end).
        settings: the request as resolved, JSON-ready.
    """

    rows: Rows
    q: int
    controller: Controller
    rtol: float
    atol: float
    first_step: float | None
    max_step: float | None
    max_nfe: int
    batch: bool
    t_span: tuple[float, float]
    settings: Settings = field(repr=False)

    @property
    def nfe_bound(self) -> int:
        """The most calls one lane can take."""
        return self.max_nfe

    @property
    def attempt_nfe(self) -> int:
        """Calls of one attempted step; a method without FSAL takes one more before each attempt that follows a step."""
        return len(self.rows.c) - ADAPTIVE_START - (not self.rows.fsal)

    @property
    def nfe_least(self) -> float:
        """The fewest calls that reach the end of the span; infinite where max_step is lost beside it."""
        start, end = self.t_span
        steps = 1.0 if self.max_step is None else abs(end - start) / (self.max_step * MAX_STEP_SLACK)
        steps = max(1.0, float(math.ceil(steps))) if steps < 2**53 else math.inf
        again = 0.0 if self.rows.fsal else steps - 1
        return (2 if self.first_step is None else 1) + steps * self.attempt_nfe + again
