"""Tables of numbers for lanes: one row a lane, found by the lane's job and its index."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Table:
    """The rows of all jobs of an arena, in one tensor on the device.

    It is put together again when a job comes or goes, never in a tick.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._jobs: dict[int, Tensor] = {}
        self._changed = True
        self._rows = torch.empty(0)
        self._first = np.empty(0, dtype=np.int64)
        self.owners = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        """Jobs."""
        return len(self._jobs)

    def __contains__(self, owner: int) -> bool:
        return owner in self._jobs

    def add(self, owner: int, rows: Tensor) -> None:
        """Take in a job's rows."""
        self._jobs[owner] = rows.to(self._device)
        self._changed = True

    def remove(self, owner: int) -> None:
        """Forget a job whose lanes are gone."""
        self._changed |= self._jobs.pop(owner, None) is not None

    def place(self, owner: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where in `owners` (all jobs, ascending) the job of each lane stands."""
        if self._changed:
            self._rebuild()
        return np.searchsorted(self.owners, owner)

    def of(self, owner: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
        """The rows of lanes.

        Args:
            owner, index: (n,) the job of each lane and its number in it.
        """
        place = self.place(owner)
        return self._rows[torch.from_numpy(self._first[place] + index).to(self._device)]

    def _rebuild(self) -> None:
        self.owners = np.array(sorted(self._jobs), dtype=np.int64)
        tables = [self._jobs[int(owner)] for owner in self.owners]
        self._rows = torch.cat(tables) if tables else torch.empty(0)
        sizes = np.array([len(rows) for rows in tables], dtype=np.int64)
        self._first = np.cumsum(sizes) - sizes
        self._changed = False
