"""Clocks: the time of each lane's next query, the end of its step, and the length of the step after that.

These are compiled loops over the lanes' records; the states are handled in `kernels_cpu` and `kernels_torch`. They work
on one lane at a time, in float64, so a lane cannot depend on the other lanes. The next step comes from the grid or,
under error control, from the rules in `control`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.compiled import Flags, Index, Numbers, Records, compiled
from solvers.control import MAX_NON_FINITE, MAX_STEP_SLACK, SMALLEST_FACTOR, factor, first_guess, first_step
from solvers.errors import CODES, RUNNING, Status
from solvers.plan import END_ADAPTIVE

STRETCH = 1.01
"""A step that would reach the end if it were longer by this factor is stretched to it, so that no sliver is left, as in
Hairer's dopri5 code."""

_EPS = float(np.finfo(np.float64).eps)
_SUCCESS, _MAX_NFE = CODES[Status.SUCCESS], CODES[Status.MAX_NFE]
_NON_FINITE, _UNDERFLOW = CODES[Status.NON_FINITE], CODES[Status.STEP_UNDERFLOW]


@compiled
def query_time(lane: Any, rows: Records) -> float:
    """The time that a lane asks for."""
    node = rows[lane.row].c
    # Nodes lie in [0, 1], and t + c h with c < 1 cannot round past the step's end.
    return lane.t_next if node == 1.0 else lane.t + node * lane.h


@compiled
def query_times(lanes: Records, rows: Records, t: NDArray[Any]) -> None:
    """Write the times of the lanes' next queries into t (n,), of any floating dtype; rows (R,) are the bank's."""
    for j in range(len(lanes)):
        t[j] = query_time(lanes[j], rows)


@compiled
def next_row(lane: Any, rows: Records) -> int:
    """Count a call of a lane, move it to its next row, and return the kind of the row just done."""
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
        kinds: (n,) receives the kind of the row that each lane has just done.

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
    """Indices of the lanes at a row of this kind."""
    indices, count = np.empty(len(kinds), dtype=np.int64), 0
    for j in range(len(kinds)):
        if kinds[j] == kind:
            indices[count] = j
            count += 1
    return indices[:count]


@compiled
def ended(lanes: Records) -> tuple[Index, Index]:
    """Indices of the lanes that have ended, and of those still running."""
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
    """Return copies of rows `gone` of an array (n, m), and move rows `stay`, ascending, to its front."""
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
    """Complete a step on a grid, and take the next one from the grid. A lane that failed stays where it was.

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
    lane.step += 1
    if lane.step > lane.last:
        lane.t = lane.t_next
        lane.status = _SUCCESS
        return True
    end = times[lane.step]
    if end != lane.t_next:  # else the step is repeated, from where it began
        lane.t = lane.t_next
    lane.t_next = end
    lane.h = lane.t_next - lane.t
    return False


@compiled
def end_steps(lanes: Records, index: Index, good: Flags, times: Numbers) -> int:
    """Apply `end_step` to lanes `index` (m,) with `good` (m,); return how many lanes ended."""
    ended = 0
    for m in range(len(index)):
        ended += end_step(lanes[index[m]], good[m], times)
    return ended


@compiled
def norms(lanes: Records, index: Index, sums: Numbers, width: int, errors: bool) -> Numbers:
    """Return the root mean square of the scaled values of lanes `index` (m,); the lanes of a group share one.

    Args:
        lanes: (n,) records.
        index: (m,) lanes. Neighbours of one group share a norm, which is taken over the finite ones among them and
            summed in lane order.
        sums: (m,) sums of squares over a lane's `width` numbers, NaN for a lane that is not finite.
        width: D.
        errors: whether lanes that are not finite get infinity instead of NaN.
    """
    norms = np.sqrt(sums / max(width, 1))
    first = 0
    while first < len(sums):
        group = lanes[index[first]].group
        end, total, count = first, 0.0, 0
        while end < len(sums) and lanes[index[end]].group == group and (group >= 0 or end == first):
            if np.isfinite(sums[end]):
                total, count = total + sums[end], count + 1
            end += 1
        if group >= 0:
            shared = np.sqrt(total / (count * max(width, 1)))
            for m in range(first, end):
                norms[m] = shared if np.isfinite(sums[m]) else np.nan
        first = end
    if errors:
        for m in range(len(norms)):
            if not np.isfinite(norms[m]):
                norms[m] = np.inf
    return norms


@compiled
def first_slope(lanes: Records, index: Index, d0: Numbers, d1: Numbers, rows: Records) -> int:
    """Now that v(x0, t0) is known, guess a trial step, or begin with the given first step.

    Args:
        lanes: (n,) records.
        index: (m,) lanes that made their first call.
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
    """Now that the velocity after the trial step is known, choose the first step.

    Args:
        lanes: (n,) records.
        index: (m,) lanes that made the trial step.
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
    """Complete an attempt: accept or reject it, and choose the next step.

    Args:
        lanes: (n,) records.
        index: (m,) lanes that ended an attempt.
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
            if lane.bad > MAX_NON_FINITE or lane.group >= 0:
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
            # The obstacle is before the end of this attempt; up to there, no step may be longer than this error allows.
            lane.wary, lane.mark = abs(h), lane.t_next
        lane.rejected = not accepted[j]
        _begin(lane, h, rows)
        ended += lane.status != RUNNING
    return ended


@compiled
def _beyond(lane: Any, one: float, other: float) -> bool:
    """Whether a lane reaches t = one after t = other."""
    return one > other if lane.h > 0 else one < other


@compiled
def _begin(lane: Any, h: float, rows: Records) -> None:
    """Set the next step, at most max_step and cut at the end of the span; end the lane if h or max_nfe is too small."""
    left = lane.t_end - lane.t
    h = np.copysign(min(abs(h), lane.max_step, lane.wary), h)
    cut = STRETCH * abs(h) >= abs(left) and abs(left) <= lane.max_step * MAX_STEP_SLACK
    lane.h = left if cut else h
    lane.t_next = lane.t_end if cut else lane.t + h
    if lane.status != RUNNING:
        return
    # A method without FSAL makes one more call after an accepted step.
    again = rows[lane.row - 1].kind == END_ADAPTIVE
    if lane.nfe + lane.attempt + again > lane.max_nfe:
        lane.status = _MAX_NFE
    if not cut and abs(h) < 10 * _EPS * max(abs(lane.t), lane.span):
        # If non-finite stages have shrunk the steps to nothing, they are the reason for the failure.
        lane.status = _NON_FINITE if lane.bad > 0 else _UNDERFLOW
