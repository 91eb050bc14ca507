"""States in the host's memory, worked on by compiled loops over lanes (`loops`)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from solvers import kernels_cpu as loops
from solvers.bank import Bank
from solvers.clocks import Flags, Index, Numbers, Records, close_gaps, take_out
from solvers.state import Attempts, Limits, Runner, States


class HostStates(States):
    """x and K as float32 or float64 on the CPU."""

    def _hold(self, lanes: int) -> None:
        super()._hold(lanes)
        self._x, self._k = self.x.numpy(), self.k.numpy()

    def _take_out(self, gone: Index, stay: Index) -> Tensor:
        lanes, slots, width = self._k.shape
        close_gaps(self._k.reshape(lanes, slots * width), stay)
        return torch.from_numpy(take_out(self._x, gone, stay))

    def query(self, lanes: Records, bank: Bank) -> tuple[Tensor, Tensor]:
        x, t = torch.empty_like(self.x), self.x.new_empty(len(lanes))
        loops.query(lanes, self._x, self._k, bank.weights, bank.rows, x.data_ptr(), t.data_ptr())
        return x, t

    def receive(self, v: Tensor, lanes: Records, bank: Bank, kinds: Index) -> tuple[int, int]:
        v = v.contiguous().resolve_neg()
        return loops.receive(lanes, self._x, self._k, bank.weights, bank.rows, bank.times, v.data_ptr(), kinds)

    def run(self, runner: Runner, lanes: Records, bank: Bank, kinds: Index, limits: Limits) -> tuple[int, int, int]:
        return runner(lanes, self._x, self._k, bank, kinds, limits)

    def attempt(self, index: Index, lanes: Records, bank: Bank) -> Attempts:
        m = len(index)
        after, sums, rho = self.x.new_empty((m, self.x.shape[1])), np.empty(m), np.empty(m)
        loops.attempt(lanes, index, self._x, self._k, bank.weights, bank.rows, after.data_ptr(), sums, rho)
        return Attempts(after, sums, rho)

    def slopes(self, index: Index, lanes: Records) -> tuple[Numbers, Numbers]:
        d0, d1 = np.empty(len(index)), np.empty(len(index))
        loops.slopes(lanes, index, self._x, self._k, d0, d1)
        return d0, d1

    def change(self, index: Index, lanes: Records) -> Numbers:
        d2 = np.empty(len(index))
        loops.change(lanes, index, self._x, self._k, d2)
        return d2

    def settle(self, index: Index, after: Tensor, accepted: Flags, lanes: Records, bank: Bank) -> None:
        loops.settle(lanes, index, after.data_ptr(), accepted, bank.rows, self._x, self._k)
