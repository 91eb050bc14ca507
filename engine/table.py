"""The job table: all jobs by arena, with their unfinished results, deadlines and futures.

Its owner's lock guards it: any thread adds a job under that lock, and the engine's thread does everything else.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from engine.admission import Queue
from engine.arena import Arena
from engine.job import EngineFailed, Job, JobResult, Outcome, Pending, ResultBuilder, TooLate
from engine.scheduler import BULK_SHARE, BulkShare, Entry
from engine.stages import Pass, Stage, decoder_pass, prelude_pass, without_kept
from solvers.cache import BytesCache
from solvers.errors import Status
from solvers.lanes import Finished

STOPPED = "the engine has stopped; restart the service"

_REPRICE_EVERY = 16
"""Ticks after which the cost of jobs under error control is estimated again, from their progress."""

Outcomes = list[tuple[Pending, Outcome]]
"""Futures and their outcomes."""


class Observer(Protocol):
    """Counts what the engine does; called in its thread."""

    def batch(self, model: str, operation: str, rows: int, requests: int, solvers: int, calls: int) -> None:
        """Count network calls, all with the same number of rows, requests and solvers."""
        ...

    def cancelled(self, nfe: int) -> None:
        """Count calls spent on samples that will not be delivered."""
        ...

    def prelude(self, model: str, hits: int, misses: int) -> None:
        """Count rows of a prelude whose results were kept, and rows that it computes."""
        ...


def settle(outcomes: Outcomes) -> None:
    """Complete futures with their outcomes."""
    for future, outcome in outcomes:
        try:
            if outcome is None:
                future.cancel()
            elif isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        except (InvalidStateError, asyncio.InvalidStateError):
            pass  # it was cancelled meanwhile


@dataclass(eq=False, kw_only=True)
class ActiveJob(Entry):
    """A job in the engine; lanes know its number as their owner.

    Attributes:
        job: the job; once the prelude has run, with the conditions that the network takes.
        queue: the queue of its arena.
        bulk: whether its lanes are bulk lanes.
        future: receives its outcome.
        builder: builds its result, from when the job has joined its queue.
        left: whether it has left the queue, as all of its lanes have ended.
        waits_for: the stage that its rows wait for, and those rows; None if they wait for none.
    """

    job: Job
    queue: ArenaQueue
    bulk: bool
    future: Pending
    builder: ResultBuilder = field(init=False)
    left: bool = False
    waits_for: tuple[Stage, Pass] | None = None

    @property
    def due(self) -> float:
        """When it ends, however far it has come: a partial answer must still be decoded in time."""
        return self.deadline if self.partial or self.job.deadline is None else self.job.deadline


class ArenaQueue(Queue):
    """An arena and its jobs.

    Attributes:
        number, name: number of the arena, and name of its model.
        jobs: by number.
        used_s: device time used, for fairness among arenas.
        retired: whether it is removed once its jobs are done.
        requests: number of jobs that have begun.
        solvers: their number by solver.
    """

    def __init__(self, number: int, name: str, arena: Arena) -> None:
        super().__init__(arena.budget, arena.tick_cost)
        self.number, self.name, self.arena = number, name, arena
        self.jobs: dict[int, ActiveJob] = {}
        self.used_s, self.retired = 0.0, False
        self.requests, self.solvers = 0, dict[str, int]()
        self._watched: dict[int, ActiveJob] = {}  # jobs that report progress
        self._share = BulkShare()
        self._reprice_at = [0, 0]
        self._limit()

    def _limit(self) -> None:
        """Let small jobs wait where sharing ticks would make all of them later and none much cheaper."""
        scheduler = self.schedulers[False]
        scheduler.enough = self.ticks.enough(scheduler.budget)

    @property
    def ready(self) -> bool:
        """Whether it has jobs that do not wait for the prelude."""
        return len(self.jobs) > len(self.schedulers[False].held) + len(self.schedulers[True].held)

    def add(self, active: ActiveJob) -> None:
        """Queue a job; it waits until it is released if its conditions have to go through a prelude."""
        active.builder = ResultBuilder(active.job, self.arena.event_shape, self.arena.dtype)
        self.jobs[active.number] = active
        self.schedulers[active.bulk].add(active, self.arena.prelude is not None)
        if active.job.on_progress is not None:
            self._watched[active.number] = active

    def release(self, active: ActiveJob) -> None:
        """Release a job, so that it can become lanes."""
        self.schedulers[active.bulk].release(active)

    def forget(self, active: ActiveJob) -> None:
        """Remove a job; the caller must stop any lanes it still has."""
        del self.jobs[active.number]
        self._watched.pop(active.number, None)
        self.schedulers[active.bulk].remove(active)
        if active.builder.started is not None:
            self._count(active.job.plan.spec.solver, -1)
        self.arena.forget(active.number)

    def grant(self, bulk: bool) -> list[tuple[ActiveJob, int, int]]:
        """Choose the samples that become lanes now, as (job, first sample, count)."""
        granted = self.schedulers[bulk].grant()
        now = time.perf_counter() if granted else 0.0
        for active, first, _ in granted:
            if first == 0:
                active.builder.begin(now, self.arena.network.seconds)
                self._count(active.job.plan.spec.solver, 1)
        return granted

    def _count(self, solver: str, more: int) -> None:
        self.requests += more
        self.solvers[solver] = count = self.solvers.get(solver, 0) + more
        if not count:
            del self.solvers[solver]

    def groups(self) -> list[bool]:
        """Return the priorities that take part in the next tick."""
        interactive, bulk = self.arena.counts
        return [*([False] if interactive else ()), *([True] if self._share.takes_part(interactive, bulk) else ())]

    def ticked(self, groups: Sequence[bool], rows: Sequence[int], ticks: int, seconds: float, alone: bool) -> None:
        """Count ticks: charge their seconds, and from time to time re-estimate the cost of the jobs.

        Args:
            groups: the priorities that took part.
            rows: network rows of each.
            ticks: number of ticks.
            seconds: duration of all.
            alone: whether no other arena has jobs.
        """
        interactive, bulk = (0 if groups[0] else rows[0]), (rows[-1] if groups[-1] else 0)
        self._share.used(interactive, bulk, seconds)
        # Bulk lanes alone pay more if other models have work, which may be interactive.
        self.used_s += seconds if interactive or alone else seconds * (BULK_SHARE - 1)
        for group in groups:
            scheduler = self.schedulers[group]
            scheduler.tick += ticks
            if scheduler.tick >= self._reprice_at[group]:
                self._reprice_at[group] = scheduler.tick + _REPRICE_EVERY
                self._limit()
                for number, progress in self.arena.paces(group).items():
                    active = scheduler.reprice(number, *progress)
                    if active is not None:
                        self.nfe.suspect(active.job, active.cost, active.calls)

    def report(self, groups: Sequence[bool], now: float) -> None:
        """Report the progress of the jobs that took part, each at most as often as it asked for."""
        if self._watched:
            for active in [active for active in self._watched.values() if active.bulk in groups]:
                self.report_one(active, now)

    def report_one(self, active: ActiveJob, now: float) -> None:
        """Report the progress of a job, unless it has been reported just now."""
        job, builder = active.job, active.builder
        if job.on_progress is not None and now >= builder.reported_s + job.progress_s:
            self.keep_saved()
            builder.reported_s = now
            reached = self.arena.reached(active.number, active.bulk)
            job.on_progress(builder.progress(reached, active.admitted < job.num_samples))

    def keep_saved(self) -> None:
        """Hand saved states to the jobs they belong to."""
        for saved in self.arena.take_saved():
            for number in np.unique(saved.owner).tolist():
                if number in self.jobs:
                    self.jobs[number].builder.keep(saved, saved.owner == number)


class JobTable:
    """All jobs of the engine.

    Args:
        observer: counts wasted calls.
        clock: the engine's clock.
        send: makes the engine's thread call `built`; may be called from any thread.
        prelude_cache_bytes: bytes of results of preludes to keep, see `stages.without_kept`.

    Attributes:
        queues: the arenas by number.
        stages: stages with waiting rows.
        next_deadline: the earliest deadline, by the clock.
        served_s: time used by the arena of the last turn, before that turn.
    """

    def __init__(
        self,
        observer: Observer | None,
        clock: Callable[[], float],
        send: Callable[[Pending, Outcome], object],
        prelude_cache_bytes: int = 0,
    ) -> None:
        self._preludes = BytesCache[bytes, tuple[torch.Tensor, ...]](
            prelude_cache_bytes, lambda row: sum(t.nbytes for t in row)
        )
        self._observer, self._clock, self._send = observer, clock, send
        self.queues: dict[int, ArenaQueue] = {}
        self.stages: list[Stage] = []
        self.next_deadline = math.inf
        self.served_s = 0.0
        self._jobs: dict[Pending, ActiveJob] = {}
        self._due: dict[int, ActiveJob] = {}  # those with a deadline
        self._outcomes: Outcomes = []
        self._executor = ThreadPoolExecutor(1, "pathline-results")
        self._building = 0  # number of results being built there
        self._to_decode: dict[Pending, ActiveJob] = {}  # of those, the ones to decode

    def __len__(self) -> int:
        """Return the number of jobs in progress, including those with results being built."""
        return len(self._jobs) + self._building

    @property
    def stages_s(self) -> float:
        """Seconds that preludes and decoders still need for their waiting rows."""
        return sum([stage.left_s for stage in self.stages])

    def busy(self) -> list[ArenaQueue | Stage]:
        """Arenas and stages with work to do; what is done with is dropped."""
        if self.stages:
            self.stages = [stage for stage in self.stages if stage.passes]
        for queue in [queue for queue in self.queues.values() if queue.retired and not queue.jobs]:
            del self.queues[queue.number]
        return [*(queue for queue in self.queues.values() if queue.jobs and queue.ready), *self.stages]

    def _fair(self, used_s: float) -> float:
        """The used time to give an arena or stage that was idle until now: idling earns no credit."""
        return max(used_s, min((busy.used_s for busy in self.busy()), default=self.served_s))

    def add(self, active: ActiveJob) -> None:
        """Add a job and queue it; `begin` follows as a command."""
        if not active.queue.jobs:
            active.queue.used_s = self._fair(active.queue.used_s)
        active.queue.add(active)
        self._hold(active)

    def _hold(self, active: ActiveJob) -> None:
        self._jobs[active.future] = active
        if active.job.deadline is not None:
            self._due[active.number] = active
            if (due := active.due) < self.next_deadline:
                self.next_deadline = due

    def begin(self, active: ActiveJob) -> None:
        """Send a new job's conditions through the prelude, if there is one, and report for the first time."""
        if active.future not in self._jobs:  # cancelled, or late
            return
        if active.job.on_progress is not None:
            active.queue.report_one(active, self._clock())
        if active.queue.arena.prelude is not None:
            self._prepare(active, active.queue.arena.prelude)

    def _prepare(self, active: ActiveJob, prelude: Stage) -> None:
        """Send a job's conditions through the prelude, but for those whose results are kept."""
        checkpoint = active.queue.arena.checkpoint

        def then(job: Job) -> None:
            assert active.waits_for is not None  # noqa: S101
            active.builder.prelude_s = active.waits_for[1].seconds
            active.job, active.waits_for = job, None
            active.queue.release(active)

        try:
            rows = prelude_pass(checkpoint, active, active.job, then)
            active.waits_for, total = (prelude, rows), rows.rows
            left, hits = without_kept(self._preludes, checkpoint.digest, rows)
        except Exception as error:  # memory, most likely
            active.waits_for = None
            self.end(active, EngineFailed(f"the prelude failed: {type(error).__name__}: {error}"))
            return
        if self._observer is not None:
            self._observer.prelude(prelude.model, hits, total - hits)
        if left is not None:
            self._wait(active, prelude, left)

    def _wait(self, active: ActiveJob, stage: Stage, rows: Pass) -> None:
        """Let rows of a job wait for a stage."""
        active.waits_for = stage, rows
        if not stage.passes:
            stage.used_s = self._fair(stage.used_s)
        stage.put(rows)
        if stage not in self.stages:
            self.stages.append(stage)

    def passed(self, ended: Sequence[Pass], failed: Mapping[Pass, str]) -> None:
        """Continue the jobs of rows that a stage has finished, and fail those of rows that made it fail."""
        for rows in ended:
            rows.then(rows.out)
        for rows, message in failed.items():
            rows.owner.waits_for = None
            self.end(rows.owner, EngineFailed(message))

    def outcomes(self) -> Outcomes:
        """Return the outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def take(self, queue: ArenaQueue, ended: Sequence[Finished]) -> None:
        """Hand lanes that have ended, and saved states, to the jobs they belong to."""
        queue.keep_saved()
        for finished in ended:
            owners, steps = finished.owner, [0, *finished.attempts.cumsum().tolist()]
            # Lanes that were admitted together are adjacent, so a job's share is a slice.
            starts = [0, *((owners[1:] != owners[:-1]).nonzero()[0] + 1).tolist(), len(owners)]
            for first, last in pairwise(starts):
                active, part = queue.jobs.get(int(owners[first])), slice(first, last)
                if active is None:
                    if self._observer is not None:
                        self._observer.cancelled(int(finished.nfe[part].sum()))
                    continue
                active.builder.take(finished, part, slice(steps[first], steps[last]))
                if queue.schedulers[active.bulk].ended(active, last - first):
                    self._complete(active)

    def _complete(self, active: ActiveJob) -> None:
        builder, queue = active.builder, active.queue
        if active.job.plan.adaptive and (spent := builder.spent()) is not None:
            queue.nfe.learn(active.job, *spent)
        builder.skipped = queue.arena.network.skipped(active.number)
        network_s, start_of = queue.arena.network.seconds, queue.arena.start_of
        if not builder.large:
            self._solved(active, builder.result(network_s, start_of))
            return

        def build() -> None:
            try:
                with torch.inference_mode():
                    outcome: Outcome = builder.result(network_s, start_of)
            except Exception as error:
                outcome = EngineFailed(f"{type(error).__name__}: {error}")
            self._send(active.future, outcome)

        self._forget(active)
        if active.job.decode:
            self._to_decode[active.future] = active
        self._building += 1
        self._executor.submit(build)

    def built(self, future: Pending, outcome: Outcome) -> None:
        """Deliver a result that was built off the engine's thread, decoding it first if requested."""
        self._building -= 1
        active = self._to_decode.pop(future, None)
        if active is None or not isinstance(outcome, JobResult):
            self._outcomes.append((future, outcome))
            return
        self._hold(active)
        self._solved(active, outcome)

    def _solved(self, active: ActiveJob, result: JobResult) -> None:
        """End a job with its result, decoding it first if requested."""
        decoder, checkpoint, job = active.queue.arena.decoder, active.queue.arena.checkpoint, active.job
        if decoder is None or not job.decode:
            self.end(active, result)
            return
        self._leave(active)
        if job.partial:  # it met its deadline, or has already ended because of it
            self._due.pop(active.number, None)

        def then(decoded: JobResult) -> None:
            seconds = 0.0 if active.waits_for is None else active.waits_for[1].seconds
            active.waits_for = None
            self.end(active, replace(decoded, decoder_s=seconds))

        try:
            rows = decoder_pass(checkpoint, active, job, result, then)
        except Exception as error:
            self.end(active, EngineFailed(f"the decoder failed: {type(error).__name__}: {error}"))
            return
        if rows is not None:
            self._wait(active, decoder, rows)

    def expire(self, now: float) -> None:
        """End the jobs past their deadline."""
        if now < self.next_deadline:
            return
        for active in [active for active in self._due.values() if active.due <= now]:
            if active.job.partial:
                self._cut(active)
            else:
                self.abandon(active, TooLate())
        self.next_deadline = min((active.due for active in self._due.values()), default=math.inf)

    def _cut(self, active: ActiveJob) -> None:
        """End a job with what it has."""
        self._withdraw(active)
        queue = active.queue
        if active.admitted < active.job.num_samples:
            active.builder.unstarted(active.admitted, Status.DEADLINE)
            queue.schedulers[active.bulk].drop_waiting(active)
        self.take(queue, queue.arena.stop(active.number, Status.DEADLINE, active.bulk))
        if active.number in queue.jobs:  # none of its samples ran
            self._complete(active)

    def cancel(self, future: Pending) -> None:
        """Cancel a job; does nothing once it has ended."""
        self._to_decode.pop(future, None)
        if future in self._jobs:
            self.abandon(self._jobs[future], None)

    def abandon(self, active: ActiveJob, outcome: Exception | None) -> None:
        """End a job with an outcome and stop its lanes."""
        left = active.left
        self.end(active, outcome)
        if not left:
            self.take(active.queue, active.queue.arena.stop(active.number, Status.CANCELLED, active.bulk))

    def end(self, active: ActiveJob, outcome: Outcome) -> None:
        """End a job without lanes, and deliver its outcome."""
        self._forget(active)
        self._outcomes.append((active.future, outcome))

    def abandon_all(self, reason: Exception) -> None:
        """End all jobs."""
        for active in list(self._jobs.values()):
            self.abandon(active, reason)

    def close(self) -> None:
        """Fail all jobs, as the thread has ended; their lanes are left as they are."""
        self._executor.shutdown()
        reason = EngineFailed(STOPPED)
        self._outcomes += [(future, reason) for future in self._jobs]
        self._jobs.clear()
        self.queues.clear()

    def close_built(self, future: Pending, outcome: Outcome) -> None:
        """Deliver a result that was being built when the thread ended; one still to be decoded is lost."""
        self._outcomes.append((future, EngineFailed(STOPPED) if future in self._to_decode else outcome))

    def _forget(self, active: ActiveJob) -> None:
        del self._jobs[active.future]
        self._due.pop(active.number, None)
        self._withdraw(active)
        self._leave(active)

    @staticmethod
    def _leave(active: ActiveJob) -> None:
        if not active.left:
            active.left = True
            active.queue.forget(active)

    @staticmethod
    def _withdraw(active: ActiveJob) -> None:
        """Withdraw the rows that wait for a stage."""
        if active.waits_for is not None:
            stage, rows = active.waits_for
            stage.drop(rows)
            active.waits_for = None
