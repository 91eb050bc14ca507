"""One loaded model version inside the engine: its arena, its jobs in two priorities, and what a job will cost."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

from models.guidance import network_rows
from service.engine.assembly import Assembly
from service.engine.forecast import Outlook, Snapshot
from service.engine.job import Job, JobResult, Overloaded, Priority
from service.engine.operation import Operation
from service.engine.runner import Arena
from service.engine.scheduler import BULK_SHARE, Entry, Scheduler, Turns
from solvers.plan import Adaptive, Plan

_GUESSED_NFE = 80.0
"""Calls of an adaptive sample before any has been seen."""

_MOST_MEANS = 256
_SNAPSHOT_S = 0.02
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
        self._means: OrderedDict[tuple[str, ...], float] = OrderedDict()  # running mean of calls
        self._snapshots: dict[Priority, tuple[float, Snapshot]] = {}

    def __len__(self) -> int:
        """Jobs that the engine's thread knows."""
        return len(self.jobs)

    def entry(self, number: int, job: Job) -> Entry:
        """A job as its scheduler sees it."""
        whole = not isinstance(job.solve, Plan) and job.solve.batch
        return Entry(number, job.num_samples, self.cost(job), whole, network_rows(job.guidance))

    def cost(self, job: Job) -> float:
        """Calls of one sample: exact for plans, else the mean of those that asked for the same, or a guess.

        It is never below what max_step takes: no job of that kind need have been seen.
        """
        solve = job.solve
        if isinstance(solve, Plan):
            return float(solve.nfe)
        found = next((self._means[key] for key in _keys(job) if key in self._means), _GUESSED_NFE)
        return min(max(found, solve.nfe_least), float(solve.max_nfe))

    def learn(self, job: Job, calls: float) -> None:
        """The samples of a job under error control have taken so many calls on average."""
        for key in _keys(job)[:1] if _bounded(job) else _keys(job):
            self._means[key] = self._means.get(key, calls) * 0.8 + calls * 0.2
            self._means.move_to_end(key)
            if len(self._means) > _MOST_MEANS:
                self._means.popitem(last=False)

    def snapshot(self, priority: Priority) -> Snapshot:
        """What the scheduler of a priority holds: now, or up to 20 ms ago if nothing has come since."""
        scheduler, now = self.schedulers[priority], time.monotonic()
        made = self._snapshots.get(priority)
        if made is None or made[1].added != scheduler.added or now > made[0] + _SNAPSHOT_S:
            made = self._snapshots[priority] = (now, Snapshot(scheduler))
        return made[1]

    def on_their_way(self, priority: Priority) -> list[Entry]:
        """Jobs that were submitted and are not in their scheduler yet."""
        return [entry for entry, whose in list(self.incoming.values()) if whose is priority]

    def backlog_s(self, priority: Priority) -> float:
        """Seconds of everything of a priority, in full ticks."""
        work = self.snapshot(priority).work + sum(entry.total_work for entry in self.on_their_way(priority))
        return work * self.arena.pace.seconds(self.arena.budget) / self.arena.budget

    def outlook(self, job: Job, others: list[Model]) -> Outlook:
        """What stands before a new job; `others` are the models that share the device and have work."""
        scheduler, cost, pace = self.schedulers[job.priority], self.cost(job), self.arena.pace
        own = job.num_samples * network_rows(job.guidance)
        seen, incoming = self.snapshot(job.priority), self.on_their_way(job.priority)
        small = scheduler.is_small(own)
        most = scheduler.budget if small else seen.large_rows
        present = seen.rows + sum(entry.rows for entry in incoming) + own
        # Large jobs leave a part of the arena free; only small ones make a tick longer than theirs.
        rows = min(scheduler.budget, present if small else min(present, most + seen.small_rows))
        tick_s = pace.seconds(rows)
        beside = [sum(map(other.backlog_s, Priority)) for other in others]
        above_s = 0.0
        if job.priority is Priority.BULK:
            above_s = self.backlog_s(Priority.INTERACTIVE)
        else:
            beside.append(self.backlog_s(Priority.BULK) / (BULK_SHARE - 1))
        return Outlook(
            wait=seen.wait(incoming, own) if small else 0.0,
            work=own * cost,
            cost=cost,
            rivals=() if small else seen.against(incoming),
            rows=most,
            backlog_s=(seen.work + sum(entry.total_work for entry in incoming)) * tick_s / rows,
            busy_tick_s=tick_s,
            idle_tick_s=pace.seconds(min(own, most)),
            elsewhere_s=beside,
            above_s=above_s,
        )

    def check(self, job: Job, left_s: float, others: list[Model]) -> None:
        """Refuse a job that what is ahead of it would make late, but not one that is too slow even alone.

        Raises:
            Overloaded: with the time until the same job would be taken.
        """
        if job.priority is Priority.INTERACTIVE:
            before = sum(entry.rows for entry, _ in list(self.incoming.values()))
            own = job.num_samples * network_rows(job.guidance)
            if self.schedulers[job.priority].enters_at_once(own, before):
                slowest = self.arena.pace.seconds(self.arena.budget + self.arena.budget // _BULK_PART)
                if self.cost(job) * slowest * (1 + len(others)) <= left_s:
                    return  # in time, whatever else there is: no need to look closer
        outlook = self.outlook(job, others)
        if outlook.end_s() > left_s >= outlook.alone_s():
            what = "the requests ahead would make this one miss its timeout_s"
            raise Overloaded(what, max(0.1, outlook.taken_in_s(left_s)))

    def first_end_s(self) -> float:
        """Seconds until one of the jobs is done and leaves its place; infinite where there is none."""
        soonest = math.inf
        for priority, scheduler in self.schedulers.items():
            if len(scheduler):
                seen = self.snapshot(priority)
                tick_s = self.arena.pace.seconds(min(scheduler.budget, seen.rows))
                soonest = min(soonest, seen.first_end * tick_s)
        return soonest


def _keys(job: Job) -> tuple[tuple[str, ...], ...]:
    """Under what a mean is kept, the most exact first: the tolerance decides most, by its power of ten.

    A job whose max_step asks for many steps is like those whose max_step asks for about as many, and tells nothing of
    others.
    """
    settings = job.solve.settings
    name, rtol, atol = str(settings["name"]), settings.get("rtol"), settings.get("atol")
    powers = (f"{math.log10(float(each)):.0f}" for each in (rtol, atol) if isinstance(each, int | float))
    found = (name, *powers), (name,)
    if isinstance(job.solve, Plan) or job.solve.max_step is None:
        return found
    return ((*found[0], f"least {job.solve.nfe_least:.1e}"), *found)


def _bounded(job: Job) -> bool:
    return isinstance(job.solve, Adaptive) and job.solve.max_step is not None
