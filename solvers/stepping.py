"""Steps under error control: `states` tell what the data say, `adaptive` decides, and `states` carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from solvers import adaptive, clocks
from solvers.kernels_torch import group_norms
from solvers.clocks import Index, Numbers, Records
from solvers.compiled import compiled
from solvers.plan import END_ADAPTIVE, FIRST_SLOPE, FIRST_STEP
from solvers.saving import save_passed
from solvers.state import Attempts

if TYPE_CHECKING:
    from solvers.lanes import Lanes


def end_rows(lanes: Lanes, kinds: Index, present: int) -> int:
    """Finish what ends in this tick for lanes under error control.

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
            ended += finish(lanes, clocks.of_kind(kinds, kind))
    return ended


def _first_slope(lanes: Lanes, index: Index) -> int:
    norms = [_norms(lanes.records, index, sums, lanes.width) for sums in lanes.states.slopes(index, lanes.records)]
    return decide_first_slope(lanes, index, norms)


def decide_first_slope(lanes: Lanes, index: Index, norms: Sequence[Numbers]) -> int:
    """v(x0, t0) is known: guess a trial step, or begin with the step that was given."""
    return adaptive.first_slope(lanes.records, index, norms[0], norms[1], lanes.bank.rows)


def _first_step(lanes: Lanes, index: Index) -> int:
    d2 = _norms(lanes.records, index, lanes.states.change(index, lanes.records), lanes.width)
    return decide_first_step(lanes, index, d2)


def decide_first_step(lanes: Lanes, index: Index, d2: Numbers) -> int:
    """v after the trial step is known: choose the first step."""
    lanes.states.wipe(index[~np.isfinite(d2)])
    return adaptive.end_first_step(lanes.records, index, d2, lanes.bank.rows)


def _end_adaptive(lanes: Lanes, index: Index) -> int:
    records = lanes.records
    found = lanes.states.attempt(index, records, lanes.bank)
    return decide_attempt(lanes, index, found, _errors(records, index, found.sums, lanes.width))


def decide_attempt(lanes: Lanes, index: Index, found: Attempts, error: Numbers) -> int:
    """An attempt is complete: accept or reject it, and choose the next step."""
    records, bank, states = lanes.records, lanes.bank, lanes.states
    lanes.log.record(records, index, error, found.rho)
    if lanes.saving:
        passed = error <= 1
        save_passed(lanes, index[passed], found.after[torch.from_numpy(passed).to(found.after.device)])
    accepted = np.empty(len(index), dtype=np.bool_)
    ended = adaptive.end_adaptive(records, index, error, bank.rows, accepted)
    states.settle(index, found.after, accepted, records, bank)
    return ended


@compiled
def _norms(lanes: Records, index: Index, sums: Numbers, width: int) -> Numbers:
    """(m,) root mean squares of lanes `index`, one for each lane or group; NaN for what is not finite."""
    return group_norms(sums, width, _groups(lanes, index))


@compiled
def _errors(lanes: Records, index: Index, sums: Numbers, width: int) -> Numbers:
    """(m,) scaled errors, one for each lane or group; infinite for what is not finite."""
    errors = _norms(lanes, index, sums, width)
    for m in range(len(errors)):
        if not np.isfinite(errors[m]):
            errors[m] = np.inf
    return errors


@compiled
def _groups(lanes: Records, index: Index) -> Index:
    groups = np.empty(len(index), dtype=np.int64)
    for m in range(len(index)):
        groups[m] = lanes[index[m]].group
    return groups


_FINISH = {
    FIRST_SLOPE: _first_slope,
    FIRST_STEP: _first_step,
    END_ADAPTIVE: _end_adaptive,
}
