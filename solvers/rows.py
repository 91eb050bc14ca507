"""Rows: what a method asks of the network, one row for each call.

A row asks for the velocity at x + h sum_s a[s] K[s], t + c h, and stores it in K[slot]. Its kind says what
happens then: nothing, the end of a step (x moves on by h sum_s b[s] K[s]), or one of the two calls of the automatic
first step. Fixed and adaptive Runge-Kutta methods and multistep methods differ in their rows only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from solvers.tableaus import Tableau

MID, END_FIXED, END_ADAPTIVE, FIRST_SLOPE, FIRST_STEP = range(5)
"""Kinds of rows: inside a step; end of a step of a plan; end of an attempt under error control; v at the start; the
Euler step that sizes the first step."""

DEGREE = 4
"""Columns of the dense output: theta .. theta^4."""

ADAPTIVE_START = 2
"""The first two adaptive rows choose the first step; the attempt itself begins at this row."""


@dataclass(frozen=True, eq=False)
class Rows:
    """R rows for S slots.

    Attributes:
        a: (R, S) weights of the query, in units of h.
        b: (R, S) weights of the advance; zero but at the end of a step.
        e: (R, S) weights of the error estimate; zero but at the end of an adaptive step.
        stiff: (R, S) weights of y(end) - y(stage before), for the stiffness signal; all zero where there is none.
        bend: (R, S) weights of the velocity there minus the one before, for the same.
        c: (R,) nodes.
        slot: (R,) where the velocity goes.
        kind: (R,) what follows.
        next: (R,) the row after this one, counted from the first.
        restart: the row after an accepted adaptive step.
        fsal: whether the last velocity of an accepted step is the first of the next.
        dense: (S, DEGREE) dense output, or None.
    """

    a: NDArray[np.float64]
    b: NDArray[np.float64]
    e: NDArray[np.float64]
    stiff: NDArray[np.float64]
    bend: NDArray[np.float64]
    c: NDArray[np.float64]
    slot: NDArray[np.int64]
    kind: NDArray[np.int64]
    next: NDArray[np.int64]
    restart: int
    fsal: bool
    dense: NDArray[np.float64] | None

    @property
    def slots(self) -> int:
        """S, how many velocities are kept."""
        return self.a.shape[1]


@lru_cache(maxsize=64)
def fixed_rows(tableau: Tableau) -> Rows:
    """One step of a Runge-Kutta method: a row for each stage with a path to b, over and over."""
    s = tableau.used_stages
    b = np.zeros((s, s))
    b[-1] = tableau.b[:s]
    kind = np.full(s, MID)
    kind[-1] = END_FIXED
    return Rows(
        a=tableau.matrix[:s, :s],
        b=b,
        e=np.zeros((s, s)),
        stiff=np.zeros((s, s)),
        bend=np.zeros((s, s)),
        c=tableau.c[:s],
        slot=np.arange(s),
        kind=kind,
        next=(np.arange(s) + 1) % s,
        restart=0,
        fsal=False,
        dense=None,
    )


@lru_cache(maxsize=64)
def adaptive_rows(tableau: Tableau) -> Rows:
    """The two calls that choose the first step, then the stages after the first.

    The first stage of an attempt is known already: from the call at the start, from the last stage of the step before
    (FSAL), or from before a rejection. A method without FSAL asks for it again, in an extra row after each step.
    """
    s = tableau.stages
    end = ADAPTIVE_START + s - 2
    count = end + 1 if tableau.fsal else end + 2
    a, b, e, stiff, bend = (np.zeros((count, s)) for _ in range(5))
    a[1, 0] = 1.0
    a[ADAPTIVE_START : end + 1] = tableau.matrix[1:]
    b[end], e[end] = tableau.b, tableau.error
    if s > 2 and tableau.c[-1] == tableau.c[-2]:
        stiff[end] = np.array(tableau.b) - tableau.matrix[-2]
        bend[end, -2:] = -1, 1
    c, slot = np.zeros(count), np.zeros(count, dtype=np.int64)
    c[1], slot[1] = 1.0, 1
    c[ADAPTIVE_START : end + 1], slot[ADAPTIVE_START : end + 1] = tableau.c[1:], np.arange(1, s)
    kind = np.full(count, MID)
    kind[0], kind[1], kind[end] = FIRST_SLOPE, FIRST_STEP, END_ADAPTIVE
    following = np.arange(count) + 1
    following[end:] = ADAPTIVE_START
    interpolant = tableau.interpolant
    dense = None
    if interpolant is not None:
        dense = np.zeros((s, DEGREE))
        dense[:, : interpolant.shape[1]] = interpolant
    return Rows(
        a=a,
        b=b,
        e=e,
        stiff=stiff,
        bend=bend,
        c=c,
        slot=slot,
        kind=kind,
        next=following,
        restart=ADAPTIVE_START if tableau.fsal else end + 1,
        fsal=tableau.fsal,
        dense=dense,
    )
