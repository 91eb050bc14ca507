"""What a request resolves to: a plan (a solver and a grid, compiled) or a method under error control."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.control import Controller
from solvers.rows import Rows

Settings = dict[str, object]


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
    max_nfe: int
    batch: bool
    t_span: tuple[float, float]
    settings: Settings = field(repr=False)

    @property
    def nfe_bound(self) -> int:
        """The most calls one lane can take."""
        return self.max_nfe
