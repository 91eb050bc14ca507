"""The queue of one arena: its jobs by priority, which lanes tick next, and what jobs and ticks cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from engine.arena import Arena
from engine.cost import NfeEstimates
from engine.job import Job, JobResult, Priority
from engine.result_builder import ResultBuilder
from engine.scheduler import BULK_SHARE, Entry, Scheduler, Turns
from engine.snapshot import ArenaSnapshot
from engine.stages import Pass, Stage

_BULK_PART = 4
"""Bulk jobs get one part in this many of the row budget, as an interactive request may have to wait for their tick."""

_REPRICE_EVERY = 16
"""Ticks after which the cost of jobs under error control is estimated again, from their progress."""


@dataclass(eq=False)
class ActiveJob:
    """A job in the engine; lanes know its number as their owner.

    Attributes:
        number, entry, future: those of the job.
        job: the job; once the prelude has run, with the conditions that the network takes.
        builder: builds its result.
        queue: the queue of its arena.
        left: whether it has left that queue, as all of its lanes have ended.
        going: the stage that its rows wait for, and those rows; None if they wait for none.
    """

    number: int
    entry: Entry
    job: Job
    future: Future[JobResult]
    builder: ResultBuilder
    queue: ArenaQueue
    left: bool = False
    going: tuple[Stage, Pass] | None = None

    @property
    def due(self) -> float:
        """When it ends, however far it has come: a partial answer must still be decoded in time."""
        return self.entry.deadline if self.job.partial or self.job.deadline is None else self.job.deadline


class ArenaQueue:
    """An arena and its jobs; once it is open, only the engine's thread uses it.

    Attributes:
        number, name: number of the arena, and name of its model.
        jobs: by number.
        watched: numbers of the jobs that report progress.
        nfe: estimates learned from its jobs.
        used_s: device time used, for fairness among arenas.
        retired: whether it is removed once its jobs are done.
    """

    def __init__(self, number: int, name: str, arena: Arena) -> None:
        self.number, self.name, self.arena = number, name, arena
        bulk = max(1, arena.budget // _BULK_PART)
        self._schedulers = {Priority.INTERACTIVE: Scheduler(arena.budget), Priority.BULK: Scheduler(bulk)}
        self._limit()
        self._turns = Turns()
        self.jobs: dict[int, ActiveJob] = {}
        self.watched: set[int] = set()
        self.nfe = NfeEstimates()
        self.used_s, self.retired = 0.0, False
        self._solvers: Counter[str] = Counter()  # of jobs that have begun
        self._reprice_at = dict.fromkeys(Priority, 0)
        self._snapshot: ArenaSnapshot | None = None

    def _limit(self) -> None:
        """Let small jobs wait where sharing ticks would make all of them later and none much cheaper."""
        scheduler = self._schedulers[Priority.INTERACTIVE]
        scheduler.enough = self.arena.tick_cost.enough(scheduler.budget)

    def snapshot(self) -> ArenaSnapshot:
        """Return an immutable snapshot of the arena; the previous one if nothing has changed."""
        if self._snapshot is None:
            interactive, bulk = (scheduler.snapshot() for scheduler in self._schedulers.values())
            self._snapshot = ArenaSnapshot(interactive, bulk, self.arena.tick_cost, self.nfe)
        return self._snapshot

    @property
    def in_calls(self) -> tuple[int, int]:
        """Number of jobs that have begun, and of distinct solvers among them."""
        return self._solvers.total(), sum(count > 0 for count in self._solvers.values())

    @property
    def ready(self) -> bool:
        """Whether it has jobs that do not wait for the prelude."""
        return len(self.jobs) > sum(len(scheduler.held) for scheduler in self._schedulers.values())

    def release(self, active: ActiveJob) -> None:
        """Release a held job, so that it can become lanes."""
        self._snapshot = None
        self._schedulers[active.job.priority].release(active.number)

    def add(self, active: ActiveJob, held: bool = False) -> None:
        """Queue a job; a `held` one waits until it is released."""
        self._snapshot = None
        self.jobs[active.number] = active
        self._schedulers[active.job.priority].add(active.entry, held)
        if active.job.on_progress is not None:
            self.watched.add(active.number)

    def forget(self, active: ActiveJob) -> None:
        """Remove a job; the caller must stop any lanes it still has."""
        self._snapshot = None
        del self.jobs[active.number]
        self.watched.discard(active.number)
        self._schedulers[active.job.priority].remove(active.number)
        if active.builder.started is not None:
            self._solvers[active.job.solve.name] -= 1
        self.arena.forget(active.number)

    def grant(self, priority: Priority) -> list[tuple[ActiveJob, int, int]]:
        """Choose the samples that become lanes now, as (job, first sample, count)."""
        granted = [(self.jobs[number], first, n) for number, first, n in self._schedulers[priority].grant()]
        begun = [active for active, first, _ in granted if first == 0]
        now = time.perf_counter() if begun else 0.0
        for active in begun:
            active.builder.begin(now, self.arena.network.seconds)
            self._solvers[active.job.solve.name] += 1
        if granted:
            self._snapshot = None
        return granted

    def groups(self) -> list[Priority]:
        """Return the priorities that take part in the next tick."""
        interactive, bulk = (self.arena.count(priority) for priority in Priority)
        groups = [Priority.INTERACTIVE] if interactive else []
        return [*groups, Priority.BULK] if self._turns.bulk(interactive, bulk) else groups

    def rows(self, groups: Sequence[Priority]) -> list[int]:
        """Network rows of the lanes of each group."""
        return [self._schedulers[group].active_rows for group in groups]

    def ticked(self, groups: Sequence[Priority], ticks: int) -> None:
        """Count ticks of some groups, and from time to time re-estimate the cost of their jobs."""
        self._snapshot = None
        for group in groups:
            scheduler = self._schedulers[group]
            scheduler.tick += ticks
            if scheduler.tick < self._reprice_at[group]:
                continue
            self._reprice_at[group] = scheduler.tick + _REPRICE_EVERY
            self._limit()
            for number, progress in self.arena.paces(group).items():
                place = scheduler.reprice(number, *progress)
                if place is not None and number in self.jobs:
                    self.nfe = self.nfe.suspect(self.jobs[number].job, place.cost, place.calls)

    def used(self, groups: Sequence[Priority], rows: Sequence[int], seconds: float, alone: bool) -> None:
        """Charge the seconds of a tick, given the rows of each group; `alone`: no other arena has jobs."""
        interactive = rows[0] if groups[0] is Priority.INTERACTIVE else 0
        self._turns.used(interactive, sum(rows) - interactive, seconds)
        # Bulk lanes alone pay more if other models have work, which may be interactive.
        self.used_s += seconds if interactive or alone else seconds * (BULK_SHARE - 1)

    def ended(self, active: ActiveJob, lanes: int) -> bool:
        """Note that some lanes of a job have ended; return whether the job is complete."""
        self._snapshot = None
        return self._schedulers[active.job.priority].ended(active.number, lanes)

    def first_waiting(self, active: ActiveJob) -> int:
        """Return the first sample of a job that is not a lane yet; its number of samples if all are."""
        return self._schedulers[active.job.priority].first_waiting(active.number)

    def drop_waiting(self, active: ActiveJob) -> None:
        """Admit no more of a job's samples."""
        self._snapshot = None
        self._schedulers[active.job.priority].drop_waiting(active.number)
