"""Network inputs beside the state: conditions, guidance and constants, one row a sample, found by job and index."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.conditions import LabelCondition, VectorCondition
from service.engine.job import Job


class RowTable:
    """One row a sample for all jobs of an arena, in one tensor on the device.

    It is rebuilt after a job was added or removed, so an ordinary tick only looks rows up.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self._jobs: dict[int, Tensor] = {}
        self._changed = True
        self._rows = torch.empty(0)
        self._first = np.empty(0, dtype=np.int64)
        self.owners = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self._jobs)

    def __contains__(self, owner: int) -> bool:
        return owner in self._jobs

    def add(self, owner: int, rows: Tensor) -> None:
        """Add a job's rows."""
        self._jobs[owner] = rows.to(self._device)
        self._changed = True

    def remove(self, owner: int) -> None:
        """Remove the rows of a job, if any, once its lanes are gone."""
        self._changed |= self._jobs.pop(owner, None) is not None

    def place(self, owner: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (n,) the position of each lane's job in `owners` (all jobs, ascending)."""
        if self._changed:
            self._rebuild()
        return np.searchsorted(self.owners, owner)

    def of(self, owner: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
        """Return the rows of lanes.

        Args:
            owner, index: (n,) job of each lane, and its sample in that job.
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


class Conditions:
    """Conditions and guidance strengths of the jobs of one arena."""

    def __init__(
        self, config: LabelCondition | VectorCondition, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._table = RowTable(device)
        self._guidance: dict[int, float] = {}  # guided jobs only

    @property
    def guided(self) -> bool:
        """Whether any job is guided."""
        return bool(self._guidance)

    def add(self, owner: int, job: Job) -> None:
        """Add a job, once; samples without a condition get the null."""
        if owner not in self._table:
            given = job.condition
            if given is None:
                given = self._config.nulls(job.num_samples, self._dtype)
            self._table.add(owner, given)
            if job.guidance not in (None, 1.0):  # 1 leaves the conditional velocity as it is
                self._guidance[owner] = job.guidance

    def remove(self, owner: int) -> None:
        """Remove a job once its lanes are gone."""
        self._table.remove(owner)
        self._guidance.pop(owner, None)

    def of(self, owner: NDArray[np.int64], index: NDArray[np.int64]) -> tuple[Tensor, Tensor | None]:
        """Return conditions and guidance strengths of lanes.

        Args:
            owner, index: (n,) job of each lane, and its sample in that job.

        Returns:
            One condition a lane, and (n,) guidance strengths; None for these while no job is guided.
        """
        condition = self._table.of(owner, index)
        if not self._guidance:
            return condition, None
        place = self._table.place(owner)
        strength = np.array([self._guidance.get(int(each), 1.0) for each in self._table.owners])
        return condition, torch.from_numpy(strength[place]).to(self._device, self._dtype)
