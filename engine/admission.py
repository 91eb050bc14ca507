"""Admission: what jobs cost, and whether one is accepted.

A job is accepted if the work ahead of it (what runs, and waiting jobs with an earlier deadline) and its own fit into
half of its time limit, at the rate that was measured. The other half is for what such a sum does not know: jobs with
earlier deadlines that come later, samples that are harder than others of their kind, a machine that becomes slower.

The calls of a job (its NFE) are exact for plans; under error control, they are learned from jobs of the same kind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

from engine.job import Job, Overloaded, Priority, TooSlow
from engine.scheduler import BULK_SHARE, E, Entry, Scheduler, TickCostModel, ahead
from models.guidance import network_rows

_T = TypeVar("_T")

_GUESSED_NFE = 80.0
"""Calls of an adaptive sample before any has been seen."""

_JOBS_KEPT = 32
"""Maximum number of jobs remembered for each kind."""

_CAUTIOUS = 0.9
"""Quantile of those jobs that predicts the calls of a job's slowest sample."""

_MAX_KINDS = 256


class Cost(NamedTuple):
    """Calls of a job's samples.

    Attributes:
        mean: expected calls of one sample.
        slowest: expected calls of the slowest sample, estimated cautiously.
        typical: median over earlier jobs of the slowest sample's calls; None if no similar job has run.
    """

    mean: float
    slowest: float
    typical: float | None


class NfeEstimates:
    """Calls that the jobs of one arena have taken.

    Kinds are looked up from the most exact to the least: method, powers of tolerances and span, and number of samples
    (the slowest of many takes longer); then without the number, then the method alone.
    """

    def __init__(self) -> None:
        # For the newest jobs of each kind, the calls of a sample on average, and of the slowest; and the same,
        # extrapolated from the first job of a kind while it runs.
        self._seen: dict[tuple[str, ...], tuple[tuple[float, float], ...]] = {}
        self._in_progress: dict[tuple[str, ...], tuple[float, float]] = {}

    def of(self, job: Job) -> Cost:
        """The expected cost of a job."""
        if (nfe := job.plan.nfe) is not None:
            return Cost(nfe, nfe, nfe)
        least, bound, kinds = float(job.plan.nfe_least), float(job.plan.nfe_bound), _kinds(job)

        def possible(calls: float) -> float:
            return min(max(calls, least), bound)  # the estimate may come from another kind

        if kinds[1] not in self._seen and (early := self._in_progress.get(kinds[1])):
            return Cost(possible(early[0]), possible(early[1]), None)
        for exactness, kind in enumerate(kinds):
            if pairs := self._seen.get(kind):
                mean = sum([calls for calls, _ in pairs]) / len(pairs)
                slowest = sorted([calls for _, calls in pairs])
                cautious = slowest[min(len(slowest) - 1, int(_CAUTIOUS * len(slowest)))]
                typical = possible(slowest[(len(slowest) - 1) // 2]) if exactness < 2 else None
                return Cost(possible(mean), possible(cautious), typical)
        guess = possible(_GUESSED_NFE)
        return Cost(guess, guess, None)

    def suspect(self, job: Job, mean: float, slowest: float) -> None:
        """Note the calls that the first job of its kind will take, extrapolated from its progress."""
        _renew(self._in_progress, _kinds(job)[1], (mean, slowest))

    def learn(self, job: Job, mean: float, slowest: float) -> None:
        """Learn the mean and the largest number of calls of the samples of a finished job."""
        for kind in _kinds(job)[:2] if job.plan.spec.max_step is not None else _kinds(job):
            _renew(self._seen, kind, (*self._seen.get(kind, ())[1 - _JOBS_KEPT :], (mean, slowest)))


def _renew(table: dict[tuple[str, ...], _T], kind: tuple[str, ...], value: _T) -> None:
    """Set the value of a kind, as the newest; if there are too many kinds, those set longest ago are dropped."""
    table.pop(kind, None)
    table[kind] = value
    for old in list(islice(table, max(0, len(table) - _MAX_KINDS))):
        del table[old]


def _kinds(job: Job) -> tuple[tuple[str, ...], ...]:
    """Kinds of a job, the most exact first.

    A job with max_step is compared first to those that max_step forces to about as many steps, and does not predict
    jobs without it.
    """
    spec, (start, end) = job.plan.spec, job.plan.t_span
    powers = [f"{math.log10(tolerance):.0f}" for tolerance in (spec.rtol, spec.atol) if tolerance is not None]
    kind = (spec.solver, spec.error_control, *powers, f"{math.log2(abs(end - start)):.0f}")
    bits = f"{job.num_samples.bit_length()} bits"
    if spec.max_step is None:
        return (*kind, bits), kind, (spec.solver,)
    short = (*kind, f"least {job.plan.nfe_least:.1e}")
    return (*short, bits), short, kind, (spec.solver,)


class Queue:
    """The jobs of one arena, and what they and its ticks cost.

    Attributes:
        schedulers: those of interactive and of bulk jobs.
        ticks: seconds of its ticks.
        nfe: calls of its jobs.
    """

    def __init__(self, budget: int, ticks: TickCostModel) -> None:
        self.schedulers: tuple[Scheduler[Any], Scheduler[Any]] = Scheduler(budget), Scheduler(max(1, budget // 4))
        self.ticks, self.nfe = ticks, NfeEstimates()

    def work(self, bulk: bool) -> float:
        """Network rows that the jobs of a priority still need."""
        scheduler = self.schedulers[bulk]
        return sum([entry.work(scheduler.tick) for entry in scheduler.entries.values()])

    def seconds(self, bulk: bool) -> float:
        """About how many seconds the jobs of a priority take together."""
        scheduler = self.schedulers[bulk]
        if not (entries := scheduler.entries.values()):
            return 0.0
        lanes = sum([entry.width * (entry.samples - entry.admitted + entry.active) for entry in entries])
        rows = min(scheduler.enough, lanes)
        slowest = max([entry.calls_left(scheduler.tick) for entry in entries]) * self.ticks.seconds(1)
        return max(slowest, self.work(bulk) * self.ticks.seconds(rows) / rows) if rows else slowest

    def alone_s(self, calls: float, work: float, rows: float, bulk: bool) -> float:
        """Seconds of a job that runs alone, given its calls, total rows, and rows per call."""
        budget = self.schedulers[bulk].budget
        return max(calls, work / budget) * self.ticks.seconds(min(rows, budget))


class Work(Protocol):
    """The jobs and stages of the engine, guarded by the same lock as `Gate`."""

    @property
    def queues(self) -> Mapping[int, Queue]:
        """The queues by number."""
        ...

    @property
    def stages_s(self) -> float:
        """Seconds that preludes and decoders still need for their waiting rows."""
        ...

    def __len__(self) -> int:
        """Number of jobs."""
        ...


_SHARE = 0.5
"""Share of a job's time that the work ahead of it and its own may take up."""

_HARDLY = 0.1
"""Share of its own time by which a job may be held up as if it had the machine to itself."""

_LEAST_RETRY_S, _LONGEST_LINE_S = 0.1, 60.0

_FULL = "the queue is full (PATHLINE_MAX_QUEUE)"
_LATE = "at capacity: this request would miss its timeout_s"


class Gate:
    """Accepts jobs and numbers them.

    Args:
        max_queue: maximum number of jobs waiting or running.
        clock: the engine's clock.
        work: the jobs and stages of the engine.
    """

    def __init__(self, max_queue: int, clock: Callable[[], float], work: Work) -> None:
        self._max_queue, self._clock, self._work = max_queue, clock, work
        self._numbers = itertools.count()
        # When the refused jobs of each priority would be done, if all come back.
        self._line_ends = [-math.inf, -math.inf]

    def take(self, queue: Queue, job: Job, stages_s: float, entry: Callable[..., E]) -> E:
        """Accept a job, to be added to this queue at once.

        Args:
            queue: the jobs that it joins.
            job: the job.
            stages_s: seconds that it needs before and after its network calls.
            entry: makes the entry from its numbers.

        Raises:
            TooSlow: it would be late even with the machine to itself, and a partial result is no use.
            Overloaded: the queue is full, or the job would be late; with the time until the same job would be accepted.
        """
        now, bulk = self._clock(), job.priority is Priority.BULK
        if len(self._work) >= self._max_queue:
            raise Overloaded(_FULL, max(_LEAST_RETRY_S, self._until_one_ends(now)))
        cost, end = queue.nfe.of(job), job.deadline
        mean, slowest, typical = cost
        calls, width = (slowest if slowest > mean else mean), network_rows(job.guidance)
        deadline = math.inf
        if end is not None:
            _check_speed(queue, job, cost, job.num_samples * width, end - now, stages_s)
            deadline = max(now, end - stages_s)
        if job.partial:  # it ends at its deadline, done or not
            most = max(1.0, (deadline - now) / queue.ticks.seconds(job.num_samples * width))
            mean, calls = min(mean, most), min(calls, most)
        accepted = entry(
            number=next(self._numbers),
            samples=job.num_samples,
            cost=mean,
            whole=job.plan.batch,
            width=width,
            calls=calls,
            certain=typical is not None,
            deadline=deadline,
            partial=job.partial,
        )
        if end is not None:
            self._check_time(queue, bulk, accepted, now)
        return accepted

    def all_s(self) -> float:
        """About how many seconds all work takes."""
        return self._others_s(None, False, math.inf, self._clock())

    def _others_s(self, mine: Queue | None, bulk: bool, needed_s: float, now: float) -> float:
        """Seconds that other queues and the stages take while a job of this queue gets `needed_s`."""
        total = 0.0
        for queue in self._work.queues.values():
            for other in (False, True):
                if queue is mine and other is bulk:
                    continue
                seconds = queue.seconds(other) if queue.schedulers[other].entries else 0.0
                if queue is mine and bulk:
                    seconds += max(0.0, self._line_ends[False] - now)  # those come back
                if seconds:
                    weight = 1.0 if other is bulk else BULK_SHARE - 1.0
                    total += min(seconds, needed_s * (weight if bulk else 1 / weight))
        stages_s = self._work.stages_s
        return total + stages_s if stages_s < needed_s else total + needed_s

    def _until_one_ends(self, now: float) -> float:
        """Seconds until a job ends: the mean of all, but not after the first deadline."""
        schedulers = [scheduler for queue in self._work.queues.values() for scheduler in queue.schedulers]
        deadlines = [entry.deadline for scheduler in schedulers for entry in scheduler.entries.values()]
        return min(self.all_s() / max(1, len(deadlines)), min(deadlines, default=math.inf) - now)

    def _check_time(self, queue: Queue, bulk: bool, entry: Entry, now: float) -> None:
        """Refuse a job for which the work ahead of it leaves too little time.

        A partial one needs none of its own: it answers with what it has at its deadline.

        Raises:
            Overloaded: as in `take`.
        """
        left_s, scheduler, own_rows = entry.deadline - now, queue.schedulers[bulk], entry.samples * entry.width
        before, rows = ahead(scheduler.entries.values(), entry, scheduler)
        tick_s, own_work = queue.ticks.seconds(rows), own_rows * entry.cost
        alone_s = queue.alone_s(entry.calls, own_work, own_rows, bulk)
        shared_s = entry.calls * tick_s if scheduler.is_small(own_rows) else 0.0
        own_s, ahead_s = (alone_s if alone_s > shared_s else shared_s), before * tick_s / rows
        ahead_s += self._others_s(queue, bulk, ahead_s + own_s, now)
        over_s = ahead_s + (0.0 if entry.partial else own_s) - _SHARE * left_s
        held_up_s = ahead_s + own_s - alone_s
        # A job that hardly fits even alone is accepted if nothing holds it up.
        if over_s <= 0.0 or held_up_s <= _HARDLY * alone_s:
            return
        wait_s = max(_LEAST_RETRY_S, min(held_up_s, over_s))
        raise Overloaded(_LATE, wait_s + self._line_s(bulk, now, own_work * tick_s / rows))

    def _line_s(self, bulk: bool, now: float, own_s: float) -> float:
        """Seconds of the jobs refused before, which come back too: each is told a time of its own."""
        line_s = max(0.0, self._line_ends[bulk] - now)
        self._line_ends[bulk] = now + (line_s + own_s) % _LONGEST_LINE_S
        return line_s


def _check_speed(queue: Queue, job: Job, cost: Cost, rows: int, left_s: float, stages_s: float) -> None:
    calls = cost.typical
    if calls is None and job.plan.adaptive:
        calls = float(job.plan.nfe_least)
    if job.partial or job.follows or calls is None or left_s <= 0:
        return
    budget = queue.schedulers[job.priority is Priority.BULK].budget
    # The load on the cores may change: only the cost of the work itself proves that it never fits.
    needed_s = stages_s + max(calls, rows * calls / budget) * queue.ticks.cost(rows if rows < budget else budget)
    if needed_s > left_s:
        raise TooSlow(needed_s)
