"""Jobs: operations, the jobs given to the engine, how their results are built, and the engine's exceptions."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray

from models.condition_values import Distinct
from models.guidance import Guidance, network_rows
from solvers.derived import DerivedField, Pull
from solvers.errors import CODES, STATUSES, Status
from solvers.known_values import KnownValues
from solvers.lanes import Finished, SavedStates
from solvers.plan import Plan
from solvers.trace import StepTrace

Sizes = tuple[tuple[str, int], ...]
"""The sizes of a model's free axes, by name; jobs of equal sizes share network calls."""


@dataclass(frozen=True)
class Operation:
    """What an arena computes; the jobs of one operation of one model version share network calls.

    Whoever needs an operation makes it, once, and gives it to the engine with its jobs.

    Attributes:
        name: its name in metrics and workloads.
        field: shape of an event -> the field that the lanes follow (see `solvers.derived`); None for the velocity.
        correction: states, times, velocities, constants of the lanes and the map e -> e dv/dx (see `solvers.derived`)
            -> the velocities that they follow; None to follow the field as it is.
        rows: network rows that one evaluation counts as.
    """

    name: str
    field: Callable[[tuple[int, ...]], DerivedField] | None = None
    correction: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Pull], torch.Tensor] | None = None
    rows: int = 1


SAMPLE = Operation("sample")
"""Lanes follow the velocity itself. Its arena is made when a model is loaded, others when they are first requested."""


class Priority(StrEnum):
    """Priority of a job; `bulk` yields to `interactive`, but is never left without a share of the device."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class Overloaded(Exception):  # noqa: N818  (named for what it says, as the HTTP side reads it)
    """The queue is full, or the job could not be done in time.

    Attributes:
        retry_after_s: approximate seconds until the same job would be accepted.
    """

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(f"{reason}; try again in {retry_after_s:.1f} s")
        self.reason, self.retry_after_s = reason, retry_after_s


class TooSlow(Exception):  # noqa: N818
    """The job could not be done by its deadline even with the machine to itself.

    Attributes:
        needed_s: approximate seconds that it would take then.
    """

    def __init__(self, needed_s: float) -> None:
        about = f"{float(f'{needed_s:.2g}'):,.12g}"  # never 1.7e+03
        super().__init__(f"this takes about {about} s even with the machine to itself")
        self.needed_s = needed_s


class TooManySamples(Exception):  # noqa: N818
    """The samples of the job share their steps, and do not fit into one part of the row budget.

    Attributes:
        samples, most: number of samples, and the most that fit.
    """

    def __init__(self, samples: int, most: int) -> None:
        super().__init__(
            f"num_samples = {samples} with error_control 'batch': samples that share their steps go through the "
            f"network in one call, at most {most} of this request; use at most {most}, or error_control 'sample'"
        )
        self.samples, self.most = samples, most


class Draining(Exception):  # noqa: N818
    """The engine accepts no more jobs."""


class TooLate(Exception):  # noqa: N818
    """The job's deadline passed before its samples were done, or was certain to."""


class EngineFailed(Exception):  # noqa: N818
    """The job could not be solved: the network raised, or the engine ended."""


@dataclass(frozen=True, eq=False)
class JobProgress:
    """Progress of a running job.

    Attributes:
        nfe: largest number of calls that one of its samples has taken so far.
        t: the time reached by the sample furthest behind.
        share: mean share of the span that its samples have completed; never decreases.
        done: number of samples that have ended.
        queued: whether no sample has started yet.
        saved: as in `JobResult`, still being filled: every sample has its states at the first `complete` save times.
        complete: see `saved`.
    """

    nfe: int
    t: float
    share: float
    done: int
    queued: bool = False
    saved: torch.Tensor | None = None
    complete: int = 0


@dataclass(frozen=True, eq=False)
class Job:
    """A validated request, as the engine takes it.

    Attributes:
        model, version: a version loaded into the engine.
        plan: the compiled solver.
        num_samples: number of samples, at least 1.
        seed, first_index: choose the noise of the samples: that of stochastic steps and, without `x0`, of the start.
        noise_scale: a factor of the noise of the start, its temperature.
        start_time: the network's own time at which the plan starts, with its authors' noise there; None if it starts at
            t = 0, or from `x0`.
        x0: (num_samples, *event) starting states, in the operation's own shape, or None for noise.
        save_at: (M,) float64 times to keep the states at, or None.
        deadline: when the job is given up, in seconds of the engine's clock (`time.monotonic`), or None.
        partial: at the deadline, answer with the states reached instead of failing.
        trace: `none`, `summary` or `full`.
        conditions: conditions of the samples, by the names of the model's inputs; None for the null of each. One that
            no term of guidance takes may be missing.
        guidance: classifier-free guidance; None for none.
        negative: conditions that replace the nulls in guidance, by name; None for none.
        own: for each term of guidance its own conditions, by name, which replace those of the samples; empty for none.
        sizes: sizes of the free axes of states and conditions.
        priority: see `Priority`.
        on_progress: called in the engine's thread, which it must not hold up; or None.
        progress_s: minimum seconds between two calls of `on_progress`.
        known: known values of the samples; None for none.
        operation: the operation; all but `SAMPLE` need `Engine.prepare` before, and those with a field `x0`.
        on_logged: called in the engine's thread with the number of attempted steps under error control that are kept
            for the job's trace from now on; or None.
        follows: whether it is the second half of a request, so that it may lack time that its first half has used.
        constants: (num_samples, constants) of the operation's field or correction, or one row for all samples, see
            `solvers.derived`; None if it has none.
        decode: whether the states are to be decoded by the model's decoder program; without one they are left as they
            are.
        log_prob: whether the log-densities of its steps are reported; the engine has nothing to do with them.
        variants: conditions of each variant (see `conditions.variants_of`) as made by a prelude; None until then.
    """

    model: str
    version: int
    plan: Plan
    num_samples: int
    seed: int = 0
    first_index: int = 0
    noise_scale: float = 1.0
    start_time: float | None = None
    x0: torch.Tensor | None = None
    save_at: NDArray[np.float64] | None = None
    deadline: float | None = None
    partial: bool = False
    trace: str = "summary"
    conditions: Mapping[str, Distinct] | None = None
    guidance: Guidance | None = None
    negative: Mapping[str, Distinct] | None = None
    own: Sequence[Mapping[str, Distinct]] = ()
    sizes: Sizes = ()
    priority: Priority = Priority.INTERACTIVE
    on_progress: Callable[[JobProgress], None] | None = None
    progress_s: float = 0.1
    on_logged: Callable[[int], None] | None = None
    known: KnownValues | None = None
    operation: Operation = SAMPLE
    constants: torch.Tensor | None = None
    follows: bool = False
    decode: bool = False
    log_prob: bool = False
    variants: tuple[Mapping[str, Distinct], ...] | None = None


@dataclass(frozen=True, eq=False)
class JobResult:
    """The result of a job, on the CPU.

    Attributes:
        x: (n, *event) the states reached.
        saved: (n, M, *event) states at `save_at`, NaN where a sample did not get there; or None.
        t, nfe, status: (n,) the time reached, the calls, and a `Status` value for each sample.
        trace: every attempted step; for plans empty unless `full` is requested, as the grid says it all.
        rows: network rows spent on the job: one per call, or one for each term of its guidance; times those of the
            operation.
        queue_s, solve_s, network_s: seconds waited, solved, and in network calls that the job took part in.
        prelude_s, decoder_s: seconds in calls of the model's prelude and decoder program that it took part in; None
            if it did not need one.
        data, saved_data: `x` and `saved` decoded, if the job asked for that; rows that are not finite are NaN.
    """

    x: torch.Tensor
    saved: torch.Tensor | None
    t: NDArray[np.float64]
    nfe: NDArray[np.int64]
    status: NDArray[np.str_]
    trace: StepTrace
    rows: int
    queue_s: float
    solve_s: float
    network_s: float
    prelude_s: float | None = None
    decoder_s: float | None = None
    data: torch.Tensor | None = None
    saved_data: torch.Tensor | None = None


Outcome = JobResult | Exception | None
"""How a job ends: with a result, with an error, or cancelled (None)."""

Pending = Future[JobResult] | asyncio.Future[JobResult]
"""A job's outcome to come; an event loop's own future has no lock."""


NAMES = np.array(["", *(status.value for status in STATUSES)])
"""The values of `Status` by the codes of lanes."""

_LARGE = 100_000
"""Attempted steps to sort, or noise values to draw, from which on a result is built off the engine's thread."""


@dataclass
class _Arrays:
    """The arrays of n samples: states (n, *event) on the CPU, times, calls, status codes, steps of a plan (n,)."""

    x: torch.Tensor
    t: NDArray[np.float64]
    nfe: NDArray[np.int64]
    code: NDArray[np.int64]
    grid_steps: NDArray[np.int64]

    @classmethod
    def empty(cls, n: int, start: float, event_shape: tuple[int, ...], dtype: torch.dtype) -> _Arrays:
        nfe, code, grid_steps = np.zeros((3, n), dtype=np.int64)
        return cls(torch.empty((n, *event_shape), dtype=dtype), np.full(n, start), nfe, code, grid_steps)

    @classmethod
    def of(cls, done: Finished, part: slice) -> _Arrays:
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
        self._allocated: _Arrays | None = None
        self._samples: list[NDArray[np.int64]] = []
        self._steps: list[NDArray[np.float64]] = []

    @property
    def _arrays(self) -> _Arrays:
        if self._allocated is None:
            job = self.job
            self._allocated = _Arrays.empty(job.num_samples, job.plan.t_span[0], self._event_shape, self._dtype)
        return self._allocated

    def begin(self, now: float, network_s: float) -> None:
        """Note the start: `now` on the clock of `time.perf_counter`, and the network's seconds in calls so far."""
        self.started, self.network_s, self.reported_s = now, network_s, 0.0

    def make_room(self, first: int, count: int) -> None:
        """Allocate room for samples first .. first + count - 1 as they become lanes; repeating it is harmless."""
        if count < self.job.num_samples:
            _ = self._arrays
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
            self._allocated = _Arrays.of(finished, part)
            if logged:
                self._samples.append(np.repeat(index, finished.attempts[part]))
                self._steps.append(finished.steps[steps])
        else:
            arrays = self._arrays
            arrays.x[torch.from_numpy(index)] = finished.x[part]
            arrays.t[index], arrays.nfe[index] = finished.t[part], finished.nfe[part]
            arrays.code[index], arrays.grid_steps[index] = finished.status[part], finished.grid_steps[part]
            if logged:  # copies, so that this job does not keep other jobs' lanes in memory
                self._samples.append(np.repeat(index, finished.attempts[part]))
                self._steps.append(finished.steps[steps].copy())
        self.done += count

    def keep(self, saved: SavedStates, chosen: NDArray[np.bool_]) -> None:
        """Take saved states."""
        assert self.saved is not None  # noqa: S101  (only jobs with save_at save)
        mask = torch.from_numpy(chosen)
        self._places += np.bincount(saved.place[chosen], minlength=len(self._places))
        where = (torch.from_numpy(saved.index[chosen]), torch.from_numpy(saved.place[chosen]))
        self.saved[where] = saved.x.cpu()[mask].reshape(-1, *self._event_shape)

    def unstarted(self, first: int, status: Status) -> None:
        """Note that samples from `first` on never ran: they keep their starting states."""
        self._unstarted = (first, status)
        self._arrays.code[first:] = CODES[status]

    @property
    def large(self) -> bool:
        """Whether building the result takes too long for the engine to wait for it."""
        waiting = 0 if self._unstarted is None else self.job.num_samples - self._unstarted[0]
        return self.steps + waiting * math.prod(self._event_shape) > _LARGE

    def spent(self) -> tuple[float, float] | None:
        """Average and maximum calls of the samples that reached the end; None if none did."""
        arrays = self._arrays
        nfe = arrays.nfe[arrays.code == CODES[Status.SUCCESS]]
        return (int(nfe.sum()) / len(nfe), float(nfe.max())) if len(nfe) else None

    def progress(self, reached: tuple[int, float, float], waiting: bool) -> JobProgress:
        """The progress report, given the result of `Arena.reached`, and whether some samples are not lanes yet."""
        nfe, t, share = reached
        n, (begin, end) = self.job.num_samples, self.job.plan.t_span
        if waiting:
            t = begin
        elif math.isnan(t):
            t = end
        self.share = max(self.share, (self.done + share) / n)
        lacking = np.flatnonzero(self._places < n)
        complete = int(lacking[0]) if len(lacking) else len(self._places)
        largest = max(nfe, int(self._arrays.nfe.max()) if self.done else 0)
        return JobProgress(largest, t, self.share, self.done, self.started is None, self.saved, complete)

    def result(self, network_s: float, start_of: Callable[[Job, int, int], torch.Tensor]) -> JobResult:
        """The finished result.

        Args:
            network_s: the arena's network seconds so far.
            start_of: (job, first, count) -> starting states, for samples that never ran.
        """
        now = time.perf_counter()
        started = now if self.started is None else self.started
        arrays = self._arrays
        if self._unstarted is not None:
            first = self._unstarted[0]
            arrays.x[first:] = start_of(self.job, first, self.job.num_samples - first)
            if len(self._places):
                self._room_for_saved()[first:] = math.nan
        return JobResult(
            x=arrays.x,
            saved=self.saved,
            t=arrays.t,
            nfe=arrays.nfe,
            status=NAMES[arrays.code],
            trace=self._trace(arrays),
            rows=(int(arrays.nfe.sum()) * network_rows(self.job.guidance) - self.skipped) * self.job.operation.rows,
            queue_s=max(0.0, started - self.submitted - (self.prelude_s or 0.0)),
            solve_s=now - started,
            network_s=0.0 if self.started is None else network_s - self.network_s,
            prelude_s=self.prelude_s,
        )

    def _trace(self, arrays: _Arrays) -> StepTrace:
        if (times := self.job.plan.times) is not None:
            if self.job.trace != "full":
                return StepTrace.empty()
            return StepTrace.of_grid(times, arrays.grid_steps, arrays.code == CODES[Status.NON_FINITE])
        if len(self._samples) == 1:
            return StepTrace.build(self._samples[0], self._steps[0])
        if not self._samples:
            return StepTrace.empty()
        sample = np.concatenate(self._samples)
        order = np.argsort(sample, kind="stable")
        return StepTrace.build(sample[order], np.concatenate(self._steps)[order])


@dataclass(frozen=True)
class ArenaLoad:
    """The work left for one arena, and its speed.

    Attributes:
        interactive, bulk: network rows that its jobs of each priority still need, over all calls.
        budget: maximum network rows of the lanes of interactive jobs.
        tick_s: (rows, seconds) of a whole tick, rising in both, as measured recently.
    """

    interactive: float
    bulk: float
    budget: int
    tick_s: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Workload:
    """The work left for an engine.

    Attributes:
        jobs: number of jobs waiting or running.
        seconds: about how long all of them take together.
        arenas: (model, version, operation) -> load of each loaded arena. Sizes of free axes follow the operation, as in
            `sample L=12`.
    """

    jobs: int
    seconds: float
    arenas: dict[tuple[str, int, str], ArenaLoad]

    @property
    def work(self) -> float:
        """Network rows that all jobs still need, over all calls."""
        return sum(arena.interactive + arena.bulk for arena in self.arenas.values())
