"""One loaded model version inside the engine: its arena, its jobs in two priorities, and what a job will cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from models.guidance import network_rows
from service.engine.assembly import Assembly
from service.engine.costs import Costs
from service.engine.forecast import Demand, Lot
from service.engine.job import Job, JobResult, Overloaded, Priority, TooSlow
from service.engine.operation import Operation
from service.engine.promises import KEPT, Prospects
from service.engine.runner import Arena
from service.engine.scheduler import Entry, Scheduler, Turns

_LOT_S = 0.02
_LEAST_RETRY_S = 0.1

_SAME_S = 0.1
"""So long the same request is refused again without another look, or half of the time it was told to wait: under
overload looks would cost what the requests do that were taken."""

_MOST_REFUSALS = 64
_BULK_PART = 4
"""Bulk jobs get a smaller arena: a tick of theirs, which an interactive request may wait for, takes a part of a long
one."""


@dataclass
class Running:
    """A job in the engine."""

    assembly: Assembly
    future: Future[JobResult]

    @property
    def job(self) -> Job:
        """The job."""
        return self.assembly.job


class Model:
    """An arena with its jobs.

    Attributes:
        schedulers: one for each priority; the arena's groups of lanes have the same names.
        jobs: by number.
        incoming: entries that were submitted and that the engine's thread has not seen yet, by number.
        used_s: time used, for fairness among models.
        solvers: how many jobs that have begun use each solver.
        watched: jobs whose progress is reported.
        reprice_at: the tick of each scheduler from which on costs are estimated anew.
        retired: to be dropped once its jobs are done.
        costs: what its jobs have taken.
        beside: of the model for samples: those of other operations of the same version. Replaced, never changed.
    """

    def __init__(self, name: str, arena: Arena) -> None:
        self.name, self.arena = name, arena
        bulk = max(1, arena.budget // _BULK_PART)
        self.schedulers = {Priority.INTERACTIVE: Scheduler(arena.budget), Priority.BULK: Scheduler(bulk)}
        self.turns = Turns()
        self.jobs: dict[int, Running] = {}
        self.incoming: dict[int, tuple[Entry, Priority]] = {}
        self.used_s = 0.0
        self.solvers: Counter[str] = Counter()
        self.watched: set[int] = set()
        self.reprice_at = dict.fromkeys(Priority, 0)
        self.retired = False
        self.beside: dict[Operation, Model] = {}
        self.costs = Costs()
        self._refusals: dict[tuple[float, ...], tuple[float, float]] = {}  # when, and for how long
        self._lots: dict[Priority, tuple[float, object, Lot]] = {}

    def __len__(self) -> int:
        """Jobs that the engine's thread knows."""
        return len(self.jobs)

    @property
    def busy(self) -> bool:
        """Whether it has jobs, or some are on their way."""
        return bool(self.jobs or self.incoming)

    def entry(self, number: int, job: Job, now: float) -> Entry:
        """A job as its scheduler sees it, at some time."""
        whole = job.solve.batch
        cost = self.costs.of(job)
        deadline = math.inf if job.deadline is None else job.deadline
        entry = Entry(
            number,
            job.num_samples,
            cost.mean,
            whole,
            network_rows(job.guidance),
            calls=cost.most,
            known=cost.typical is not None,
            deadline=deadline,
            promised=job.deadline is not None and not job.partial,
        )
        left_s = deadline - now
        entry.tight = self._alone_s(entry, job.priority) > 0.5 * left_s
        small = self.schedulers[job.priority].is_small(entry.rows)
        if small and job.priority is Priority.INTERACTIVE:
            slowest_s = self.arena.pace.seconds(self.arena.budget + self.arena.budget // _BULK_PART)
            entry.bears_s = KEPT * left_s / entry.calls
            entry.relaxed = slowest_s <= entry.bears_s
        return entry

    def lot(self, priority: Priority, now: float) -> Lot:
        """The jobs of a priority: now, or up to 20 ms ago if nothing has come since."""
        scheduler = self.schedulers[priority]
        incoming = [entry for entry, whose in list(self.incoming.values()) if whose is priority]
        key = scheduler.added, [entry.number for entry in incoming]
        made = self._lots.get(priority)
        if made is None or made[1] != key or not made[0] <= now <= made[0] + _LOT_S:
            bulk = priority is Priority.BULK
            lot = Lot.of(self, bulk, scheduler, self.arena.pace.curve(), incoming, now)
            made = self._lots[priority] = now, key, lot
        return made[2]

    def lots(self, now: float) -> list[Lot]:
        """Those of all priorities that have jobs."""
        return [lot for lot in (self.lot(priority, now) for priority in Priority) if lot.demands]

    def check(self, job: Job, entry: Entry, now: float, busy: Sequence[Model]) -> None:
        """Refuse a job that would be late, or make another one late.

        Args:
            job: it.
            entry: made of it now.
            now: the time.
            busy: the models that have work, this one among them or not.

        Raises:
            TooSlow: it would be late even with the machine to itself, and nothing but done is of use.
            Overloaded: with the time until the same job would be taken.
        """
        if job.deadline is None:
            return
        left_s = job.deadline - now
        self._check_speed(job, left_s)
        if not busy or self._enters_easily(entry, job.priority, busy):
            return
        kind = (job.priority is Priority.BULK, entry.rows, entry.promised, round(entry.calls), round(left_s, 1))
        what = "at capacity: this request would miss its timeout_s, or make another one miss its own"
        since, wait_s = self._refusals.get(kind, (0.0, 0.0))
        if 0 <= now - since < min(_SAME_S, 0.5 * wait_s):
            raise Overloaded(what, max(_LEAST_RETRY_S, wait_s - (now - since)))
        mine = self.lot(job.priority, now)
        lots = [mine, *(lot for model in busy for lot in model.lots(now) if lot is not mine)]
        scheduler = self.schedulers[job.priority]
        demand = Demand.of(entry, scheduler.tick, scheduler.is_small(entry.rows), now)
        prospects = Prospects(lots, mine, demand, self._alone_s(entry, job.priority))
        if not prospects.fits():
            wait_s = max(_LEAST_RETRY_S, prospects.fits_in_s())
            if len(self._refusals) >= _MOST_REFUSALS:
                self._refusals = {}
            self._refusals[kind] = now, wait_s
            raise Overloaded(what, wait_s)

    def _check_speed(self, job: Job, left_s: float) -> None:
        calls = self.costs.of(job).typical
        if calls is None and job.solve.adaptive:
            calls = float(job.solve.nfe_least)
        if job.partial or job.follows or calls is None or left_s <= 0:
            return
        rows, most = job.num_samples * network_rows(job.guidance), self.schedulers[job.priority].budget
        # What others want of the cores may change: only what the work itself takes says that it never fits.
        needed_s = max(calls, rows * calls / most) * self.arena.pace.curve().cost(min(rows, most))
        if needed_s > left_s:
            raise TooSlow(needed_s)

    def _enters_easily(self, entry: Entry, priority: Priority, busy: Sequence[Model]) -> bool:
        """Whether all bear ticks with all rows that there are: then nobody needs to look closer.

        Whoever comes later, and makes ticks longer, is held against all of them in turn.
        """
        if busy[0] is not self or len(busy) > 1 or len(self.schedulers[Priority.BULK]):
            return False
        scheduler, incoming = self.schedulers[priority], [each for each, _ in list(self.incoming.values())]
        if not scheduler.enters_at_once(entry.rows, sum(each.rows for each in incoming)):
            return False
        present = [*scheduler.entries(), *incoming, entry]
        tick_s = self.arena.pace.seconds(sum(each.rows for each in present))
        return all(each.bears_s >= tick_s for each in present)

    def _alone_s(self, entry: Entry, priority: Priority) -> float:
        most, seconds = self.schedulers[priority].budget, self.arena.pace.seconds
        return max(entry.calls, entry.total_work / most) * seconds(min(entry.rows, most))

    def first_end_s(self, now: float) -> float:
        """Seconds until one of the jobs is done and leaves its place; infinite where there is none."""
        return min((float(lot.ends.min()) for lot in self.lots(now)), default=math.inf)
