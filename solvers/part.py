"""Some of the lanes, gathered to be worked on and written back: those whose step ends in this tick."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.arithmetic import pick, put
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
        x: (m, D) states, as they were at the start of the step until `move` is called.
        k: (m, S, D) velocities.
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
        """Put lanes `some` of this part into new states x (len(some), D)."""
        if len(some) == len(self.index):
            self.lanes.x = x if self.all else put(self.lanes.x, self.index, x)
        elif len(some):
            self.lanes.x = put(self.lanes.x, self.index[some], pick(x, some) if len(x) != len(some) else x)

    def wipe(self, some: NDArray[np.int64]) -> None:
        """Overwrite velocities after the first with zeros: a stale infinity times a zero weight would be NaN."""
        if len(some):
            self.lanes.k[torch.from_numpy(self.index[some]).to(self.k.device), 1:] = 0.0

    def restart_from_last(self, some: NDArray[np.int64]) -> None:
        """The last velocity of the step becomes the first of the next (FSAL)."""
        slots = self.lanes.slots
        last = torch.from_numpy(some * slots + self.bank.slot[self.row[some]]).to(self.k.device)
        first = torch.from_numpy(self.index[some] * slots).to(self.k.device)
        width = self.lanes.width
        self.lanes.k.view(-1, width).index_copy_(0, first, self.k.reshape(-1, width).index_select(0, last))

    def scale(self, size: Tensor) -> Tensor:
        """The error scale atol + rtol |x| (paper eq. dopri-err; Hairer I, II.4 eq. 4.10), (m, D) float64."""
        rtol = torch.from_numpy(self.f[F.RTOL]).to(size.device)[:, None]
        atol = torch.from_numpy(self.f[F.ATOL]).to(size.device)[:, None]
        return atol + rtol * size

    @property
    def groups(self) -> NDArray[np.int64]:
        """(m,) see `I.GROUP`."""
        return self.i[I.GROUP]
