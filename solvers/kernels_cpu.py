"""Kernels for the CPU: compiled loops over states x (n, D) and velocities K (n, S, D), one lane at a time.

`lanes` are the lanes' records (n,), `index` (m,) the lanes to work on; `weights` (R, 5, S), `rows` (R,) and `times`
(G,) are the bank's; `pins` (P, 2, D) known values, see `States`; `order` (D,) is that of the noise of steps, see
`draws.stir`. Tensors that live for one call are passed by address, see `compiled.array_at`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from solvers.bank import Bank
from solvers.clocks import (
    close_gaps,
    end_adaptive,
    end_first_step,
    end_step,
    first_slope,
    next_row,
    norms,
    of_kind,
    query_time,
    take_out,
)
from solvers.compiled import Index, Numbers, Records, array_at, compiled
from solvers.draws import stir
from solvers.errors import RUNNING
from solvers.plan import BEND, END_ADAPTIVE, END_FIXED, FIRST_SLOPE, FIRST_STEP, MID, STIFF, A, B, E
from solvers.state import Data, States
from solvers.trace import StepLog, write_attempts


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
    """Sum the values by halving, overwriting them."""
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
def _stir(out: Data, x: Data, of_x: float, of_z: float, lane: Any, order: Index) -> None:
    """Add of_x x + of_z z to a sum (D,); z is the noise of the lane's running step."""
    stir(out, x, of_x, of_z, lane.seed, lane.sample, lane.step - lane.first - 1, order)


@compiled
def _pin(x: Data, pin: Data, t: float) -> None:
    """Put the known entries of a state (D,) where they are at time t; `pin` (2, D) has noise and values."""
    of_noise, of_value = x.dtype.type(1.0 - t), x.dtype.type(t)
    for d in range(len(x)):
        if not np.isnan(pin[1, d]):
            x[d] = of_noise * pin[0, d] + of_value * pin[1, d]


@compiled
def query(
    lanes: Records,
    x: Data,
    k: Data,
    pins: Data,
    weights: Numbers,
    rows: Records,
    order: Index,
    x_address: int,
    t_address: int,
    packed: bool,
) -> None:
    """Write x + h sum_s a[s] K[s] (n, D) and t + c h (n,) to the tensors at two addresses.

    Rows of stochastic methods add noise, see `draws.stir`. If they are `packed`, lanes that have ended have no rows.
    """
    out, t, m = array_at(x_address, x.shape, x.dtype), array_at(t_address, len(lanes), x.dtype), 0
    for j in range(len(lanes)):
        if packed and lanes[j].status != RUNNING:
            continue
        at, row = query_time(lanes[j], rows), lanes[j].row
        t[m] = at
        _weighted(weights[row, A], lanes[j].h, rows[row].used, k[j], out[m])
        if rows[row].query_x != 0.0 or rows[row].query_z != 0.0:
            _stir(out[m], x[j], rows[row].query_x, rows[row].query_z, lanes[j], order)
        for d in range(x.shape[1]):
            out[m, d] = x[j, d] + out[m, d]
        if lanes[j].pin >= 0:
            _pin(out[m], pins[lanes[j].pin], at)
        m += 1


@compiled
def receive(
    lanes: Records,
    x: Data,
    k: Data,
    pins: Data,
    weights: Numbers,
    rows: Records,
    times: Numbers,
    order: Index,
    v_address: int,
    kinds: Index,
    packed: bool,
) -> tuple[int, int]:
    """See `States.receive`; the velocities (n, D) are at an address, `packed` as in `query`."""
    v, after, m = array_at(v_address, x.shape, x.dtype), np.empty(x.shape[1], dtype=x.dtype), 0
    present: Any = 0
    ended = 0
    for j in range(len(lanes)):
        lane = lanes[j]
        if packed and lane.status != RUNNING:
            kinds[j] = MID
            continue
        place = rows[lane.row].slot
        for d in range(x.shape[1]):
            k[j, place, d] = v[m, d]
        if lane.pin >= 0:
            pin = pins[lane.pin]
            for d in range(x.shape[1]):
                if not np.isnan(pin[1, d]):
                    k[j, place, d] = pin[1, d] - pin[0, d]
        m += 1
        kinds[j] = next_row(lane, rows)
        present |= 1 << kinds[j]
        if kinds[j] == END_FIXED:
            ended += end_step(lane, _advance(lane, x[j], k[j], weights, rows, order, after), times)
            if lane.pin >= 0:
                _pin(x[j], pins[lane.pin], lane.t)
    return present, ended


@compiled
def _advance(lane: Any, x: Data, k: Data, weights: Numbers, rows: Records, order: Index, after: Data) -> bool:
    """Advance a state x (D,) by h sum_s b[s] K[s], and noise, if the result is finite, and return whether it is.

    `after` (D,) is scratch space.
    """
    _weighted(weights[lane.done, B], lane.h, rows[lane.done].advance_used, k, after)
    row = rows[lane.done]
    if row.advance_x != 0.0 or row.advance_z != 0.0:
        _stir(after, x, row.advance_x, row.advance_z, lane, order)
    keep = row.keep
    if keep >= 0:
        for d in range(len(x)):
            k[keep, d] = after[d]
    for d in range(len(x)):
        after[d] = x[d] + after[d]
        if not np.isfinite(after[d]):
            return False
    for d in range(len(x)):
        x[d] = after[d]
    return True


@compiled
def _attempt(
    lanes: Records,
    index: Index,
    x: Data,
    k: Data,
    pins: Data,
    weights: Numbers,
    rows: Records,
    after: Data,
    sums: Numbers,
    rho: Numbers,
) -> None:
    """Write the outcome of attempts: the new states (m, D), sums and rho (m,).

    The sums are over D, of the squared scaled error, and not finite where a stage or the new state is not; rho is an
    estimate of the Jacobian's largest eigenvalue (Hairer & Wanner II, IV.2, p. 22), or not finite. The arrays come from
    the caller: in a function that makes them, the loop would count references to them.
    """
    width = x.shape[1]
    part, values = np.empty(width, dtype=x.dtype), np.empty(width)
    for m in range(len(index)):
        j = index[m]
        lane, row = lanes[j], lanes[j].done
        stages = rows[row].slot + 1
        _weighted(weights[row, B], lane.h, stages, k[j], after[m])
        _weighted(weights[row, E], lane.h, stages, k[j], part)
        for d in range(width):
            after[m, d] = x[j, d] + after[m, d]
        if lane.pin >= 0:
            _pin(after[m], pins[lane.pin], lane.t_next)
        for d in range(width):
            end = np.float64(after[m, d])
            scaled = np.float64(part[d]) / (lane.atol + lane.rtol * max(abs(np.float64(x[j, d])), abs(end)))
            # 0 * end is 0 unless the new state is not finite: then the error must not be finite either.
            values[d] = scaled * scaled + 0.0 * end
        sums[m] = _halved(values)
        _weighted(weights[row, BEND], 1.0, stages, k[j], part)
        bent = _squares(part, values)
        _weighted(weights[row, STIFF], lane.h, stages, k[j], part)
        rho[m] = np.sqrt(bent / _squares(part, values))


@compiled
def _squares(part: Data, values: Numbers) -> float:
    for d in range(len(part)):
        values[d] = np.float64(part[d]) * np.float64(part[d])
    return _halved(values)


@compiled
def _slopes(lanes: Records, index: Index, x: Data, k: Data) -> tuple[Numbers, Numbers]:
    """Return sums of squares (m,) of the scaled state and of the scaled first velocity, NaN if not finite."""
    d0, d1, of_x, of_v = np.empty(len(index)), np.empty(len(index)), np.empty(x.shape[1]), np.empty(x.shape[1])
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
    return d0, d1


@compiled
def _changes(lanes: Records, index: Index, x: Data, k: Data) -> Numbers:
    """Return sums of squares (m,) of the scaled change of the velocity over the trial step."""
    d2, values = np.empty(len(index)), np.empty(x.shape[1])
    for m in range(len(index)):
        j = index[m]
        for d in range(x.shape[1]):
            scale = lanes[j].atol + lanes[j].rtol * abs(np.float64(x[j, d]))
            scaled = np.float64(k[j, 1, d] - k[j, 0, d]) / scale
            values[d] = scaled * scaled
        d2[m] = _halved(values)
    return d2


@compiled
def control(
    lanes: Records, x: Data, k: Data, pins: Data, weights: Numbers, rows: Records, kinds: Index, present: int, log: Any
) -> tuple[Index, Data, Numbers, int, bool]:
    """See `States.control`; `log` is values and counts of the step log. Also returns whether a place of it is full."""
    values, counts = log
    width, ended = x.shape[1], 0
    if present >> FIRST_SLOPE & 1:
        index = of_kind(kinds, FIRST_SLOPE)
        d0, d1 = _slopes(lanes, index, x, k)
        d0, d1 = norms(lanes, index, d0, width, False), norms(lanes, index, d1, width, False)
        ended += first_slope(lanes, index, d0, d1, rows)
    if present >> FIRST_STEP & 1:
        index = of_kind(kinds, FIRST_STEP)
        d2 = norms(lanes, index, _changes(lanes, index, x, k), width, False)
        for m in range(len(index)):
            if not np.isfinite(d2[m]):
                k[index[m], 1:] = 0.0
        ended += end_first_step(lanes, index, d2, rows)
    index = of_kind(kinds, END_ADAPTIVE)
    after, sums, rho = np.empty((len(index), width), dtype=x.dtype), np.empty(len(index)), np.empty(len(index))
    _attempt(lanes, index, x, k, pins, weights, rows, after, sums, rho)
    error = norms(lanes, index, sums, width, True)
    return index, after, error, ended, write_attempts(lanes, index, error, rho, values, counts)


@compiled
def settle(lanes: Records, index: Index, after: Data, error: Numbers, rows: Records, x: Data, k: Data) -> int:
    """See `States.settle`."""
    accepted = np.empty(len(index), dtype=np.bool_)
    ended = end_adaptive(lanes, index, error, rows, accepted)
    for m in range(len(index)):
        j = index[m]
        row = rows[lanes[j].done]
        if accepted[m]:
            for d in range(x.shape[1]):
                x[j, d] = after[m, d]
            if row.fsal == 1:
                for d in range(x.shape[1]):
                    k[j, 0, d] = k[j, row.slot, d]
        else:
            for s in range(1, k.shape[1]):
                for d in range(x.shape[1]):
                    k[j, s, d] = 0.0
    return ended


class HostStates(States):
    """x and K as float32 or float64 on the CPU."""

    _shared: Tensor | None = None

    def _hold(self, lanes: int) -> None:
        super()._hold(lanes)
        if self._shared is not self._room_k:  # (converting a tensor to NumPy takes longer than slicing an array)
            self._shared, self._all_x, self._all_k = self._room_k, self._room_x.numpy(), self._room_k.numpy()
        self._x, self._k = self._all_x[:lanes], self._all_k[:lanes]
        self.arrays = self._x, self._k, self._pins

    def _set_pins(self, pins: Tensor) -> None:
        super()._set_pins(pins)
        self._pins = pins.numpy()

    def _take_out(self, gone: Index, stay: Index) -> Tensor:
        lanes, slots, width = self._k.shape
        close_gaps(self._k.reshape(lanes, slots * width), stay)
        return torch.from_numpy(take_out(self._x, gone, stay))

    def query(self, lanes: Records, bank: Bank) -> tuple[Tensor, Tensor]:
        x, t = torch.empty_like(self.x), self.x.new_empty(len(lanes))
        loaded = self._pins, bank.weights, bank.rows
        query(lanes, self._x, self._k, *loaded, self.order, x.data_ptr(), t.data_ptr(), False)
        return x, t

    def receive(self, v: Tensor, lanes: Records, bank: Bank, kinds: Index) -> tuple[int, int]:
        v = v.contiguous().resolve_neg()
        loaded = self._pins, bank.weights, bank.rows, bank.times
        return receive(lanes, self._x, self._k, *loaded, self.order, v.data_ptr(), kinds, False)

    def control(
        self, kinds: Index, present: int, lanes: Records, bank: Bank, log: StepLog
    ) -> tuple[Index, Data, Numbers, int]:
        loaded = self._x, self._k, self._pins, bank.weights, bank.rows
        index, after, error, ended, full = control(lanes, *loaded, kinds, present, log.arrays)
        if full:
            log.move_full(lanes)
        return index, after, error, ended

    def settle(self, index: Index, after: Data, error: Numbers, lanes: Records, bank: Bank) -> int:
        return settle(lanes, index, after, error, bank.rows, self._x, self._k)
