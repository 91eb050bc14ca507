"""Putting a job's result together from lanes that end in any order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from models.guidance import network_rows
from service.engine.job import Job, JobResult, Progress
from solvers.errors import CODES, STATUSES, Status
from solvers.plan import Plan
from solvers.records import Finished, Saved
from solvers.trace import Trace

_NAMES = np.array(["", *(status.value for status in STATUSES)])

_LARGE = 100_000
"""Attempts to sort, or numbers of noise to make, from which on a result is put together beside the engine's thread."""


class Assembly:
    """The result of one job in the making.

    A sample that never became a lane keeps its starting state, the start of the span and zero calls.
    """

    def __init__(self, job: Job, event_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        n = job.num_samples
        self.job = job
        self.submitted = time.perf_counter()
        self.started: float | None = None
        self.network_s = 0.0
        self.x = torch.empty((n, *event_shape), dtype=dtype)
        self.saved = None
        if job.save_at is not None:
            self.saved = torch.full((n, len(job.save_at), *event_shape), float("nan"), dtype=dtype)
        self.t = np.full(n, job.solve.t_span[0])
        self.nfe, self.code = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        self.done = self.steps = 0  # samples that ended, and their attempts under error control
        self.reported_s, self.share = 0.0, 0.0  # of progress: when, and how much
        self._places = np.zeros(0 if job.save_at is None else len(job.save_at), dtype=np.int64)
        self._unstarted: tuple[int, Status] | None = None
        self._grid_steps = np.zeros(n, dtype=np.int64)
        self._samples: list[NDArray[np.int64]] = []
        self._steps: list[NDArray[np.float64]] = []

    def take(self, finished: Finished, part: slice, steps: slice) -> None:
        """Take the lanes `part` of those that ended; their attempts are `steps`."""
        index = finished.index[part]
        self.done += len(index)
        self.x[torch.from_numpy(index)] = finished.x[part].cpu()
        self.t[index], self.nfe[index] = finished.t[part], finished.nfe[part]
        self.code[index], self._grid_steps[index] = finished.status[part], finished.grid_steps[part]
        self.steps += steps.stop - steps.start
        if steps.stop > steps.start:
            self._samples.append(np.repeat(index, finished.attempts[part]))
            self._steps.append(finished.steps[steps])

    def keep(self, saved: Saved, chosen: NDArray[np.bool_]) -> None:
        """Take saved states."""
        assert self.saved is not None  # noqa: S101  (only jobs with save_at save)
        mask = torch.from_numpy(chosen)
        self._places += np.bincount(saved.place[chosen], minlength=len(self._places))
        where = (torch.from_numpy(saved.index[chosen]), torch.from_numpy(saved.place[chosen]))
        self.saved[where] = saved.x.cpu()[mask].reshape(-1, *self.x.shape[1:])

    def unstarted(self, first: int, status: Status) -> None:
        """Samples from `first` on never ran: they stay where they start."""
        self._unstarted = (first, status)
        self.code[first:] = CODES[status]

    @property
    def large(self) -> bool:
        """Whether the result takes long enough to put together that the engine should not wait for it."""
        waiting = 0 if self._unstarted is None else (len(self.t) - self._unstarted[0]) * self.x[0].numel()
        return self.steps + waiting > _LARGE

    def mean_nfe(self) -> float | None:
        """Mean calls of the samples that came to the end; None where none did."""
        there = self.code == CODES[Status.SUCCESS]
        return float(self.nfe[there].mean()) if there.any() else None

    def progress(self, reached: tuple[int, float, float], waiting: bool) -> Progress:
        """What to report, given what `Arena.reached` says of the lanes, and whether samples are no lanes yet."""
        nfe, t, share = reached
        n, (begin, end) = len(self.t), self.job.solve.t_span
        if waiting:
            t = begin
        elif math.isnan(t):
            t = end
        self.share = max(self.share, (self.done + share) / n)
        lacking = np.flatnonzero(self._places < n)
        complete = int(lacking[0]) if len(lacking) else len(self._places)
        most = max(nfe, int(self.nfe.max()) if self.done else 0)
        return Progress(most, t, self.share, self.done, self.started is None, self.saved, complete)

    def result(self, network_s: float, start_of: Callable[[Job, int, int], torch.Tensor]) -> JobResult:
        """The finished result.

        Args:
            network_s: the arena's network seconds so far.
            start_of: the starting states of (job, first, count), for samples that never ran.
        """
        now = time.perf_counter()
        started = now if self.started is None else self.started
        if self._unstarted is not None:
            first = self._unstarted[0]
            self.x[first:] = start_of(self.job, first, len(self.t) - first)
        return JobResult(
            x=self.x,
            saved=self.saved,
            t=self.t,
            nfe=self.nfe,
            status=_NAMES[self.code],
            trace=self._trace(),
            rows=int(self.nfe.sum()) * network_rows(self.job.guidance),
            queue_s=started - self.submitted,
            solve_s=now - started,
            network_s=0.0 if self.started is None else network_s - self.network_s,
        )

    def _trace(self) -> Trace:
        if isinstance(self.job.solve, Plan):
            if self.job.trace != "full":
                return Trace.empty()
            return Trace.of_grid(
                self.job.solve.times, np.arange(len(self.t)), self._grid_steps, self.code == CODES[Status.NON_FINITE]
            )
        if not self._samples:
            return Trace.empty()
        sample = np.concatenate(self._samples)
        order = np.argsort(sample, kind="stable")
        return Trace.build(sample[order], np.concatenate(self._steps)[order])
