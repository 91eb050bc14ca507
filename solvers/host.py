"""States in the host's memory: loops over lanes, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.bank import Bank
from solvers.clocks import Flags, Index, Numbers, Records, close_gaps, next_rows, query_times
from solvers.compiled import compiled
from solvers.states import Attempts, States

Data = NDArray[Any]
"""Of the states' dtype."""


class HostStates(States):
    """x and K as float32 or float64 on the CPU."""

    def _hold(self, lanes: int) -> None:
        super()._hold(lanes)
        self._x, self._k = self.x.numpy(), self.k.numpy()

    def _close_gaps(self, stay: Index) -> None:
        close_gaps(self._x, stay)
        lanes, slots, width = self._k.shape
        close_gaps(self._k.reshape(lanes, slots * width), stay)

    def query(self, lanes: Records, bank: Bank) -> tuple[Tensor, Tensor]:
        x, t = torch.empty_like(self.x), torch.empty(len(lanes), dtype=self.x.dtype)
        _query(lanes, self._x, self._k, bank.a, bank.c, bank.used, x.numpy(), t.numpy())
        return x, t

    def receive(self, v: Tensor, lanes: Records, bank: Bank, kinds: Index) -> int:
        values = (v.detach() if v.requires_grad else v).numpy()
        if not values.flags.c_contiguous:
            values = np.ascontiguousarray(values)
        return _receive(lanes, values, bank.slot, bank.next, bank.kind, self._k, kinds)

    def advance(self, index: Index, lanes: Records, bank: Bank) -> tuple[Tensor, Flags]:
        after, good = self.x.new_empty((len(index), self.x.shape[1])), np.empty(len(index), dtype=np.bool_)
        _advance(lanes, index, self._x, self._k, bank.b, bank.advance_used, after.numpy(), good)
        return after, good

    def attempt(self, index: Index, lanes: Records, bank: Bank) -> Attempts:
        m = len(index)
        after, constant = self.x.new_empty((m, self.x.shape[1])), np.empty(m, dtype=np.bool_)
        sums, rho = np.empty(m), np.empty(m)
        weights = (bank.b, bank.e, bank.stiff, bank.bend)
        _attempt(lanes, index, self._x, self._k, weights, bank.slot, after.numpy(), sums, rho, constant)
        return Attempts(after, sums, rho, constant)

    def slopes(self, index: Index, lanes: Records) -> tuple[Numbers, Numbers]:
        d0, d1 = np.empty(len(index)), np.empty(len(index))
        _slopes(lanes, index, self._x, self._k, d0, d1)
        return d0, d1

    def change(self, index: Index, lanes: Records) -> Numbers:
        d2 = np.empty(len(index))
        _change(lanes, index, self._x, self._k, d2)
        return d2

    def settle(self, index: Index, after: Tensor, accepted: Flags, lanes: Records, bank: Bank) -> None:
        _settle(lanes, index, after.numpy(), accepted, bank.fsal, bank.slot, self._x, self._k)


@compiled
def _weighted(weights: Numbers, h: float, count: Any, k: Data, out: Data) -> None:
    """out (D,) = sum over the first `count` slots of (weights h) K, in the order of the slots."""
    for d in range(len(out)):
        out[d] = 0.0
    for s in range(count):
        weight = out.dtype.type(weights[s] * h)
        if s == 0:
            for d in range(len(out)):
                out[d] = weight * k[s, d]
        else:
            for d in range(len(out)):
                out[d] += weight * k[s, d]


@compiled
def _halved(values: Numbers) -> float:
    """The sum by halving; overwrites the values."""
    width = len(values)
    if width == 0:
        return 0.0
    while width > 1:
        half = (width + 1) // 2
        for d in range(width - half):
            values[d] += values[half + d]
        width = half
    return values[0]


@compiled
def _query(lanes: Records, x: Data, k: Data, a: Numbers, c: Numbers, used: Index, out: Data, t: Data) -> None:
    query_times(lanes, c, t)
    for j in range(len(lanes)):
        row = lanes[j].row
        _weighted(a[row], lanes[j].h, used[row], k[j], out[j])
        for d in range(x.shape[1]):
            out[j, d] = x[j, d] + out[j, d]


@compiled
def _receive(lanes: Records, v: Data, slot: Index, following: Index, kind: Index, k: Data, kinds: Index) -> int:
    for j in range(len(lanes)):
        place = slot[lanes[j].row]
        for d in range(v.shape[1]):
            k[j, place, d] = v[j, d]
    return next_rows(lanes, following, kind, kinds)


@compiled
def _advance(lanes: Records, index: Index, x: Data, k: Data, b: Numbers, used: Index, after: Data, good: Flags) -> None:
    for m in range(len(index)):
        j = index[m]
        row = lanes[j].done
        _weighted(b[row], lanes[j].h, used[row], k[j], after[m])
        good[m] = True
        for d in range(x.shape[1]):
            after[m, d] = x[j, d] + after[m, d]
            good[m] &= np.isfinite(after[m, d])


@compiled
def _attempt(
    lanes: Records,
    index: Index,
    x: Data,
    k: Data,
    weights: tuple[Numbers, Numbers, Numbers, Numbers],
    slot: Index,
    after: Data,
    sums: Numbers,
    rho: Numbers,
    constant: Flags,
) -> None:
    b, e, stiff, bend = weights
    width = x.shape[1]
    part, values = np.empty(width, dtype=x.dtype), np.empty(width)
    for m in range(len(index)):
        j = index[m]
        lane, row = lanes[j], lanes[j].done
        stages = slot[row] + 1
        _weighted(b[row], lane.h, stages, k[j], after[m])
        _weighted(e[row], lane.h, stages, k[j], part)
        for d in range(width):
            after[m, d] = x[j, d] + after[m, d]
            end = np.float64(after[m, d])
            scaled = np.float64(part[d]) / (lane.atol + lane.rtol * max(abs(np.float64(x[j, d])), abs(end)))
            # 0 * end is 0 unless the new state is not finite: then the error must not be finite either.
            values[d] = scaled * scaled + 0.0 * end
        sums[m] = _halved(values)
        _weighted(bend[row], 1.0, stages, k[j], part)
        bent = _squares(part, values)
        _weighted(stiff[row], lane.h, stages, k[j], part)
        rho[m] = np.sqrt(bent / _squares(part, values))
        constant[m] = True
        for s in range(1, stages):
            for d in range(width):
                constant[m] &= k[j, s, d] == k[j, 0, d]


@compiled
def _squares(part: Data, values: Numbers) -> float:
    for d in range(len(part)):
        values[d] = np.float64(part[d]) * np.float64(part[d])
    return _halved(values)


@compiled
def _slopes(lanes: Records, index: Index, x: Data, k: Data, d0: Numbers, d1: Numbers) -> None:
    of_x, of_v = np.empty(x.shape[1]), np.empty(x.shape[1])
    for m in range(len(index)):
        j = index[m]
        good = True
        for d in range(x.shape[1]):
            scale = lanes[j].atol + lanes[j].rtol * abs(np.float64(x[j, d]))
            of_x[d] = (np.float64(x[j, d]) / scale) * (np.float64(x[j, d]) / scale)
            of_v[d] = (np.float64(k[j, 0, d]) / scale) * (np.float64(k[j, 0, d]) / scale)
            good &= np.isfinite(x[j, d]) and np.isfinite(k[j, 0, d])
        d0[m] = _halved(of_x) if good else np.nan
        d1[m] = _halved(of_v) if good else np.nan


@compiled
def _change(lanes: Records, index: Index, x: Data, k: Data, d2: Numbers) -> None:
    values = np.empty(x.shape[1])
    for m in range(len(index)):
        j = index[m]
        for d in range(x.shape[1]):
            scale = lanes[j].atol + lanes[j].rtol * abs(np.float64(x[j, d]))
            scaled = np.float64(k[j, 1, d] - k[j, 0, d]) / scale
            values[d] = scaled * scaled
        d2[m] = _halved(values)


@compiled
def _settle(
    lanes: Records, index: Index, after: Data, accepted: Flags, fsal: Flags, slot: Index, x: Data, k: Data
) -> None:
    for m in range(len(index)):
        j = index[m]
        row = lanes[j].done
        if accepted[m]:
            for d in range(x.shape[1]):
                x[j, d] = after[m, d]
            if fsal[row]:
                for d in range(x.shape[1]):
                    k[j, 0, d] = k[j, slot[row], d]
        else:
            for s in range(1, k.shape[1]):
                for d in range(x.shape[1]):
                    k[j, s, d] = 0.0
