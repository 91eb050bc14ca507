"""Kernels for any device and floating dtype: each step of a tick as a constant number of tensor operations.

Library reductions and matrix products choose their order of summation by the shape of the whole tensor, so a lane's
last bit would depend on its neighbours. Here every operation is elementwise and correctly rounded, in an order fixed by
the lane's own length. The order is that of `kernels_cpu`: in float32 and float64 on the CPU both give the same bits.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.bank import Bank
from solvers.clocks import (
    end_adaptive,
    end_first_step,
    end_steps,
    first_slope,
    next_rows,
    norms,
    of_kind,
    query_times,
)
from solvers.compiled import Flags, Index, Numbers, Records
from solvers.draws import noise_of
from solvers.plan import BEND, END_ADAPTIVE, END_FIXED, FIRST_SLOPE, FIRST_STEP, STIFF, A, B, E
from solvers.state import States
from solvers.trace import StepLog


def combine(weights: Tensor, k: Tensor) -> Tensor:
    """Return weighted sums of stored velocities.

    Args:
        weights: (n, s) weights of the first s slots of each lane.
        k: (n, S, D) with S >= s.

    Returns:
        (n, D) sum over s of weights * k, in k's dtype, summed in the order of the slots.
    """
    total = weights[:, :1] * k[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + weights[:, slot, None] * k[:, slot]
    return total


def lane_sums(values: Tensor) -> NDArray[np.float64]:
    """Sum over the coordinates of each lane, by halving.

    Args:
        values: (n, D) float64; overwritten.

    Returns:
        (n,) on the host.
    """
    width = values.shape[1]
    while width > 1:
        half = (width + 1) // 2
        values[:, : width - half] += values[:, half:width]
        width = half
    return values[:, 0].cpu().numpy() if width else np.zeros(len(values))


def finite_lanes(values: Tensor) -> NDArray[np.bool_]:
    """Return (n,) whether all coordinates of a lane are finite, for values (n, D)."""
    return torch.isfinite(values).all(dim=1).cpu().numpy()


class DeviceStates(States):
    """x and K as tensors; the lanes' records stay on the host."""

    def query(self, lanes: Records, bank: Bank) -> tuple[Tensor, Tensor]:
        times = np.empty(len(lanes))
        query_times(lanes, bank.rows, times)
        t = torch.from_numpy(times).to(self.x.device, self.x.dtype)
        row = lanes["row"]
        used = int(bank.rows["used"][row].max())
        every = np.arange(len(lanes))
        if not used:
            return self._pinned(self.x.clone(), every, lanes, times), t
        total = combine(self._like(bank.weights[row, A, :used] * lanes["h"][:, None]), self.k)
        self._stir(total, every, lanes, bank.rows["query_x"][row], bank.rows["query_z"][row])
        return self._pinned(self.x + total, every, lanes, times), t

    def receive(self, v: Tensor, lanes: Records, bank: Bank, kinds: Index) -> tuple[int, int]:
        n, slots, width = self.k.shape
        places = self._index(np.arange(n) * slots + bank.rows["slot"][lanes["row"]])
        self.k.view(n * slots, width).index_copy_(0, places, self._pinned(v, np.arange(n), lanes))
        present = next_rows(lanes, bank.rows, kinds)
        if not present >> END_FIXED & 1:
            return present, 0
        index = of_kind(kinds, END_FIXED)
        ended = end_steps(lanes, index, self._advance(index, lanes, bank), bank.times)
        if len(self.pins):
            self.x.index_copy_(
                0, self._index(index), self._pinned(self._pick(index)[0], index, lanes, lanes["t"][index])
            )
        return present, ended

    def _pinned(self, rows: Tensor, index: Index, lanes: Records, t: Numbers | None = None) -> Tensor:
        """Put known entries in place, in states (m, D) of lanes `index` at times t (m,), or in their velocities."""
        if not len(self.pins):
            return rows
        places = lanes["pin"][index].astype(np.int64)
        which = np.flatnonzero(places >= 0)
        noise, value = self.pins.index_select(0, self._index(places[which])).unbind(1)
        line = value - noise
        if t is not None:
            line = self._like(1 - t[which, None]) * noise + self._like(t[which, None]) * value
        at = self._index(which)
        return rows.index_copy(0, at, torch.where(value.isnan(), rows.index_select(0, at), line))

    def _advance(self, index: Index, lanes: Records, bank: Bank) -> Flags:
        """Advance states at the end of steps on grids; return (m,) whether the new ones are finite."""
        x, k = self._pick(index)
        row = lanes["done"][index]
        weights = bank.weights[row, B, : int(bank.rows["advance_used"][row].max())] * lanes["h"][index, None]
        advance = combine(self._like(weights), k)
        self._stir(advance, index, lanes, bank.rows["advance_x"][row], bank.rows["advance_z"][row])
        slots = bank.rows["keep"][row]
        stored = np.flatnonzero(slots >= 0)
        if len(stored):
            places = self._index(index[stored] * self.k.shape[1] + slots[stored])
            self.k.view(-1, self.k.shape[2]).index_copy_(0, places, advance[self._index(stored)])
        after = x + advance
        good = finite_lanes(after)
        self._move(index, after, good)
        return good

    def _stir(self, total: Tensor, index: Index, lanes: Records, of_x: Numbers, of_z: Numbers) -> None:
        """Add of_x x + of_z z to sums (m, D) of lanes `index` where these weights (m,) are not 0, see `draws.stir`."""
        noisy = np.flatnonzero((of_x != 0) | (of_z != 0))
        if len(noisy):
            z = np.empty((len(noisy), total.shape[1]), dtype=np.float64)
            noise_of(lanes, index[noisy], self.order, z)
            places, state = self._index(noisy), self.x.index_select(0, self._index(index[noisy]))
            mixed = total.index_select(0, places) + self._like(of_x[noisy, None]) * state
            total.index_copy_(0, places, mixed + self._like(of_z[noisy, None]) * self._like(z))

    def control(
        self, kinds: Index, present: int, lanes: Records, bank: Bank, log: StepLog
    ) -> tuple[Index, Tensor, Numbers, int]:
        width, ended = self.x.shape[1], 0
        if present >> FIRST_SLOPE & 1:
            index = of_kind(kinds, FIRST_SLOPE)
            d0, d1 = (norms(lanes, index, sums, width, False) for sums in self._slopes(index, lanes))
            ended += first_slope(lanes, index, d0, d1, bank.rows)
        if present >> FIRST_STEP & 1:
            index = of_kind(kinds, FIRST_STEP)
            d2 = norms(lanes, index, self._change(index, lanes), width, False)
            self._wipe(index[~np.isfinite(d2)])
            ended += end_first_step(lanes, index, d2, bank.rows)
        index = of_kind(kinds, END_ADAPTIVE)
        if not len(index):
            return index, self.x[:0], np.empty(0), ended
        after, sums, rho = self._attempt(index, lanes, bank)
        error = norms(lanes, index, sums, width, True)
        log.record(lanes, index, error, rho)
        return index, after, error, ended

    def _attempt(self, index: Index, lanes: Records, bank: Bank) -> tuple[Tensor, Numbers, Numbers]:
        """The new states, sums of squared scaled errors and estimates of the largest eigenvalue of attempts."""
        x, k = self._pick(index)
        row, h = lanes["done"][index], lanes["h"][index, None]
        slot = bank.rows["slot"][row]
        stages = int(slot.max()) + 1
        b, e, stiff, bend = (bank.weights[row, table, :stages] for table in (B, E, STIFF, BEND))
        after = self._pinned(x + combine(self._like(b * h), k), index, lanes, lanes["t_next"][index])
        wide = after.double()
        scale = self._scale(index, lanes, torch.maximum(x.double().abs(), wide.abs()))
        # 0 * after is 0 unless the new state is not finite: then the error must not be finite either.
        sums = lane_sums((combine(self._like(e * h), k).double() / scale) ** 2 + 0.0 * wide)
        bent, drift = (lane_sums(combine(self._like(w), k).double() ** 2) for w in (bend, stiff * h))
        with np.errstate(divide="ignore", invalid="ignore"):
            rho = np.sqrt(bent / drift)
        return after, sums, rho

    def _slopes(self, index: Index, lanes: Records) -> tuple[Numbers, Numbers]:
        """Sums of squares (m,) of the scaled state and of the scaled first velocity; NaN if not finite."""
        x, k = self._pick(index)
        good = finite_lanes(x) & finite_lanes(k[:, 0])
        x, v = x.double(), k[:, 0].double()
        scale = self._scale(index, lanes, x.abs())
        d0, d1 = (np.where(good, lane_sums((values / scale) ** 2), np.nan) for values in (x, v))
        return d0, d1

    def _change(self, index: Index, lanes: Records) -> Numbers:
        """Sums of squares (m,) of the scaled change of the velocity over the trial step."""
        x, k = self._pick(index)
        scale = self._scale(index, lanes, x.double().abs())
        return lane_sums(((k[:, 1] - k[:, 0]).double() / scale) ** 2)

    def settle(self, index: Index, after: Tensor, error: Numbers, lanes: Records, bank: Bank) -> int:
        accepted = np.empty(len(index), dtype=np.bool_)
        ended = end_adaptive(lanes, index, error, bank.rows, accepted)
        self._move(index, after, accepted)
        chosen = index[accepted]
        carried = chosen[bank.rows["fsal"][lanes["done"][chosen]] == 1]
        if len(carried):
            where = self._index(carried)
            self.k[where, 0] = self.k[where, self._index(bank.rows["slot"][lanes["done"][carried]])]
        self._wipe(index[~accepted])
        return ended

    def _wipe(self, index: Index) -> None:
        if len(index):
            self.k[self._index(index), 1:] = 0.0

    def _move(self, index: Index, after: Tensor, chosen: Flags) -> None:
        """Give the chosen ones among lanes `index` (m,) their new states, out of (m, D)."""
        self.x.index_copy_(0, self._index(index[chosen]), after[self._index(np.flatnonzero(chosen))])

    def _pick(self, index: Index) -> tuple[Tensor, Tensor]:
        if len(index) == len(self.x):
            return self.x, self.k
        chosen = self._index(index)
        return self.x.index_select(0, chosen), self.k.index_select(0, chosen)

    def _index(self, index: Index) -> Tensor:
        return torch.from_numpy(index).to(self.x.device)

    def _like(self, weights: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(weights)).to(self.x.device, self.x.dtype)

    def _scale(self, index: Index, lanes: Records, size: Tensor) -> Tensor:
        """The error scale atol + rtol |x| (paper eq. dopri-err; Hairer I, II.4 eq. 4.10), (m, D) float64."""
        atol, rtol = (torch.from_numpy(lanes[name][index, None]).to(size.device) for name in ("atol", "rtol"))
        return atol + rtol * size
