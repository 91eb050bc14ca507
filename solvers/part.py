"""Some of the lanes, gathered to be worked on and written back: those whose step ends in this tick."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.arithmetic import pick, put, tensor_like
from solvers.fields import F, I

if TYPE_CHECKING:
    from solvers.lanes import Lanes


class Part:
    """The lanes of an index, or all lanes, which then are worked on in place.

    Attributes:
        lanes: where they are from.
        index: (m,) sorted lane numbers.
        row: (m,) the bank row that each has just completed.
        f, i: (F.ROWS, m) and (I.ROWS, m), see `fields`.
        x: (D, m) states at the start of the step.
        k: (D, S, m) velocities.
    """

    def __init__(self, lanes: Lanes, row: NDArray[np.int64], index: NDArray[np.int64] | None) -> None:
        self.lanes, self.bank = lanes, lanes.bank
        self.all = index is None
        if index is None:
            self.index = np.arange(len(row))
            self.row, self.f, self.i, self.x, self.k = row, lanes.f, lanes.i, lanes.x, lanes.k
        else:
            self.index, self.row = index, row[index]
            self.f, self.i = lanes.f[:, index], lanes.i[:, index]
            self.x, self.k = pick(lanes.x, index), pick(lanes.k, index)

    def store(self) -> None:
        """Write f and i back."""
        if not self.all:
            self.lanes.f[:, self.index] = self.f
            self.lanes.i[:, self.index] = self.i

    def move(self, some: NDArray[np.int64], x: Tensor) -> None:
        """Put lanes `some` of this part into new states; x is (D, m), of the whole part."""
        if len(some) == len(self.index):
            self.lanes.x = x if self.all else put(self.lanes.x, self.index, x)
        elif len(some):
            self.lanes.x = put(self.lanes.x, self.index[some], pick(x, some))

    def wipe(self, some: NDArray[np.int64]) -> None:
        """Overwrite velocities after the first with zeros: a stale infinity times a zero weight would be NaN."""
        if len(some):
            self.lanes.k[:, 1:, torch.from_numpy(self.index[some]).to(self.k.device)] = 0.0

    def restart_from_last(self, some: NDArray[np.int64]) -> None:
        """The last velocity of the step becomes the first of the next (FSAL)."""
        device, (width, slots, count) = self.k.device, self.k.shape
        last = torch.from_numpy(self.bank.slot[self.row[some]] * count + some).to(device)
        velocity = self.k.reshape(width, slots * count).index_select(1, last)
        self.lanes.k[:, 0].index_copy_(1, torch.from_numpy(self.index[some]).to(device), velocity)

    def scale(self, size: Tensor) -> Tensor:
        """The error scale atol + rtol |x| (paper eq. dopri-err; Hairer I, II.4 eq. 4.10), (D, m) float64."""
        return tensor_like(self.f[F.ATOL], size) + tensor_like(self.f[F.RTOL], size) * size

    @property
    def groups(self) -> NDArray[np.int64]:
        """(m,) see `I.GROUP`."""
        return self.i[I.GROUP]
