"""The clocks of lanes under error control: the first step, and what an attempt's error says of the next one.

Compiled loops over the lanes' records, like `clocks`; the rules themselves stand in `control`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solvers.clocks import Flags, Index, Numbers, Records
from solvers.compiled import compiled
from solvers.control import MAX_STEP_SLACK, MOST_NON_FINITE, SMALLEST_FACTOR, factor, first_guess, first_step
from solvers.errors import CODES, RUNNING, Status
from solvers.rows import END_ADAPTIVE

STRETCH = 1.01
"""A step that reaches this near to the end is stretched to it, as in Hairer's dopri5 code: no sliver is left over."""

_EPS = float(np.finfo(np.float64).eps)
_SUCCESS, _MAX_NFE = CODES[Status.SUCCESS], CODES[Status.MAX_NFE]
_NON_FINITE, _UNDERFLOW = CODES[Status.NON_FINITE], CODES[Status.STEP_UNDERFLOW]


@compiled
def first_slope(lanes: Records, index: Index, d0: Numbers, d1: Numbers, rows: Records) -> int:
    """v(x0, t0) is known: guess a trial step, or begin with the step that was given.

    Args:
        lanes: (n,) records.
        index: (m,) those that made their first call.
        d0, d1: (m,) scaled norms of state and velocity, NaN where one of them is not finite.
        rows: (R,) of the bank.

    Returns:
        How many lanes ended.
    """
    ended = 0
    for j in range(len(index)):
        lane = lanes[index[j]]
        if np.isnan(d0[j]) or np.isnan(d1[j]):
            lane.status = _NON_FINITE
        elif lane.h != 0.0:
            lane.row += 1  # past the trial step
            _begin(lane, lane.h, rows)
        else:
            span = abs(lane.t_end - lane.t)
            h0 = first_guess(d0[j], d1[j], min(span, lane.max_step))
            lane.d1 = d1[j]
            lane.h = np.copysign(h0, lane.t_end - lane.t)
            lane.t_next = lane.t_end if h0 >= span else lane.t + lane.h
        ended += lane.status != RUNNING
    return ended


@compiled
def end_first_step(lanes: Records, index: Index, d2: Numbers, rows: Records) -> int:
    """The velocity after the trial step is known: choose the first step.

    Args:
        lanes: (n,) records.
        index: (m,) those that made the trial step.
        d2: (m,) scaled norms of the change of the velocity, not finite where the velocity is not.
        rows: (R,) of the bank.

    Returns:
        How many lanes ended.
    """
    ended = 0
    for j in range(len(index)):
        lane = lanes[index[j]]
        h0 = abs(lane.h)
        slope = d2[j] / h0
        if np.isfinite(slope):
            h = first_step(h0, lane.d1, slope, lane.q, min(abs(lane.t_end - lane.t), lane.max_step))
        else:
            h = SMALLEST_FACTOR * h0
            if lane.group >= 0:  # a group goes on without it, as in an attempt
                lane.status = _NON_FINITE
        _begin(lane, np.copysign(h, lane.t_end - lane.t), rows)
        ended += lane.status != RUNNING
    return ended


@compiled
def end_adaptive(lanes: Records, index: Index, error: Numbers, rows: Records, accepted: Flags) -> int:
    """An attempt is complete: accept or reject it, and choose the next step.

    Args:
        lanes: (n,) records.
        index: (m,) those whose attempt ended.
        error: (m,) scaled errors, infinite for a stage that is not finite.
        rows: (R,) of the bank.
        accepted: (m,) receives the verdicts.

    Returns:
        How many lanes ended.
    """
    ended = 0
    for j in range(len(index)):
        lane = lanes[index[j]]
        if error[j] == np.inf:
            lane.bad += 1
            if lane.bad > MOST_NON_FINITE or lane.group >= 0:
                lane.status = _NON_FINITE
        else:
            lane.bad = 0
        h = lane.h * factor(error[j], lane.alpha, lane.beta, lane.before, lane.rejected == 1)
        accepted[j] = error[j] <= 1
        if accepted[j]:
            lane.before = error[j]
            lane.t = lane.t_next
            lane.row = rows[lane.done].restart
            if lane.t_next == lane.t_end:
                lane.status = _SUCCESS
            if np.isfinite(lane.wary) and not _beyond(lane, lane.mark, lane.t):
                lane.wary = np.inf
        elif np.isinf(lane.wary) or _beyond(lane, lane.t_next, lane.mark):
            # What this attempt met lies before its end: until then no step is longer than its error asks for.
            lane.wary, lane.mark = abs(h), lane.t_next
        lane.rejected = not accepted[j]
        _begin(lane, h, rows)
        ended += lane.status != RUNNING
    return ended


@compiled
def _beyond(lane: Any, one: float, other: float) -> bool:
    """Whether a lane comes to t = one later than to t = other."""
    return one > other if lane.h > 0 else one < other


@compiled
def _begin(lane: Any, h: float, rows: Records) -> None:
    """Set the next step, within max_step and cut at the end of the span, unless it is too small or max_nfe too low."""
    left = lane.t_end - lane.t
    h = np.copysign(min(abs(h), lane.max_step, lane.wary), h)
    cut = STRETCH * abs(h) >= abs(left) and abs(left) <= lane.max_step * MAX_STEP_SLACK
    lane.h = left if cut else h
    lane.t_next = lane.t_end if cut else lane.t + h
    if lane.status != RUNNING:
        return
    # A method without FSAL asks once more after an accepted step.
    again = rows[lane.row - 1].kind == END_ADAPTIVE
    if lane.nfe + lane.attempt + again > lane.max_nfe:
        lane.status = _MAX_NFE
    if not cut and abs(h) < 10 * _EPS * max(abs(lane.t), lane.span):
        # Steps that shrink to nothing before a non-finite stage fail for that reason.
        lane.status = _NON_FINITE if lane.bad > 0 else _UNDERFLOW
