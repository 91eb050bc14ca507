"""The ends of steps: `states` tell what the data say, `clocks` decide, and `states` carry it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from solvers import clocks
from solvers.arithmetic import all_of_group, group_norms
from solvers.clocks import Flags, Index, Numbers
from solvers.rows import END_ADAPTIVE, END_FIXED, FIRST_SLOPE, FIRST_STEP
from solvers.saving import save_passed

if TYPE_CHECKING:
    from solvers.lanes import Lanes


def end_rows(lanes: Lanes, kinds: Index, present: int) -> int:
    """Finish what ends in this tick.

    Args:
        lanes: the lanes, with the velocities of this tick stored and their rows moved on.
        kinds: (n,) what ends for each.
        present: bit mask of the kinds that occur.

    Returns:
        How many lanes ended.
    """
    ended = 0
    for kind, finish in _FINISH.items():
        if present >> kind & 1:
            ended += finish(lanes, np.flatnonzero(kinds == kind))
    return ended


def _end_fixed(lanes: Lanes, index: Index) -> int:
    """x moves on by h sum b K; the grid gives the next step."""
    after, good = lanes.states.advance(index, lanes.records, lanes.bank)
    if lanes.saving:
        save_passed(lanes, index[good], _chosen(after, good), dense=False)
    lanes.states.settle(index, after, good, lanes.records, lanes.bank)
    return clocks.end_fixed(lanes.records, index, good, lanes.bank.times)


def _first_slope(lanes: Lanes, index: Index) -> int:
    """v(x0, t0) is known: guess a trial step, or begin with the step that was given."""
    d0, d1 = (_norms(lanes, index, sums) for sums in lanes.states.slopes(index, lanes.records))
    return clocks.first_slope(lanes.records, index, d0, d1, lanes.bank.kind)


def _first_step(lanes: Lanes, index: Index) -> int:
    """v after the trial step is known: choose the first step."""
    d2 = _norms(lanes, index, lanes.states.change(index, lanes.records))
    lanes.states.wipe(index[~np.isfinite(d2)])
    return clocks.end_first_step(lanes.records, index, d2, lanes.bank.kind)


def _end_adaptive(lanes: Lanes, index: Index) -> int:
    """An attempt is complete: accept or reject it, and choose the next step."""
    records, bank, states = lanes.records, lanes.bank, lanes.states
    found = states.attempt(index, records, bank)
    error, constant = _norms(lanes, index, found.sums), found.constant
    error[~np.isfinite(error)] = np.inf
    if lanes.grouped:
        constant = all_of_group(constant, records["group"][index])
    lanes.log.record(records, index, error, found.rho)
    if lanes.saving:
        passed = error <= 1
        save_passed(lanes, index[passed], _chosen(found.after, passed), dense=True)
    accepted = np.empty(len(index), dtype=np.bool_)
    ended = clocks.end_adaptive(records, index, error, constant, bank.restart, bank.kind, accepted)
    states.settle(index, found.after, accepted, records, bank)
    return ended


def _norms(lanes: Lanes, index: Index, sums: Numbers) -> Numbers:
    """(m,) root mean squares, one for each lane or group."""
    if lanes.grouped:
        return group_norms(sums, lanes.width, lanes.records["group"][index])
    return np.sqrt(sums / max(lanes.width, 1))


def _chosen(values: Tensor, flags: Flags) -> Tensor:
    return values[torch.from_numpy(flags).to(values.device)]


_FINISH = {
    END_FIXED: _end_fixed,
    FIRST_SLOPE: _first_slope,
    FIRST_STEP: _first_step,
    END_ADAPTIVE: _end_adaptive,
}
