"""States at requested times: at grid points for plans, by dense output under error control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.arithmetic import combine
from solvers.clocks import Index
from solvers.errors import SolverError
from solvers.plan import Adaptive, Plan
from solvers.records import Admission, Saved
from solvers.rows import DEGREE

if TYPE_CHECKING:
    from solvers.lanes import Lanes


def save_start(lanes: Lanes, admission: Admission, first: int) -> None:
    """Save the states of an admission whose lanes begin at number `first`, where its save times begin with the span."""
    times = admission.save_at
    if times is None or not len(times) or times[0] != admission.solve.t_span[0]:
        return
    fresh = slice(first, first + len(admission.x0))
    _save(lanes, np.arange(fresh.start, fresh.stop), lanes.states.x[fresh].clone())


def save_grid(lanes: Lanes, index: Index) -> None:
    """Save the states of lanes `index` (m,) that just completed a step of a plan, where save times say so.

    Save times are points of the grid, see `check_save_at`, and steps end there exactly.
    """
    chosen, times = lanes.records.take(index), lanes.bank.times
    place = chosen["save"]
    due = (place < chosen["save_end"]) & (times[np.minimum(place, len(times) - 1)] == chosen["t"])
    if due.any():
        _save(lanes, index[due], lanes.states.x[torch.from_numpy(index[due]).to(lanes.states.x.device)])


def save_passed(lanes: Lanes, index: Index, after: Tensor) -> None:
    """Save the states at all save times that a step under error control has passed, by its dense output.

    Args:
        lanes: still at the start of the step.
        index: (m,) those that completed it.
        after: (m, D) their states at its end.
    """
    records, times = lanes.records, lanes.bank.times
    while True:
        chosen = records.take(index)
        place = chosen["save"]
        t = times[np.minimum(place, len(times) - 1)]
        passed = np.sign(chosen["h"]) * (t - chosen["t_next"]) <= 0
        due = np.flatnonzero(passed & (place < chosen["save_end"]))
        if not len(due):
            return
        _save(lanes, index[due], _inside(lanes, index[due], t[due], after[torch.from_numpy(due).to(after.device)]))


def _save(lanes: Lanes, index: Index, x: Tensor) -> None:
    """Note states x (m, D) of lanes `index` (m,) for the save time that each waits for."""
    chosen = lanes.records.take(index)
    lanes.saved.append(Saved(chosen["owner"], chosen["index"], chosen["save"] - chosen["save_first"], x))
    lanes.records["save"][index] += 1


def _inside(lanes: Lanes, index: Index, t: NDArray[np.float64], after: Tensor) -> Tensor:
    """(m, D) states at times t (m,) after the start and up to the end of a step."""
    states, bank, chosen = lanes.states, lanes.bank, lanes.records.take(index)
    where, at_end = (torch.from_numpy(each).to(after.device) for each in (index, (t == chosen["t_next"])[:, None]))
    curve = bank.curves[bank.rows["dense"][chosen["done"]]]
    powers = ((t - chosen["t"]) / chosen["h"])[:, None, None] ** np.arange(1, DEGREE + 1)
    weights = torch.from_numpy((curve * powers).sum(axis=2) * chosen["h"][:, None]).to(after.device, after.dtype)
    return torch.where(at_end, after, states.x[where] + combine(weights, states.k[where]))


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
