"""Each lane's clock: when it asks, when its steps end, how long the next one is.

Compiled loops over the lanes' records; the states themselves lie elsewhere (`host`, `device`). One lane at a time, in
float64, so what a lane does cannot depend on which other lanes there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.compiled import compiled
from solvers.control import MOST_NON_FINITE, SMALLEST_FACTOR, factor, first_guess, first_step
from solvers.errors import CODES, RUNNING, Status
from solvers.rows import END_ADAPTIVE

Records = Any
"""(n,) NumPy records, of `fields.LANE` or `fields.ROW`; type checkers know no fields of records."""
Index = NDArray[np.int64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]

STRETCH = 1.01
"""A step that reaches this near to the end is stretched to it, as in Hairer's dopri5 code: no sliver is left over."""

_EPS = float(np.finfo(np.float64).eps)
_SUCCESS, _MAX_NFE = CODES[Status.SUCCESS], CODES[Status.MAX_NFE]
_NON_FINITE, _UNDERFLOW = CODES[Status.NON_FINITE], CODES[Status.STEP_UNDERFLOW]


@compiled
def query_times(lanes: Records, rows: Records, t: NDArray[Any]) -> None:
    """Write the times that the lanes ask for into t (n,), of any floating dtype; rows (R,) are the bank's."""
    for j in range(len(lanes)):
        lane = lanes[j]
        node = rows[lane.row].c
        # Nodes lie in [0, 1], and t + c h with c < 1 cannot round past the step's end.
        t[j] = lane.t_next if node == 1.0 else lane.t + node * lane.h


@compiled
def next_row(lane: Any, rows: Records) -> int:
    """Count a call of a lane and move it to its next row; what kind of row that call was."""
    row = lane.row
    lane.done = row
    lane.nfe += 1
    lane.row = rows[row].next
    return rows[row].kind


@compiled
def next_rows(lanes: Records, rows: Records, kinds: Index) -> int:
    """Count a call for each lane and move it to its next row.

    Args:
        lanes: (n,) records.
        rows: (R,) of the bank.
        kinds: (n,) receives what ends with this call for each lane.

    Returns:
        A bit mask of the kinds that occur.
    """
    present: Any = 0
    for j in range(len(lanes)):
        kinds[j] = next_row(lanes[j], rows)
        present |= 1 << kinds[j]
    return present


@compiled
def of_kind(kinds: Index, kind: int) -> Index:
    """Which of the lanes are of a kind."""
    found, count = np.empty(len(kinds), dtype=np.int64), 0
    for j in range(len(kinds)):
        if kinds[j] == kind:
            found[count] = j
            count += 1
    return found[:count]


@compiled
def ended(lanes: Records) -> tuple[Index, Index]:
    """The lanes that have ended and those that run on."""
    gone, stay = np.empty(len(lanes), dtype=np.int64), np.empty(len(lanes), dtype=np.int64)
    out = left = 0
    for j in range(len(lanes)):
        if lanes[j].status == RUNNING:
            stay[left] = j
            left += 1
        else:
            gone[out] = j
            out += 1
    return gone[:out], stay[:left]


@compiled
def take_out(rows: NDArray[Any], gone: Index, stay: Index) -> NDArray[Any]:
    """Copies of rows `gone` of an array (n, m); rows `stay`, ascending, move to its front."""
    out = np.empty((len(gone), rows.shape[1]), dtype=rows.dtype)
    for j in range(len(gone)):
        for k in range(rows.shape[1]):
            out[j, k] = rows[gone[j], k]
    close_gaps(rows, stay)
    return out


@compiled
def close_gaps(rows: NDArray[Any], stay: Index) -> None:
    """Move rows `stay`, ascending, of an array (n, m) to its front."""
    for j in range(len(stay)):
        if stay[j] != j:
            for k in range(rows.shape[1]):
                rows[j, k] = rows[stay[j], k]


@compiled
def end_step(lane: Any, good: bool, times: Numbers) -> bool:
    """A step of a plan is complete: the grid gives the next one. A lane that failed stays where it was.

    Args:
        lane: its record.
        good: whether the new state is finite.
        times: (G,) grids of the bank.

    Returns:
        Whether the lane ended.
    """
    if not good:
        lane.status = _NON_FINITE
        return True
    lane.t = lane.t_next
    lane.step += 1
    if lane.step > lane.last:
        lane.status = _SUCCESS
        return True
    lane.t_next = times[lane.step]
    lane.h = lane.t_next - lane.t
    return False


@compiled
def end_steps(lanes: Records, index: Index, good: Flags, times: Numbers) -> int:
    """`end_step` for lanes `index` (m,), `good` (m,); how many lanes ended."""
    ended = 0
    for m in range(len(index)):
        ended += end_step(lanes[index[m]], good[m], times)
    return ended


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
            h0 = first_guess(d0[j], d1[j], span)
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
            h = first_step(h0, lane.d1, slope, lane.q, abs(lane.t_end - lane.t))
        else:
            h = SMALLEST_FACTOR * h0
            if lane.group >= 0:  # a group goes on without it, as in an attempt
                lane.status = _NON_FINITE
        _begin(lane, np.copysign(h, lane.t_end - lane.t), rows)
        ended += lane.status != RUNNING
    return ended


@compiled
def end_adaptive(lanes: Records, index: Index, error: Numbers, constant: Flags, rows: Records, accepted: Flags) -> int:
    """An attempt is complete: accept or reject it, and choose the next step.

    Args:
        lanes: (n,) records.
        index: (m,) those whose attempt ended.
        error: (m,) scaled errors, infinite for a stage that is not finite.
        constant: (m,) whether all stage velocities are bit-identical: then the rest of the span is one step.
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
            if constant[j]:
                h = lane.t_end - lane.t_next
            lane.before = error[j]
            lane.t = lane.t_next
            lane.row = rows[lane.done].restart
            if lane.cut == 1:
                lane.status = _SUCCESS
        lane.rejected = not accepted[j]
        _begin(lane, h, rows)
        ended += lane.status != RUNNING
    return ended


@compiled
def _begin(lane: Any, h: float, rows: Records) -> None:
    """Set the next step, cut at the end of the span, unless it is too small or does not fit max_nfe."""
    left = lane.t_end - lane.t
    cut = STRETCH * abs(h) >= abs(left)
    lane.cut = cut
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
