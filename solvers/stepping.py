"""The ends of steps: what happens to lanes whose row is the last of a step, vectorised over those lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers import control
from solvers.arithmetic import all_finite, all_of_group, combine, finite_lanes, group_norms, lane_sums, pick
from solvers.errors import CODES, RUNNING, Status
from solvers.fields import F, I
from solvers.part import Part
from solvers.rows import END_ADAPTIVE, END_FIXED, FIRST_SLOPE, FIRST_STEP
from solvers.saving import save_passed

if TYPE_CHECKING:
    from solvers.lanes import Lanes

Flags = NDArray[np.bool_]
STRETCH = 1.01
"""A step that reaches this near to the end is stretched to it, as in Hairer's dopri5 code: no sliver is left over."""

_EPS = np.finfo(np.float64).eps
_SUCCESS, _MAX_NFE = CODES[Status.SUCCESS], CODES[Status.MAX_NFE]
_NON_FINITE, _UNDERFLOW = CODES[Status.NON_FINITE], CODES[Status.STEP_UNDERFLOW]


def end_rows(lanes: Lanes, row: NDArray[np.int64], common: int | None) -> None:
    """Finish what ends in this tick.

    Args:
        lanes: the lanes, with the velocities of this tick stored and `I.ROW` moved on.
        row: (n,) the rows of this tick.
        common: the row of all lanes, if they share one.
    """
    if common is not None:
        _FINISH[int(lanes.bank.kind[common])](Part(lanes, row, None))
        return
    kinds = lanes.bank.kind.take(row)
    for kind, finish in _FINISH.items():
        index = np.flatnonzero(kinds == kind)
        if len(index):
            part = Part(lanes, row, index)
            finish(part)
            part.store()


def _end_fixed(part: Part) -> None:
    """x moves on by h sum b K; the grid gives the next step."""
    f, i, bank = part.f, part.i, part.bank
    used = int(bank.advance_used[part.row].max())
    after = part.x + combine(bank.weights[1, :used].take(part.row, axis=1) * f[F.H], part.k)
    good = None if all_finite(after) else finite_lanes(after)
    if good is not None:  # a lane that failed stays where it was
        i[I.STATUS, ~good] = _NON_FINITE
        after = torch.where(torch.from_numpy(good).to(after.device), after, part.x)
    if part.lanes.saving:
        save_passed(part, np.arange(len(part.index)) if good is None else np.flatnonzero(good), after, dense=False)
    part.move(part.index, after)
    i[I.STEP] += 1 if good is None else good
    step, last = i[I.STEP], i[I.LAST]
    t = f[F.T_NEXT].copy() if good is None else np.where(good, f[F.T_NEXT], f[F.T])
    f[F.T] = t
    done = step > last
    if done.any():
        i[I.STATUS, done] = _SUCCESS
        step = np.minimum(step, last)
    f[F.T_NEXT] = bank.times[step]
    f[F.H] = f[F.T_NEXT] - t


def _first_slope(part: Part) -> None:
    """v(x0, t0) is known: guess a trial step, or begin with the step that was given."""
    f, i = part.f, part.i
    x, v = part.x.double(), part.k[:, 0].double()
    good = finite_lanes(x) & finite_lanes(v)
    i[I.STATUS, ~good] = _NON_FINITE
    given = good & (f[F.H] != 0)
    i[I.ROW, given] += 1  # past the trial step
    _begin(part, f[F.H].copy(), given)
    automatic = good & ~given
    if not automatic.any():
        return
    scale = part.scale(x.abs())
    d0, d1 = (_norms(part, lane_sums((values / scale) ** 2), automatic) for values in (x, v))
    span = np.abs(f[F.T_END] - f[F.T])
    with np.errstate(invalid="ignore"):
        h0 = control.first_guess(d0, d1, span)
    h = np.copysign(h0, f[F.T_END] - f[F.T])
    f[F.D1, automatic] = d1[automatic]
    f[F.H, automatic] = h[automatic]
    f[F.T_NEXT, automatic] = np.where(h0 >= span, f[F.T_END], f[F.T] + h)[automatic]


def _first_step(part: Part) -> None:
    """v after the trial step is known: choose the first step."""
    f = part.f
    change = (part.k[:, 1] - part.k[:, 0]).double()
    h0 = np.abs(f[F.H])
    every = np.ones(len(h0), dtype=bool)
    d2 = _norms(part, lane_sums((change / part.scale(part.x.double().abs())) ** 2), every) / h0
    with np.errstate(invalid="ignore"):
        h = control.first_step(h0, f[F.D1], d2, f[F.Q], np.abs(f[F.T_END] - f[F.T]))
    broken = ~np.isfinite(d2)
    if broken.any():
        h[broken] = control.SMALLEST_FACTOR * h0[broken]
        part.wipe(np.flatnonzero(broken))
        part.i[I.STATUS, broken & (part.groups >= 0)] = _NON_FINITE  # a group goes on without it, as in an attempt
    _begin(part, np.copysign(h, f[F.T_END] - f[F.T]), every)


def _end_adaptive(part: Part) -> None:
    """An attempt is complete: accept or reject it, and choose the next step."""
    f, i, bank = part.f, part.i, part.bank
    h, t = f[F.H].copy(), f[F.T].copy()
    used = int(bank.slot[part.row].max()) + 1
    weights = bank.weights[1:, :used].take(part.row, axis=2)
    weights[:3] *= h  # all but the bend, which is a difference of velocities
    advance, error_vector, drift, bend = combine(weights, part.k).unbind(0)
    after = part.x + advance
    wide = after.double()
    scale = part.scale(torch.maximum(part.x.double().abs(), wide.abs()))
    # 0 * after is 0 unless the new state is not finite: then the error must not be finite either.
    sums = lane_sums((error_vector.double() / scale) ** 2 + 0.0 * wide)
    error = _norms(part, sums, np.ones(len(h), dtype=bool))
    finite = np.isfinite(error)
    error[~finite] = np.inf
    accepted = error <= 1
    part.lanes.log.record(i[I.LOG], t, h, error, accepted, _stiffness(h, bend.double(), drift.double()))

    if not finite.all() or i[I.BAD].any():
        _give_up(part, finite)
    factor = control.factor(error, f[F.ALPHA], f[F.BETA], f[F.BEFORE], i[I.REJECTED] == 1)
    proposal = h * factor
    if accepted.any():
        constant = _constant_field(part) & accepted
        if constant.any():
            proposal = np.where(constant, f[F.T_END] - f[F.T_NEXT], proposal)
        _accept(part, accepted, after, error)
    i[I.REJECTED] = ~accepted
    if not accepted.all():
        part.wipe(np.flatnonzero(~accepted))
    _begin(part, proposal, np.ones(len(h), dtype=bool))


def _accept(part: Part, accepted: Flags, after: Tensor, error: NDArray[np.float64]) -> None:
    f, i, bank = part.f, part.i, part.bank
    some = np.flatnonzero(accepted)
    if part.lanes.saving:
        save_passed(part, some, after, dense=True)
    part.move(some, after)
    f[F.BEFORE] = np.where(accepted, error, f[F.BEFORE])
    f[F.T] = np.where(accepted, f[F.T_NEXT], f[F.T])
    i[I.STATUS, accepted & (i[I.CUT] == 1)] = _SUCCESS
    i[I.ROW] = np.where(accepted, bank.restart[part.row], i[I.ROW])
    fsal = some[bank.fsal[part.row[some]]]
    if len(fsal):
        part.restart_from_last(fsal)


def _give_up(part: Part, finite: Flags) -> None:
    """End lanes with a non-finite stage: at once in a group, which goes on without them; else after some retries."""
    i = part.i
    i[I.BAD] = np.where(finite, 0, i[I.BAD] + 1)
    hopeless = (i[I.BAD] > control.MOST_NON_FINITE) | (~finite & (part.groups >= 0))
    i[I.STATUS, hopeless] = _NON_FINITE


def _begin(part: Part, h: NDArray[np.float64], some: Flags) -> None:
    """Set the next step of some lanes, cut at the end of the span, unless it is too small or does not fit max_nfe."""
    f, i = part.f, part.i
    t, end = f[F.T], f[F.T_END]
    left = end - t
    cut = STRETCH * np.abs(h) >= np.abs(left)
    f[F.H] = np.where(some, np.where(cut, left, h), f[F.H])
    f[F.T_NEXT] = np.where(some, np.where(cut, end, t + h), f[F.T_NEXT])
    i[I.CUT] = np.where(some, cut, i[I.CUT])
    running = some & (i[I.STATUS] == RUNNING)
    smallest = 10 * _EPS * np.maximum(np.abs(t), f[F.SPAN])
    lost = running & ~cut & (np.abs(h) < smallest)
    # A method without FSAL asks once more after an accepted step.
    again = part.bank.kind[np.maximum(i[I.ROW], 1) - 1] == END_ADAPTIVE
    spent = running & (i[I.NFE] + i[I.ATTEMPT] + again > i[I.MAX_NFE])
    if spent.any() or lost.any():
        i[I.STATUS, spent] = _MAX_NFE
        # Steps that shrink to nothing before a non-finite stage fail for that reason.
        i[I.STATUS, lost] = np.where(i[I.BAD, lost] > 0, _NON_FINITE, _UNDERFLOW)


def _norms(part: Part, sums: NDArray[np.float64], some: Flags) -> NDArray[np.float64]:
    """Error norms of some lanes; the others do not enter the norm of their group."""
    return group_norms(np.where(some, sums, np.nan), part.lanes.width, part.groups)


def _stiffness(h: NDArray[np.float64], bend: Tensor, drift: Tensor) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.sqrt(lane_sums(bend**2) / lane_sums(drift**2))
    return np.where(np.isfinite(rho), np.abs(h) * rho, np.nan)


def _constant_field(part: Part) -> Flags:
    """Whether all stage velocities of the attempt are bit-identical."""
    k = part.k
    same = (k[:, 1] == k[:, 0]).all(dim=0).cpu().numpy().copy()
    chosen = np.flatnonzero(same)
    if len(chosen):
        some = pick(k, chosen)
        last = torch.from_numpy(part.bank.slot[part.row[chosen]]).to(k.device)
        unused = torch.arange(k.shape[1], device=k.device)[:, None] > last
        same[chosen] = ((some == some[:, :1]).all(dim=0) | unused).all(dim=0).cpu().numpy()
    return all_of_group(same, part.groups)


_FINISH = {
    END_FIXED: _end_fixed,
    FIRST_SLOPE: _first_slope,
    FIRST_STEP: _first_step,
    END_ADAPTIVE: _end_adaptive,
}
