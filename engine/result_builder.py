"""The result builder: assembles one job's result from lanes that end in any order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from engine.job import Job, JobResult, Progress
from models.guidance import network_rows
from solvers.errors import CODES, STATUSES, Status
from solvers.lanes import Finished, Saved
from solvers.trace import Trace

NAMES = np.array(["", *(status.value for status in STATUSES)])
"""The values of `Status` by the codes of lanes."""

_LARGE = 100_000
"""Attempted steps to sort, or noise values to draw, from which on a result is built off the engine's thread."""


@dataclass
class _Held:
    """The data of n samples: states (n, *event) on the CPU, times, calls, status codes, steps of a plan (n,)."""

    x: torch.Tensor
    t: NDArray[np.float64]
    nfe: NDArray[np.int64]
    code: NDArray[np.int64]
    grid_steps: NDArray[np.int64]

    @classmethod
    def empty(cls, n: int, start: float, event_shape: tuple[int, ...], dtype: torch.dtype) -> _Held:
        nfe, code, grid_steps = np.zeros((3, n), dtype=np.int64)
        return cls(torch.empty((n, *event_shape), dtype=dtype), np.full(n, start), nfe, code, grid_steps)

    @classmethod
    def of(cls, done: Finished, part: slice) -> _Held:
        return cls(done.x[part], done.t[part], done.nfe[part], done.status[part], done.grid_steps[part])


class ResultBuilder:
    """The result of one job in the making.

    A sample that never became a lane keeps its starting state, the start of the span and zero calls.
    """

    def __init__(self, job: Job, event_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.job = job
        self.submitted = time.perf_counter()
        self.started: float | None = None
        self.network_s = 0.0
        self.prelude_s: float | None = None
        self.saved: torch.Tensor | None = None
        self.skipped = 0  # network rows that its guidance did not need
        self.done = self.steps = 0  # finished samples, and their attempted steps under error control
        self.reported_s, self.share = 0.0, 0.0  # time and share of the last progress report
        self._event_shape, self._dtype = event_shape, dtype
        self._places = np.zeros(0 if job.save_at is None else len(job.save_at), dtype=np.int64)
        self._unstarted: tuple[int, Status] | None = None
        self._known: _Held | None = None
        self._samples: list[NDArray[np.int64]] = []
        self._steps: list[NDArray[np.float64]] = []

    @property
    def _held(self) -> _Held:
        if self._known is None:
            job = self.job
            self._known = _Held.empty(job.num_samples, job.solve.t_span[0], self._event_shape, self._dtype)
        return self._known

    def begin(self, now: float, network_s: float) -> None:
        """Note the start: `now` on the clock of `time.perf_counter`, and the network's seconds in calls so far."""
        self.started, self.network_s, self.reported_s = now, network_s, 0.0

    def make_room(self, first: int, count: int) -> None:
        """Allocate room for samples first .. first + count - 1 as they become lanes; repeating it is harmless."""
        if count < self.job.num_samples:
            _ = self._held
        if len(self._places):
            self._room_for_saved()[first : first + count] = math.nan

    def _room_for_saved(self) -> torch.Tensor:
        if self.saved is None:
            shape = (self.job.num_samples, len(self._places), *self._event_shape)
            self.saved = torch.empty(shape, dtype=self._dtype)
        return self.saved

    def take(self, finished: Finished, part: slice, steps: slice) -> None:
        """Take the lanes `part` of the finished ones, on the CPU; `steps` are their attempted steps."""
        index, count, logged = finished.index[part], part.stop - part.start, steps.stop - steps.start
        self.steps += logged
        if logged and self.job.on_logged is not None:
            self.job.on_logged(logged)
        if count == self.job.num_samples:
            # All at once, as small jobs end: in sample order and complete, so nothing needs copying.
            self._known = _Held.of(finished, part)
            if logged:
                self._samples.append(np.repeat(index, finished.attempts[part]))
                self._steps.append(finished.steps[steps])
        else:
            held = self._held
            held.x[torch.from_numpy(index)] = finished.x[part]
            held.t[index], held.nfe[index] = finished.t[part], finished.nfe[part]
            held.code[index], held.grid_steps[index] = finished.status[part], finished.grid_steps[part]
            if logged:  # copies, so that this job does not keep other jobs' lanes in memory
                self._samples.append(np.repeat(index, finished.attempts[part]))
                self._steps.append(finished.steps[steps].copy())
        self.done += count

    def keep(self, saved: Saved, chosen: NDArray[np.bool_]) -> None:
        """Take saved states."""
        assert self.saved is not None  # noqa: S101  (only jobs with save_at save)
        mask = torch.from_numpy(chosen)
        self._places += np.bincount(saved.place[chosen], minlength=len(self._places))
        where = (torch.from_numpy(saved.index[chosen]), torch.from_numpy(saved.place[chosen]))
        self.saved[where] = saved.x.cpu()[mask].reshape(-1, *self._event_shape)

    def unstarted(self, first: int, status: Status) -> None:
        """Note that samples from `first` on never ran: they keep their starting states."""
        self._unstarted = (first, status)
        self._held.code[first:] = CODES[status]

    @property
    def large(self) -> bool:
        """Whether building the result takes too long for the engine to wait for it."""
        waiting = 0 if self._unstarted is None else self.job.num_samples - self._unstarted[0]
        return self.steps + waiting * math.prod(self._event_shape) > _LARGE

    def spent(self) -> tuple[float, float] | None:
        """Average and maximum calls of the samples that reached the end; None if none did."""
        held = self._held
        nfe = held.nfe[held.code == CODES[Status.SUCCESS]]
        return (int(nfe.sum()) / len(nfe), float(nfe.max())) if len(nfe) else None

    def progress(self, reached: tuple[int, float, float], waiting: bool) -> Progress:
        """The progress report, given the result of `Arena.reached`, and whether some samples are not lanes yet."""
        nfe, t, share = reached
        n, (begin, end) = self.job.num_samples, self.job.solve.t_span
        if waiting:
            t = begin
        elif math.isnan(t):
            t = end
        self.share = max(self.share, (self.done + share) / n)
        lacking = np.flatnonzero(self._places < n)
        complete = int(lacking[0]) if len(lacking) else len(self._places)
        largest = max(nfe, int(self._held.nfe.max()) if self.done else 0)
        return Progress(largest, t, self.share, self.done, self.started is None, self.saved, complete)

    def result(self, network_s: float, start_of: Callable[[Job, int, int], torch.Tensor]) -> JobResult:
        """The finished result.

        Args:
            network_s: the arena's network seconds so far.
            start_of: (job, first, count) -> starting states, for samples that never ran.
        """
        now = time.perf_counter()
        started = now if self.started is None else self.started
        held = self._held
        if self._unstarted is not None:
            first = self._unstarted[0]
            held.x[first:] = start_of(self.job, first, self.job.num_samples - first)
            if len(self._places):
                self._room_for_saved()[first:] = math.nan
        return JobResult(
            x=held.x,
            saved=self.saved,
            t=held.t,
            nfe=held.nfe,
            status=NAMES[held.code],
            trace=self._trace(held),
            rows=int(held.nfe.sum()) * network_rows(self.job.guidance) - self.skipped,
            queue_s=max(0.0, started - self.submitted - (self.prelude_s or 0.0)),
            solve_s=now - started,
            network_s=0.0 if self.started is None else network_s - self.network_s,
            prelude_s=self.prelude_s,
        )

    def _trace(self, held: _Held) -> Trace:
        if (times := self.job.solve.times) is not None:
            if self.job.trace != "full":
                return Trace.empty()
            samples, broken = np.arange(self.job.num_samples), held.code == CODES[Status.NON_FINITE]
            return Trace.of_grid(times, samples, held.grid_steps, broken)
        if len(self._samples) == 1:
            return Trace.build(self._samples[0], self._steps[0])
        if not self._samples:
            return Trace.empty()
        sample = np.concatenate(self._samples)
        order = np.argsort(sample, kind="stable")
        return Trace.build(sample[order], np.concatenate(self._steps)[order])
