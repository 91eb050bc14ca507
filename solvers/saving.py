"""States at requested times: at grid points for plans, by dense output under error control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.arithmetic import combine, pick
from solvers.errors import SolverError
from solvers.fields import F, I
from solvers.plan import Adaptive, Plan
from solvers.records import Saved
from solvers.rows import DEGREE

if TYPE_CHECKING:
    from solvers.part import Part


def save_passed(part: Part, some: NDArray[np.int64], after: Tensor, *, dense: bool) -> None:
    """Save the states of all save times that a step has passed.

    Args:
        part: lanes at the end of a step, still at its start.
        some: which of them completed it.
        after: (D, m) the states at its end, for all lanes of the part.
        dense: interpolate between the ends; otherwise save times are grid points.
    """
    f, i, times = part.f, part.i, part.bank.times
    while True:
        place = i[I.SAVE, some]
        waiting = place < i[I.SAVE_END, some]
        t = times[np.minimum(place, len(times) - 1)]
        due = waiting & (np.sign(f[F.H, some]) * (t - f[F.T_NEXT, some]) <= 0)
        if not due.any():
            return
        lane, t, place = some[due], t[due], place[due]
        x = _state_at(part, lane, t, after, dense)
        part.lanes.saved.append(Saved(i[I.OWNER, lane], i[I.INDEX, lane], place - i[I.SAVE_FIRST, lane], x))
        i[I.SAVE, lane] = place + 1


def _state_at(part: Part, lane: NDArray[np.int64], t: NDArray[np.float64], after: Tensor, dense: bool) -> Tensor:
    begin, h = part.f[F.T, lane], part.f[F.H, lane]
    before, after, k = (pick(values, lane) for values in (part.x, after, part.k))
    at_begin, at_end = (torch.from_numpy(t == end).to(after.device) for end in (begin, part.f[F.T_NEXT, lane]))
    if not dense:
        return torch.where(at_begin, before, after).t()
    curve = part.bank.curves[part.bank.dense[part.row[lane]]]
    powers = ((t - begin) / h)[:, None, None] ** np.arange(1, DEGREE + 1)
    weights = (curve * powers).sum(axis=2).T * h
    inside = before + combine(weights, k)
    return torch.where(at_end, after, torch.where(at_begin, before, inside)).t()


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
    try:
        times = np.array(save_at, dtype=np.float64)
    except (TypeError, ValueError):
        raise SolverError("save_at", f"save_at must hold numbers, got {save_at!r}") from None
    if times.ndim != 1:
        raise SolverError("save_at", f"save_at must be a list of times, got {save_at!r}")
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
