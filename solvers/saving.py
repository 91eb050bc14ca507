"""States at requested times: at grid points for plans, by dense output under error control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.arithmetic import combine
from solvers.clocks import Index, Records
from solvers.errors import SolverError
from solvers.grids import Times, TimesSpec, apart, as_times, check_order, nearest, stands_for
from solvers.plan import Plan
from solvers.records import Admission, Saved
from solvers.rows import DEGREE

if TYPE_CHECKING:
    from solvers.lanes import Lanes


def save_start(lanes: Lanes, admission: Admission, records: Records) -> list[Saved]:
    """The starting states of an admission with these records, where its save times begin with the span.

    The lanes have not begun: only their records change.
    """
    times = admission.save_at
    if times is None or not len(times) or times[0] != admission.solve.t_span[0]:
        return []
    place = records["save"] - records["save_first"]
    records["save"] += 1
    return [Saved(records["owner"].copy(), records["index"].copy(), place, lanes.states.start_of(admission.x0))]


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


def check_save_at(solve: Plan, save_at: TimesSpec | None, name: str = "save_at") -> Times | None:
    """The save times of a request, checked against what it solves.

    Those that stand for a point of a plan's grid, or for an end of the span, become that point (see `times`).

    Args:
        solve: the request as resolved.
        save_at: the times; an array's dtype tells how they were rounded.
        name: what the argument is called in errors.

    Returns:
        (M,) float64, or None where there are none.

    Raises:
        SolverError: for times that are not finite, outside the span, not in its direction, off the grid of a plan (the
            message names the nearest grid point), or for a method without dense output.
    """
    if save_at is None:
        return None
    given = as_times(name, save_at)
    start, end = solve.t_span
    points = solve.times if solve.times is not None else np.array([start, end])
    near = nearest(given, points)
    on_point = stands_for(given, near, solve.t_span)
    times = np.where(on_point, near, given.astype(np.float64))
    for t in times[(times < min(start, end)) | (times > max(start, end))]:
        at, first, last = apart(float(t), start, end)
        raise SolverError(name, f"{name} = {at} is outside the span from {first} to {last}")
    check_order(name, given, start, end)
    for k in np.flatnonzero(np.diff(times) == 0):
        a, b = apart(float(given[k]), float(given[k + 1]))
        raise SolverError(name, f"{name} holds {a} and {b}, which both stand for {float(times[k])!r}; leave one out")
    if solve.times is not None:
        for k in np.flatnonzero(~on_point):
            at, _ = apart(float(given[k]), float(near[k]))
            raise SolverError(name, f"{name} = {at} is not a grid point; the nearest is {float(near[k])!r}")
    elif solve.rows.dense is None:
        raise SolverError(name, f"{solve.name} has no dense output; give it steps and save at grid points")
    return times
