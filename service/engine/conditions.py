"""What the lanes of a conditional model are conditioned on: one row a sample, found by its job and its index."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.condition import LabelCondition, VectorCondition
from service.engine.job import Job


class Conditions:
    """The conditions and guidances of the jobs of one arena, in one table on the device.

    The table is put together again when a job comes or goes, never in a tick.
    """

    def __init__(
        self, config: LabelCondition | VectorCondition, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._jobs: dict[int, tuple[Tensor, float | None]] = {}
        self._changed = True
        self._rows = torch.empty(0)
        self._owners = self._first = np.empty(0, dtype=np.int64)
        self._guidance: NDArray[np.float64] | None = None

    def add(self, owner: int, job: Job) -> None:
        """Take in a job; a second time changes nothing. Without a condition its samples get the null."""
        if owner not in self._jobs:
            given = job.condition
            if given is None:
                given = self._config.nulls(job.num_samples, self._dtype)
            self._jobs[owner] = (given.to(self._device), job.guidance)
            self._changed = True

    def remove(self, owner: int) -> None:
        """Forget a job whose lanes are gone."""
        self._changed |= self._jobs.pop(owner, None) is not None

    def of(self, owner: NDArray[np.int64], index: NDArray[np.int64]) -> tuple[Tensor, Tensor | None]:
        """Conditions and guidances of lanes.

        Args:
            owner, index: (n,) the job of each lane and the number of its sample in it.

        Returns:
            One condition a lane, and the guidance (n,) of each; None where no job has one.
        """
        if self._changed:
            self._rebuild()
        job = np.searchsorted(self._owners, owner)
        condition = self._rows[torch.from_numpy(self._first[job] + index).to(self._device)]
        if self._guidance is None:
            return condition, None
        return condition, torch.from_numpy(self._guidance[job]).to(self._device, self._dtype)

    def _rebuild(self) -> None:
        self._owners = np.array(sorted(self._jobs), dtype=np.int64)
        tables = [self._jobs[int(owner)] for owner in self._owners]
        self._rows = torch.cat([rows for rows, _ in tables])
        sizes = np.array([len(rows) for rows, _ in tables])
        self._first = np.cumsum(sizes) - sizes
        # 1 is no guidance at all: the conditional velocity alone
        guidance = [1.0 if strength is None else strength for _, strength in tables]
        self._guidance = np.array(guidance) if any(strength != 1.0 for strength in guidance) else None
        self._changed = False
