"""The job table: jobs in progress with their futures and deadlines, and outcomes to be delivered."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from typing import Protocol

import numpy as np

from engine.arena_queue import ActiveJob, ArenaQueue
from engine.job import DeadlineExceeded, EngineFailed, Job, JobResult, Outcome
from engine.prelude_cache import PreludeCache
from engine.stages import Pass, Stage, decoder_pass, prelude_pass
from solvers.errors import Status
from solvers.lanes import Finished

STOPPED = "the engine has stopped; restart the service"

Outcomes = list[tuple[Future[JobResult], Outcome]]
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
        except InvalidStateError:
            pass  # it was cancelled meanwhile


class JobTable:
    """All jobs of the engine; used by its thread alone.

    Args:
        observer: counts wasted calls.
        clock: the engine's clock.
        send: makes the engine's thread call `built`; may be called from any thread.
        begin: queues rows for a stage.
        prelude_cache_bytes: see `PreludeCache`.

    Attributes:
        next_deadline: the earliest deadline, by the clock.
    """

    def __init__(
        self,
        observer: Observer | None,
        clock: Callable[[], float],
        send: Callable[[Future[JobResult], Outcome], object],
        begin: Callable[[Stage, Pass], object],
        prelude_cache_bytes: int = 0,
    ) -> None:
        self._preludes = PreludeCache(prelude_cache_bytes)
        self._observer, self._clock, self._send, self._begin = observer, clock, send, begin
        self._jobs: dict[Future[JobResult], ActiveJob] = {}
        self._due: dict[int, ActiveJob] = {}  # those with a deadline
        self.next_deadline = math.inf
        self._outcomes: Outcomes = []
        self._executor = ThreadPoolExecutor(1, "pathline-results")
        self._building = 0  # number of results being built there
        self._to_decode: dict[Future[JobResult], ActiveJob] = {}  # of those, the ones to decode

    def __len__(self) -> int:
        """Return the number of jobs in progress, including those with results being built."""
        return len(self._jobs) + self._building

    def add(self, active: ActiveJob) -> None:
        """Add a job and queue it; if there is a prelude, it is held until its conditions have gone through that."""
        self._keep(active)
        prelude = active.queue.arena.prelude
        active.queue.add(active, held=prelude is not None)
        if prelude is not None:
            self._prepare(active, prelude)

    def _keep(self, active: ActiveJob) -> None:
        self._jobs[active.future] = active
        if active.job.deadline is not None:
            self._due[active.number] = active
            self.next_deadline = min(self.next_deadline, active.due)

    def _prepare(self, active: ActiveJob, prelude: Stage) -> None:
        def then(job: Job) -> None:
            assert active.going is not None  # noqa: S101
            active.builder.prelude_s = active.going[1].seconds
            active.job, active.going = job, None
            active.queue.release(active)

        checkpoint = active.queue.arena.checkpoint
        try:
            rows = prelude_pass(checkpoint, active, active.job, then)
            active.going, total = (prelude, rows), rows.rows
            left, hits = self._preludes.split(checkpoint.digest, rows)
        except Exception as error:  # memory, most likely
            active.going = None
            self.end(active, EngineFailed(f"the prelude failed: {type(error).__name__}: {error}"))
            return
        if self._observer is not None:
            self._observer.prelude(prelude.model, hits, total - hits)
        if left is not None:
            active.going = prelude, left
            self._begin(prelude, left)

    def passed(self, ended: Sequence[Pass], failed: Mapping[Pass, str]) -> None:
        """Continue the jobs of rows that a stage has finished, and fail those of rows that made it fail."""
        for rows in ended:
            rows.then(rows.out)
        for rows, message in failed.items():
            rows.owner.going = None
            self.end(rows.owner, EngineFailed(message))

    def outcomes(self) -> Outcomes:
        """Return the outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def take(self, queue: ArenaQueue, ended: Sequence[Finished]) -> None:
        """Hand lanes that have ended, and saved states, to the jobs they belong to."""
        self._keep_saved(queue)
        for finished in ended:
            attempts, last, logged = finished.attempts.tolist(), 0, 0
            # Lanes that were admitted together are adjacent, so a job's share is a slice.
            for number, lanes in groupby(finished.owner.tolist()):
                first, last = last, last + len(list(lanes))
                before, logged = logged, logged + sum(attempts[first:last])
                if (active := queue.jobs.get(number)) is None:
                    self._count_wasted(finished, slice(first, last))
                    continue
                active.builder.take(finished, slice(first, last), slice(before, logged))
                if queue.ended(active, last - first):
                    self._complete(active)

    def _keep_saved(self, queue: ArenaQueue) -> None:
        for saved in queue.arena.take_saved():
            for number in np.unique(saved.owner).tolist():
                if number in queue.jobs:
                    queue.jobs[number].builder.keep(saved, saved.owner == number)

    def _count_wasted(self, finished: Finished, part: slice) -> None:
        if self._observer is not None:
            self._observer.cancelled(int(finished.nfe[part].sum()))

    def report(self, queue: ArenaQueue, numbers: Sequence[int]) -> None:
        """Report the progress of some jobs, each at most as often as it asked for."""
        now = self._clock()
        self._keep_saved(queue)
        for active in map(queue.jobs.__getitem__, numbers):
            job, builder = active.job, active.builder
            if job.on_progress is not None and now >= builder.reported_s + job.progress_s:
                builder.reported_s = now
                waiting = queue.first_waiting(active) < job.num_samples
                job.on_progress(builder.progress(queue.arena.reached(active.number, job.priority), waiting))

    def _complete(self, active: ActiveJob) -> None:
        builder, queue = active.builder, active.queue
        if active.job.solve.adaptive and (spent := builder.spent()) is not None:
            queue.nfe = queue.nfe.learn(active.job, *spent)
        builder.skipped = queue.arena.network.skipped(active.number)
        network_s, start_of = queue.arena.network.seconds, queue.arena.start_of
        if not builder.large:
            self._solved(active, builder.result(network_s, start_of))
            return

        def build() -> None:
            try:
                outcome: Outcome = builder.result(network_s, start_of)
            except Exception as error:
                outcome = EngineFailed(f"{type(error).__name__}: {error}")
            self._send(active.future, outcome)

        self._forget(active)
        if active.job.decode:
            self._to_decode[active.future] = active
        self._building += 1
        self._executor.submit(build)

    def closing(self, future: Future[JobResult], outcome: Outcome) -> None:
        """Deliver a result that was being built when the thread ended; one still to be decoded is lost."""
        self.add_outcome(future, EngineFailed(STOPPED) if future in self._to_decode else outcome)

    def built(self, future: Future[JobResult], outcome: Outcome) -> None:
        """Deliver a result that was built off the engine's thread, decoding it first if requested."""
        self._building -= 1
        active = self._to_decode.pop(future, None)
        if active is None or not isinstance(outcome, JobResult):
            self.add_outcome(future, outcome)
            return
        self._keep(active)
        self._solved(active, outcome)

    def _solved(self, active: ActiveJob, result: JobResult) -> None:
        """End a job with its result, decoding it first if requested."""
        decoder, job = active.queue.arena.decoder, active.job
        if decoder is None or not job.decode:
            self.end(active, result)
            return
        self._leave(active)
        if job.partial:  # it met its deadline, or has already ended because of it
            self._due.pop(active.number, None)

        def then(decoded: JobResult) -> None:
            seconds = 0.0 if active.going is None else active.going[1].seconds
            active.going = None
            self.end(active, replace(decoded, decoder_s=seconds))

        try:
            rows = decoder_pass(active.queue.arena.checkpoint, active, job, result, then)
        except Exception as error:
            self.end(active, EngineFailed(f"the decoder failed: {type(error).__name__}: {error}"))
            return
        if rows is not None:
            active.going = decoder, rows
            self._begin(decoder, rows)

    def add_outcome(self, future: Future[JobResult], outcome: Outcome) -> None:
        """Add an outcome to the next delivery."""
        self._outcomes.append((future, outcome))

    def expire(self, now: float) -> None:
        """End the jobs past their deadline."""
        if now < self.next_deadline:
            return
        for active in [each for each in self._due.values() if each.due <= now]:
            self._end_late(active)
        self.next_deadline = min((each.due for each in self._due.values()), default=math.inf)

    def _end_late(self, active: ActiveJob) -> None:
        job, queue = active.job, active.queue
        if not job.partial:
            self.abandon(active, DeadlineExceeded())
            return
        self._withdraw(active)
        waiting = queue.first_waiting(active)
        if waiting < job.num_samples:
            active.builder.unstarted(waiting, Status.DEADLINE)
            queue.drop_waiting(active)
        self.take(queue, queue.arena.stop(active.number, Status.DEADLINE, job.priority))
        if active.number in queue.jobs:  # none of its samples ran
            self._complete(active)

    def cancel(self, future: Future[JobResult]) -> None:
        """Cancel a job; does nothing once it has ended."""
        self._to_decode.pop(future, None)
        if future in self._jobs:
            self.abandon(self._jobs[future], None)

    def abandon(self, active: ActiveJob, outcome: Exception | None) -> None:
        """End a job with an outcome and stop its lanes."""
        left = active.left
        self.end(active, outcome)
        if not left:
            self.take(active.queue, active.queue.arena.stop(active.number, Status.CANCELLED, active.job.priority))

    def end(self, active: ActiveJob, outcome: Outcome) -> None:
        """End a job without lanes, and deliver its outcome."""
        self._forget(active)
        self.add_outcome(active.future, outcome)

    def abandon_all(self, reason: Exception) -> None:
        """End all jobs."""
        for active in list(self._jobs.values()):
            self.abandon(active, reason)

    def close(self, reason: Exception) -> None:
        """Fail all jobs with a reason; their lanes are left as they are."""
        self._executor.shutdown()
        self._outcomes += [(future, reason) for future in self._jobs]
        self._jobs.clear()

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
        if active.going is not None:
            stage, rows = active.going
            stage.passes.remove(rows)
            active.going = None
