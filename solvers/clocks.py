"""Each lane's clock: when it asks and when its steps end. How long the next step is, a grid says here.

Compiled loops over the lanes' records; the states themselves lie elsewhere (`host`, `device`). One lane at a time, in
float64, so what a lane does cannot depend on which other lanes there are. The clocks of lanes under error control go
on in `adaptive`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.compiled import compiled
from solvers.errors import CODES, RUNNING, Status

Records = Any
"""(n,) NumPy records, of `fields.LANE` or `fields.ROW`; type checkers know no fields of records."""
Index = NDArray[np.int64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]

_SUCCESS, _NON_FINITE = CODES[Status.SUCCESS], CODES[Status.NON_FINITE]


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
