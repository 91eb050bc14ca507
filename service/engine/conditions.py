"""What the lanes of a conditional model are conditioned on: one row a sample, found by its job and its index."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.conditions import LabelCondition, VectorCondition
from service.engine.job import Job
from service.engine.tables import Table


class Conditions:
    """The conditions and guidances of the jobs of one arena."""

    def __init__(
        self, config: LabelCondition | VectorCondition, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._table = Table(device)
        self._guidance: dict[int, float] = {}  # of those that are guided

    @property
    def guided(self) -> bool:
        """Whether any job is guided."""
        return bool(self._guidance)

    def add(self, owner: int, job: Job) -> None:
        """Take in a job; a second time changes nothing. Without a condition its samples get the null."""
        if owner not in self._table:
            given = job.condition
            if given is None:
                given = self._config.nulls(job.num_samples, self._dtype)
            self._table.add(owner, given)
            if job.guidance not in (None, 1.0):  # 1 is no guidance at all: the conditional velocity alone
                self._guidance[owner] = job.guidance

    def remove(self, owner: int) -> None:
        """Forget a job whose lanes are gone."""
        self._table.remove(owner)
        self._guidance.pop(owner, None)

    def of(self, owner: NDArray[np.int64], index: NDArray[np.int64]) -> tuple[Tensor, Tensor | None]:
        """Conditions and guidances of lanes.

        Args:
            owner, index: (n,) the job of each lane and the number of its sample in it.

        Returns:
            One condition a lane, and the guidance (n,) of each; None where no job has one.
        """
        condition = self._table.of(owner, index)
        if not self._guidance:
            return condition, None
        place = self._table.place(owner)
        strength = np.array([self._guidance.get(int(each), 1.0) for each in self._table.owners])
        return condition, torch.from_numpy(strength[place]).to(self._device, self._dtype)
