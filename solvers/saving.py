"""States at requested times: at grid points for plans, by dense output under error control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.arithmetic import combine
from solvers.errors import SolverError
from solvers.fields import F, I
from solvers.plan import Adaptive, Plan
from solvers.rows import DEGREE

if TYPE_CHECKING:
    from solvers.lanes import Lanes


@dataclass(frozen=True)
class Saved:
    """States at save times: owner (n,), index (n,), place in the owner's save_at (n,), x (n, D)."""

    owner: NDArray[np.int64]
    index: NDArray[np.int64]
    place: NDArray[np.int64]
    x: Tensor


def save_passed(
    lanes: Lanes,
    index: NDArray[np.int64],
    t_old: NDArray[np.float64],
    h: NDArray[np.float64],
    before: Tensor,
    after: Tensor,
    k: Tensor | None,
) -> None:
    """Save the states of all save times that a step has passed.

    Args:
        lanes: the lanes, still at the step's start.
        index: (n,) lanes that completed a step.
        t_old, h: (n,) its start and size.
        before, after: (n, D) the states at its ends.
        k: (n, S, D) its velocities, for the dense output; None for plans, which save at grid points only.
    """
    f, i, times = lanes.f, lanes.i, lanes.bank.times
    while True:
        place = i[I.SAVE, index]
        waiting = place < i[I.SAVE_END, index]
        if not waiting.any():
            return
        t = times[np.minimum(place, len(times) - 1)]
        direction = np.sign(h)
        due = np.flatnonzero(waiting & (direction * (t - f[F.T_NEXT, index]) <= 0))
        if not len(due):
            return
        some = torch.from_numpy(due).to(before.device)
        x = torch.where(torch.from_numpy(t[due] == t_old[due]).to(before.device)[:, None], before[some], after[some])
        if k is not None:
            lane = index[due]
            # I.ROW has moved on; the dense output is the same for all rows of a method.
            curve = lanes.bank.curves[lanes.bank.dense[i[I.ROW, lane]]]
            theta = (t[due] - t_old[due]) / h[due]
            weights = (curve * theta[:, None, None] ** np.arange(1, DEGREE + 1)).sum(axis=2) * h[due, None]
            inside = before[some] + combine(weights[:, None], k[some])[:, 0]
            at_end = torch.from_numpy((t[due] == t_old[due]) | (t[due] == f[F.T_NEXT, lane])).to(before.device)
            x = torch.where(at_end[:, None], x, inside)
        lane = index[due]
        lanes.saved.append(Saved(i[I.OWNER, lane], i[I.INDEX, lane], place[due] - i[I.SAVE_FIRST, lane], x))
        i[I.SAVE, lane] = place[due] + 1


def check_save_at(solve: Plan | Adaptive, save_at: Sequence[float] | None) -> NDArray[np.float64] | None:
    """The save times of a request, checked against what it solves.

    Returns:
        (M,) float64, or None where there are none.

    Raises:
        SolverError: for times that are not finite, outside the span, not in its direction, off the grid of a plan (the
            message names the nearest grid point), or for a method without dense output.
    """
    if save_at is None:
        return None
    times = np.array(save_at, dtype=np.float64).reshape(-1)
    start, end = solve.t_span
    for t in times[~np.isfinite(times)]:
        raise SolverError("save_at", f"save_at must hold finite times, got {t}")
    for t in times[(times < min(start, end)) | (times > max(start, end))]:
        raise SolverError("save_at", f"save_at = {t:g} is outside the span from {start:g} to {end:g}")
    if np.any(np.diff(times) * np.sign(end - start) <= 0):
        raise SolverError("save_at", f"save_at must move strictly from {start:g} towards {end:g}")
    if isinstance(solve, Plan):
        place = np.abs(solve.times[None] - times[:, None]).argmin(axis=1) if len(times) else np.zeros(0, dtype=int)
        for t, nearest in zip(times, solve.times[place], strict=True):
            if abs(t - nearest) > 1e-12 * max(1.0, abs(nearest)):
                raise SolverError("save_at", f"save_at = {t:g} is not a grid point; the nearest is {float(nearest)!r}")
        return solve.times[place]
    if solve.rows.dense is None:
        raise SolverError(
            "save_at", f"{solve.settings['name']} has no dense output; give it steps and save at grid points"
        )
    return times
