"""States at requested times: at grid points for fixed steps, by dense output under error control."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.bank import Bank
from solvers.compiled import Index, Records
from solvers.errors import SolverError
from solvers.grids import Times, TimesSpec, as_times, check_order, distinct_texts, nearest, stands_for
from solvers.kernels_torch import combine
from solvers.plan import Plan
from solvers.state import States


def check_save_at(plan: Plan, save_at: TimesSpec | None, name: str = "save_at") -> Times | None:
    """Check the save times of a request against its plan and return them.

    Those that stand for a point of the grid, or for an end of the span, become that point (see `grids`).

    Args:
        plan: the compiled solver that the samples follow.
        save_at: the times; the dtype of an array determines how they were rounded.
        name: the argument's name in error messages.

    Returns:
        (M,) float64, or None if there are none.

    Raises:
        SolverError: for times that are not finite, outside the span, not in its direction or off the grid (the message
            names the nearest grid point), and for a method without dense output.
    """
    if save_at is None:
        return None
    requested = as_times(name, save_at)
    start, end = plan.t_span
    points = plan.times if plan.times is not None else np.array([start, end])
    near = nearest(requested, points)
    on_point = stands_for(requested, near, plan.t_span)
    times = np.where(on_point, near, requested.astype(np.float64))
    for t in times[(times < min(start, end)) | (times > max(start, end))]:
        at, first, last = distinct_texts(float(t), start, end)
        raise SolverError(name, f"{name} = {at} is outside the span from {first} to {last}")
    check_order(name, requested, start, end)
    for k in np.flatnonzero(np.diff(times) == 0):
        a, b = distinct_texts(float(requested[k]), float(requested[k + 1]))
        raise SolverError(name, f"{name} holds {a} and {b}, which both stand for {float(times[k])!r}; leave one out")
    if plan.times is not None:
        for k in np.flatnonzero(~on_point):
            at, _ = distinct_texts(float(requested[k]), float(near[k]))
            raise SolverError(name, f"{name} = {at} is not a grid point; the nearest is {float(near[k])!r}")
    elif plan.rows.dense is None:
        raise SolverError(name, f"{plan.name} has no dense output; give it steps and save at grid points")
    return times


@dataclass(frozen=True)
class SavedStates:
    """States at save times: owner (n,), index (n,), place in the owner's save_at (n,), x (n, D)."""

    owner: NDArray[np.int64]
    index: NDArray[np.int64]
    place: NDArray[np.int64]
    x: Tensor


def save(records: Records, index: Index, x: Tensor) -> SavedStates:
    """Save states x (m, D) of lanes `index` (m,) for each one's next save time, and move their records past it."""
    chosen = records.take(index)
    records["save"][index] += 1
    return SavedStates(chosen["owner"], chosen["index"], chosen["save"] - chosen["save_first"], x)


def save_grid(records: Records, states: States, bank: Bank, index: Index) -> list[SavedStates]:
    """Save the states of those lanes `index` (m,), which just completed a step on a grid, that reached a save time.

    Save times are points of the grid, see `check_save_at`, and steps end there exactly.
    """
    chosen, times = records.take(index), bank.times
    place = chosen["save"]
    due = (place < chosen["save_end"]) & (times[np.minimum(place, len(times) - 1)] == chosen["t"])
    if not due.any():
        return []
    return [save(records, index[due], states.x[torch.from_numpy(index[due]).to(states.x.device)])]


def save_passed(records: Records, states: States, bank: Bank, index: Index, after: Tensor) -> list[SavedStates]:
    """Save the states at all save times that a step under error control has passed, by its dense output.

    Args:
        records: (n,) of all lanes, still at the start of the step.
        states: of all lanes.
        bank: the dense outputs and save times.
        index: (m,) the lanes that completed the step.
        after: (m, D) their states at its end.
    """
    saved: list[SavedStates] = []
    while True:
        chosen = records.take(index)
        place = chosen["save"]
        t = bank.times[np.minimum(place, len(bank.times) - 1)]
        passed = np.sign(chosen["h"]) * (t - chosen["t_next"]) <= 0
        due = np.flatnonzero(passed & (place < chosen["save_end"]))
        if not len(due):
            return saved
        ends = after[torch.from_numpy(due).to(after.device)]
        saved.append(save(records, index[due], _inside(chosen.take(due), states, bank, index[due], t[due], ends)))


def _inside(chosen: Records, states: States, bank: Bank, index: Index, t: NDArray[np.float64], after: Tensor) -> Tensor:
    """Return states (m, D) at times t (m,) within the step, from the chosen records (m,) of lanes `index`."""
    where, at_end = (torch.from_numpy(array).to(after.device) for array in (index, (t == chosen["t_next"])[:, None]))
    curve = bank.curves[bank.rows["dense"][chosen["done"]]]
    powers = ((t - chosen["t"]) / chosen["h"])[:, None, None] ** np.arange(1, curve.shape[2] + 1)
    weights = torch.from_numpy((curve * powers).sum(axis=2) * chosen["h"][:, None]).to(after.device, after.dtype)
    return torch.where(at_end, after, states.x[where] + combine(weights, states.k[where]))
