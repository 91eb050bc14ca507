"""The ends of steps: what happens to lanes whose row is the last of a step, vectorised over those lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from solvers import control
from solvers.arithmetic import all_of_group, combine, finite_rows, group_norms, pick, put, row_sums
from solvers.errors import CODES, Status
from solvers.fields import F, I
from solvers.rows import END_ADAPTIVE, END_FIXED, FIRST_SLOPE, FIRST_STEP
from solvers.saving import save_passed

if TYPE_CHECKING:
    from solvers.lanes import Lanes

Index = NDArray[np.int64]
STRETCH = 1.01
"""A step that reaches this near to the end is stretched to it, as in Hairer's dopri5 code: no sliver is left over."""


def end_rows(lanes: Lanes, row: Index, kinds: Index) -> None:
    """Finish what ends in this tick.

    Args:
        lanes: the lanes, with the velocities of this tick stored and `I.ROW` moved on.
        row: (n,) the rows of this tick.
        kinds: (n,) their kinds.
    """
    for kind, finish in _FINISH.items():
        index = np.flatnonzero(kinds == kind)
        if len(index):
            finish(lanes, index, row[index])


def _end_fixed(lanes: Lanes, index: Index, row: Index) -> None:
    """x moves on by h sum b K; the grid gives the next step."""
    f, i, bank = lanes.f, lanes.i, lanes.bank
    h = f[F.H, index]
    weights = bank.weights[row, 1] * h[:, None]
    used = int(np.flatnonzero(weights.any(axis=0)).max(initial=0)) + 1
    before = pick(lanes.x, index)
    after = before + combine(weights[:, None, :used], pick(lanes.k, index))[:, 0]
    good = finite_rows(after)
    if not good.all():
        i[I.STATUS, index[~good]] = CODES[Status.NON_FINITE]
        after = torch.where(torch.from_numpy(good).to(after.device)[:, None], after, before)
    t_old, t_new = f[F.T, index], f[F.T_NEXT, index]
    save_passed(lanes, index[good], t_old[good], h[good], before[good], after[good], None)
    lanes.x = put(lanes.x, index, after)
    step = i[I.STEP, index] + good
    i[I.STEP, index] = step
    f[F.T, index] = np.where(good, t_new, t_old)
    done = step > i[I.LAST, index]
    following = bank.times[np.minimum(step, i[I.LAST, index])]
    f[F.T_NEXT, index] = following
    f[F.H, index] = following - f[F.T, index]
    i[I.STATUS, index[done]] = CODES[Status.SUCCESS]


def _first_slope(lanes: Lanes, index: Index, row: Index) -> None:
    """v(x0, t0) is known: guess a trial step, or begin with the step that was given."""
    f, i = lanes.f, lanes.i
    x, v = pick(lanes.x, index).double(), pick(lanes.k, index)[:, 0].double()
    good = finite_rows(x) & finite_rows(v)
    i[I.STATUS, index[~good]] = CODES[Status.NON_FINITE]
    given = f[F.H, index] != 0
    start = index[good & given]
    if len(start):
        _begin(lanes, start, f[F.H, start])
        i[I.ROW, start] += 1  # past the trial step
    automatic = good & ~given
    if not automatic.any():
        return
    index = index[automatic]
    x, v = pick(x, np.flatnonzero(automatic)), pick(v, np.flatnonzero(automatic))
    scale = _scale(lanes, index, x.abs())
    groups = i[I.GROUP, index]
    d0 = group_norms(row_sums((x / scale) ** 2), lanes.width, groups)
    d1 = group_norms(row_sums((v / scale) ** 2), lanes.width, groups)
    span = np.abs(f[F.T_END, index] - f[F.T, index])
    h0 = control.first_guess(d0, d1, span)
    f[F.D1, index] = d1
    sign = np.sign(f[F.T_END, index] - f[F.T, index])
    f[F.H, index] = h0 * sign
    f[F.T_NEXT, index] = np.where(h0 >= span, f[F.T_END, index], f[F.T, index] + h0 * sign)


def _first_step(lanes: Lanes, index: Index, row: Index) -> None:
    """v after the trial step is known: choose the first step."""
    f, i = lanes.f, lanes.i
    k = pick(lanes.k, index)
    change = (k[:, 1] - k[:, 0]).double()
    scale = _scale(lanes, index, pick(lanes.x, index).double().abs())
    h0 = np.abs(f[F.H, index])
    d2 = group_norms(row_sums((change / scale) ** 2), lanes.width, i[I.GROUP, index]) / h0
    span = np.abs(f[F.T_END, index] - f[F.T, index])
    with np.errstate(invalid="ignore"):
        h = control.first_step(h0, f[F.D1, index], d2, f[F.Q, index], span)
    h = np.where(np.isfinite(h), h, control.SMALLEST_FACTOR * h0)
    _wipe(lanes, index[~np.isfinite(d2)])
    _begin(lanes, index, np.copysign(h, f[F.T_END, index] - f[F.T, index]))


def _end_adaptive(lanes: Lanes, index: Index, row: Index) -> None:
    """An attempt is complete: accept or reject it, and choose the next step."""
    f, i, bank = lanes.f, lanes.i, lanes.bank
    h, t = f[F.H, index], f[F.T, index]
    x, k = pick(lanes.x, index), pick(lanes.k, index)
    used = int(bank.slot[row].max()) + 1
    weights = bank.weights[row, 1:, :used]
    weights[:, :3] *= h[:, None, None]  # all but the bend, which is a difference of velocities
    advance, error_vector, drift, bend = combine(weights, k).unbind(1)
    after = x + advance
    wide = after.double()
    scale = _scale(lanes, index, torch.maximum(x.double().abs(), wide.abs()))
    # 0 * after is 0 unless the new state is not finite: then the error must not be finite either.
    sums = row_sums((error_vector.double() / scale) ** 2 + 0.0 * wide)
    groups = i[I.GROUP, index]
    error = group_norms(sums, lanes.width, groups)
    finite = np.isfinite(error)
    error[~finite] = np.inf
    accepted = error <= 1
    stiffness = _stiffness(h, bend.double(), drift.double())
    lanes.log.record(i[I.LOG, index], t, h, error, accepted.astype(np.float64), stiffness)

    _give_up(lanes, index, finite, groups)
    after_rejection = i[I.REJECTED, index] == 1
    change = control.factor(error, f[F.ALPHA, index], f[F.BETA, index], f[F.BEFORE, index], after_rejection)
    i[I.REJECTED, index] = ~accepted
    proposal = h * change

    yes = np.flatnonzero(accepted)
    if len(yes):
        constant = _constant_field(k, bank.slot[row], groups) & accepted
        proposal = np.where(constant, f[F.T_END, index] - f[F.T_NEXT, index], proposal)
        f[F.BEFORE, index[yes]] = error[yes]
        _accept(lanes, index, row, yes, x, after, k)
    _wipe(lanes, index[~accepted])
    _begin(lanes, index, proposal)


def _accept(lanes: Lanes, index: Index, row: Index, yes: Index, x: torch.Tensor, after: torch.Tensor,
            k: torch.Tensor) -> None:  # fmt: skip
    f, i, bank = lanes.f, lanes.i, lanes.bank
    moved, rows = index[yes], row[yes]
    x, after, k = pick(x, yes), pick(after, yes), pick(k, yes)
    save_passed(lanes, moved, f[F.T, moved], f[F.H, moved], x, after, k)
    lanes.x = put(lanes.x, moved, after)
    f[F.T, moved] = f[F.T_NEXT, moved]
    i[I.STATUS, moved[i[I.CUT, moved] == 1]] = CODES[Status.SUCCESS]
    i[I.ROW, moved] = bank.restart[rows]
    fsal = np.flatnonzero(bank.fsal[rows])
    if len(fsal):
        last = torch.from_numpy(bank.slot[rows[fsal]]).to(k.device)
        velocity = k[torch.from_numpy(fsal).to(k.device), last]
        first = torch.from_numpy(moved[fsal] * lanes.slots).to(k.device)
        lanes.k.view(-1, lanes.width).index_copy_(0, first, velocity)


def _give_up(lanes: Lanes, index: Index, finite: NDArray[np.bool_], groups: Index) -> None:
    """End lanes with a non-finite stage: at once in a group, which goes on without them; else after some retries."""
    i = lanes.i
    bad = np.where(finite, 0, i[I.BAD, index] + 1)
    i[I.BAD, index] = bad
    hopeless = (bad > control.MOST_NON_FINITE) | (~finite & (groups >= 0))
    i[I.STATUS, index[hopeless]] = CODES[Status.NON_FINITE]


def _begin(lanes: Lanes, index: Index, h: NDArray[np.float64]) -> None:
    """Set the next step of lanes, cut at the end of the span, unless it is too small or does not fit max_nfe."""
    f, i = lanes.f, lanes.i
    t, end = f[F.T, index], f[F.T_END, index]
    cut = STRETCH * np.abs(h) >= np.abs(end - t)
    f[F.H, index] = np.where(cut, end - t, h)
    f[F.T_NEXT, index] = np.where(cut, end, t + h)
    i[I.CUT, index] = cut
    running = i[I.STATUS, index] == 0
    scale = np.maximum(np.abs(t), f[F.HIGH, index] - f[F.LOW, index])
    lost = running & ~cut & (np.abs(h) < 10 * np.finfo(np.float64).eps * scale)
    # Steps that shrink to nothing before a non-finite stage fail for that reason.
    broken = i[I.BAD, index] > 0
    i[I.STATUS, index[lost]] = np.where(broken, CODES[Status.NON_FINITE], CODES[Status.STEP_UNDERFLOW])[lost]
    # A method without FSAL asks once more after an accepted step.
    again = (i[I.ROW, index] > 0) & (lanes.bank.kind[i[I.ROW, index] - 1] == END_ADAPTIVE)
    spent = running & (i[I.NFE, index] + i[I.ATTEMPT, index] + again > i[I.MAX_NFE, index])
    i[I.STATUS, index[spent & ~lost]] = CODES[Status.MAX_NFE]


def _wipe(lanes: Lanes, index: Index) -> None:
    """Overwrite the velocities after the first with zeros: a stale infinity times a zero weight would be NaN."""
    if len(index):
        lanes.k[torch.from_numpy(index).to(lanes.k.device), 1:] = 0.0


def _scale(lanes: Lanes, index: Index, size: torch.Tensor) -> torch.Tensor:
    """atol + rtol |x| (paper eq. dopri-err; Hairer I, II.4 eq. 4.10), (n, D) float64."""
    atol = torch.from_numpy(lanes.f[F.ATOL, index]).to(size.device)[:, None]
    rtol = torch.from_numpy(lanes.f[F.RTOL, index]).to(size.device)[:, None]
    return atol + rtol * size


def _stiffness(h: NDArray[np.float64], bend: torch.Tensor, drift: torch.Tensor) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = np.sqrt(row_sums(bend**2) / row_sums(drift**2))
    return np.where(np.isfinite(rho), np.abs(h) * rho, np.nan)


def _constant_field(k: torch.Tensor, last: Index, groups: Index) -> NDArray[np.bool_]:
    """Whether all stage velocities of the attempt are bit-identical."""
    chosen = np.flatnonzero((k[:, 1] == k[:, 0]).all(dim=1).cpu().numpy())
    same = np.zeros(len(k), dtype=bool)
    if len(chosen):
        some = pick(k, chosen)
        unused = torch.arange(k.shape[1], device=k.device) > torch.from_numpy(last[chosen]).to(k.device)[:, None]
        same[chosen] = ((some == some[:, :1]).all(dim=2) | unused).all(dim=1).cpu().numpy()
    return all_of_group(same, groups)


_FINISH = {
    END_FIXED: _end_fixed,
    FIRST_SLOPE: _first_slope,
    FIRST_STEP: _first_step,
    END_ADAPTIVE: _end_adaptive,
}
