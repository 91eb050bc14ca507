"""The arena of one model: its lanes and its network. The only file of the service that touches the device."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.checkpoint import Checkpoint
from models.noise import noise
from models.velocity import RowStable
from service.engine.job import Job
from solvers.errors import Status
from solvers.fields import I
from solvers.lanes import Lanes
from solvers.records import Admission, Finished, Saved

TICK_S = 0.05
"""A network call of a full arena takes about this long at most."""

_SMALLEST_BUDGET, _LARGEST_BUDGET = 64, 8192


def choose_device(name: str) -> torch.device:
    """The device behind a setting: `auto` is CUDA where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


class Arena:
    """Lanes of one model version.

    Attributes:
        deterministic: whether a sample's bits depend on nothing but checkpoint, solver, seed and index.
        budget: lanes that the arena holds.
        network_s: seconds spent in network calls so far.
        rows: network rows so far, padding included in neither.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        """Measure the network: which row buckets agree, and how many rows fit into a tick."""
        card = checkpoint.card
        self.device, self.dtype, self.event_shape = device, checkpoint.dtype, tuple(card.event_shape)
        self._velocity = RowStable(checkpoint.velocity, self.event_shape, self.dtype, device)
        self.deterministic = self._velocity.deterministic
        self.lanes = Lanes(self.event_shape, self.dtype, device)
        self.network_s, self.rows = 0.0, 0
        self.seconds_a_row = 1e-5
        self.budget = self._measure_budget()

    def _measure_budget(self) -> int:
        rows = _SMALLEST_BUDGET
        while True:
            x = torch.zeros((rows, *self.event_shape), dtype=self.dtype, device=self.device)
            t = torch.full((rows,), 0.5, dtype=self.dtype, device=self.device)
            took = min(self._timed(x, t) for _ in range(2))
            self.seconds_a_row = took / rows
            if 2 * took > TICK_S or rows >= _LARGEST_BUDGET:
                return rows
            rows *= 2

    def _timed(self, x: Tensor, t: Tensor) -> float:
        begin = time.perf_counter()
        with torch.inference_mode():
            self._velocity(x, t).cpu()
        return time.perf_counter() - begin

    def start_of(self, job: Job, first: int, count: int) -> Tensor:
        """Starting states of samples first .. first + count - 1 of a job."""
        if job.x0 is not None:
            return job.x0[first : first + count]
        return noise(job.seed, job.first_index + first, count, self.event_shape, self.dtype)

    def admit(self, granted: Sequence[tuple[int, int, int, Job]]) -> Finished | None:
        """Start lanes for (owner, first sample, count, job); some may end at once, for want of max_nfe."""
        with torch.inference_mode():
            self.lanes.admit(
                [
                    Admission(job.solve, self.start_of(job, first, count), owner, first, job.save_at)
                    for owner, first, count, job in granted
                ]
            )
            return self.lanes.collect()

    def tick(self) -> tuple[Finished | None, dict[int, str]]:
        """One network call for all lanes.

        Returns:
            The lanes that ended, and for each owner whose rows made the network raise, what it said; their lanes are
            stopped.
        """
        failed: dict[int, str] = {}
        with torch.inference_mode():
            x, t = self.lanes.query()
            begin = time.perf_counter()
            try:
                v = self._velocity(x, t)
                if self.device.type != "cpu":
                    torch.cuda.synchronize(self.device)
            except Exception as error:  # (whatever a network raises is its requests' fault alone)
                v = self._by_halves(x, t, np.arange(len(x)), failed, error)
            self.network_s += (took := time.perf_counter() - begin)
            self.rows += len(x)
            if len(x) >= _SMALLEST_BUDGET:
                self.seconds_a_row += 0.05 * (took / len(x) - self.seconds_a_row)
            for owner in failed:
                self.lanes.stop(owner, Status.CANCELLED)
            finished = self.lanes.absorb(v)
            if failed and finished is None:
                finished = self.lanes.collect()
            return finished, failed

    def _by_halves(
        self, x: Tensor, t: Tensor, lanes: NDArray[np.int64], failed: dict[int, str], error: Exception
    ) -> Tensor:
        """Evaluate in ever smaller slices: memory may do for those, and only single rows that fail are given up."""
        if len(lanes) == 1:
            failed[int(self.lanes.i[I.OWNER, lanes[0]])] = f"{type(error).__name__}: {error}".splitlines()[0]
            return torch.zeros_like(x)
        parts: list[Tensor] = []
        middle = len(lanes) // 2
        for part in (slice(None, middle), slice(middle, None)):
            owners = self.lanes.i[I.OWNER, lanes[part]]
            if all(int(owner) in failed for owner in owners):
                parts.append(torch.zeros_like(x[part]))
                continue
            try:
                parts.append(self._velocity(x[part], t[part]))
            except Exception as smaller:
                parts.append(self._by_halves(x[part], t[part], lanes[part], failed, smaller))
        return torch.cat(parts)

    def stop(self, owner: int, status: Status) -> Finished | None:
        """End an owner's lanes now and take them out."""
        self.lanes.stop(owner, status)
        return self.lanes.collect()

    def take_saved(self) -> list[Saved]:
        """States saved since the last call."""
        return self.lanes.take_saved()
