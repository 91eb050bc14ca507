"""Admission: decides at once whether a job is accepted, off the thread that runs the jobs.

A job is accepted if the work ahead of it (what runs, and waiting jobs with an earlier deadline) and its own fit into
half of its time limit, at the rate that was measured. The other half is for what such a sum does not know: jobs with
earlier deadlines that come later, samples that are harder than others of their kind, a machine that becomes slower.

Only the submitting threads use it, one at a time: the engine's thread writes none of its state, and it writes none of
that thread's. It reads the newest snapshot, and adds the jobs that it has accepted but that the snapshot does not show
yet: those with a higher number than the newest job that the engine's thread has seen.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from engine.cost import Cost, TickCostModel
from engine.job import Job, Overloaded, Priority, TooSlow
from engine.scheduler import BULK_SHARE, Entry, Place, SchedulerSnapshot
from engine.snapshot import ArenaLoad, ArenaSnapshot, EngineSnapshot
from models.guidance import network_rows

_SHARE = 0.5
"""Share of a job's time that the work ahead of it and its own may take up."""

_LEAST_RETRY_S, _LONGEST_LINE_S = 0.1, 60.0

_FULL = "the queue is full (PATHLINE_MAX_QUEUE)"
_LATE = "at capacity: this request would miss its timeout_s"


class _Coming(NamedTuple):
    """A job on its way to the engine's thread."""

    arena: int
    priority: Priority
    place: Place
    here: ArenaSnapshot
    since: float


class Admission:
    """Accepts jobs and numbers them.

    Args:
        max_queue: maximum number of jobs waiting or running.
        clock: the engine's clock.
        latest: returns the newest snapshot.
    """

    def __init__(self, max_queue: int, clock: Callable[[], float], latest: Callable[[], EngineSnapshot]) -> None:
        self._max_queue, self._clock, self._latest = max_queue, clock, latest
        self._numbers = itertools.count()
        self._fresh: dict[int, ArenaSnapshot] = {}  # arenas as they were opened
        self._coming: deque[_Coming] = deque()
        self._line_ends = dict.fromkeys(Priority, -math.inf)  # when the refused jobs would be done, if all come back

    def open(self, arena: int, fresh: ArenaSnapshot) -> None:
        """Expect jobs for an arena."""
        self._fresh[arena] = fresh

    def close(self, arena: int) -> None:
        """Expect no more jobs for an arena."""
        del self._fresh[arena]

    @property
    def jobs(self) -> int:
        """Jobs that wait or run."""
        return self._snapshot().jobs + len(self._coming)

    @property
    def queued(self) -> int:
        """Jobs with no sample running yet."""
        return sum(queue.queued for queue in self._snapshot().queues) + len(self._coming)

    @property
    def lanes(self) -> int:
        """Samples that are being solved."""
        return sum(queue.lanes for queue in self._snapshot().queues)

    @property
    def silent_s(self) -> float:
        """Seconds since the last snapshot, or since the first job came after it; 0 without work."""
        since = self._snapshot().working_since
        if since is None:
            since = self._coming[0].since if self._coming else self._clock()
        return max(0.0, self._clock() - since)

    def loads(self, arenas: Iterable[int]) -> tuple[dict[int, ArenaLoad], float]:
        """Return the load of each of these open arenas, and about how many seconds all work takes."""
        snapshot, loads = self._snapshot(), dict[int, ArenaLoad]()
        for arena in arenas:
            here = self._here(snapshot, arena)
            interactive, bulk = (self._work(here, arena, each) for each in Priority)
            ticks, budget = here.ticks, here.interactive.budget
            tick_s = tuple((rows, ticks.stretch * cost) for rows, cost in ticks.sizes)
            loads[arena] = ArenaLoad(interactive, bulk, budget, tick_s)
        return loads, self._all_s(snapshot)

    def take(self, arena: int, job: Job, stages_s: float = 0.0) -> Entry:
        """Accept a job for an open arena; send it to the engine's thread before another is accepted.

        Args:
            arena: number of the arena.
            job: the job.
            stages_s: seconds that it needs before and after its network calls.

        Raises:
            TooSlow: it would be late even with the machine to itself, and a partial result is no use.
            Overloaded: the queue is full, or the job would be late; with the time until the same job would be accepted.
        """
        snapshot, now = self._snapshot(), self._clock()
        here = self._here(snapshot, arena)
        budget = here.queue(job.priority).budget
        cost = here.nfe.of(job)
        entry = self._entry(here, job, cost, now, stages_s)
        if self.jobs >= self._max_queue:
            raise Overloaded(_FULL, max(_LEAST_RETRY_S, self._until_one_ends(snapshot, now)))
        if job.deadline is not None:
            _check_speed(here, job, cost, job.deadline - now, stages_s)
            self._check_time(snapshot, arena, here, job.priority, entry, now)
        self._coming.append(_Coming(arena, job.priority, Place.of(entry, budget), here, now))
        return entry

    def check_early(self, arena: int, rows: int, limit_s: float) -> None:
        """Refuse an interactive job whose steps are not known yet, if what is ahead leaves too little time for any.

        Raises:
            Overloaded: with the time until there is room.
        """
        here, now = self._here(self._snapshot(), arena), self._clock()
        queue, places = here.interactive, self._places(here, arena, Priority.INTERACTIVE)
        if not places or not queue.is_small(rows):
            return
        ahead, together = _ahead(places, Entry(-1, rows, cost=0.0, deadline=now + limit_s), queue)
        ahead_s = ahead * here.ticks.seconds(together) / together
        if ahead_s > _SHARE * limit_s:
            own_s = ahead_s / len(places)
            raise Overloaded(_LATE, ahead_s - _SHARE * limit_s + own_s + self._line_s(Priority.INTERACTIVE, now, own_s))

    def pace(self, arena: int, calls: float, work: float, rows: float, priority: Priority) -> float:
        """Return the seconds that a job would take alone, given its calls, total rows, and rows per call."""
        here = self._here(self._snapshot(), arena)
        group = priority if here.interactive.is_small(math.ceil(rows)) else Priority.BULK
        return _alone_s(calls, work, rows, here.queue(group).budget, here.ticks)

    def _snapshot(self) -> EngineSnapshot:
        """The newest snapshot; the jobs that it shows are dropped from those on their way."""
        snapshot, coming = self._latest(), self._coming
        while coming and coming[0].place.entry.number <= snapshot.seen:
            coming.popleft()
        return snapshot

    def _here(self, snapshot: EngineSnapshot, arena: int) -> ArenaSnapshot:
        """An arena in the snapshot, or as it was opened if the engine's thread does not know it yet."""
        here = snapshot.arenas.get(arena) or self._fresh.get(arena)
        return here or next(each.here for each in self._coming if each.arena == arena)

    def _entry(self, here: ArenaSnapshot, job: Job, cost: Cost, now: float, stages_s: float) -> Entry:
        width, mean, calls = network_rows(job.guidance), cost.mean, max(cost.slowest, cost.mean)
        deadline = math.inf if job.deadline is None else max(now, job.deadline - stages_s)
        if job.partial:  # it ends at its deadline, done or not
            most = max(1.0, (deadline - now) / here.ticks.seconds(job.num_samples * width))
            mean, calls = min(mean, most), min(calls, most)
        return Entry(
            next(self._numbers),
            job.num_samples,
            mean,
            whole=job.solve.batch,
            width=width,
            calls=calls,
            known=cost.typical is not None,
            deadline=deadline,
            partial=job.partial,
        )

    def _places(self, here: ArenaSnapshot, arena: int, priority: Priority) -> list[Place]:
        """The jobs of a queue, present or on their way."""
        coming = [each.place for each in self._coming if each.arena == arena and each.priority is priority]
        return [*here.queue(priority).places, *coming]

    def _work(self, here: ArenaSnapshot, arena: int, priority: Priority) -> float:
        """Network rows that the jobs of a queue still need."""
        tick = here.queue(priority).tick
        return sum([place.work(tick) for place in self._places(here, arena, priority)])

    def _queue_s(self, here: ArenaSnapshot, arena: int, priority: Priority) -> float:
        """About how many seconds the jobs of a queue take together."""
        queue, places = here.queue(priority), self._places(here, arena, priority)
        if not places:
            return 0.0
        rows = min(queue.enough, sum([place.entry.width * (place.waiting + place.active) for place in places]))
        slowest = max([place.calls_left(queue.tick) for place in places]) * here.ticks.seconds(1)
        return max(slowest, self._work(here, arena, priority) / _rate(here.ticks, rows))

    def _other_s(self, snapshot: EngineSnapshot, arena: int, priority: Priority) -> Iterable[tuple[float, float]]:
        """Seconds of each other queue and of the stages; and the time they get for each second of this queue."""
        for number in {*snapshot.arenas, *(coming.arena for coming in self._coming)}:
            here = self._here(snapshot, number)
            for other in Priority:
                if (number, other) == (arena, priority):
                    continue
                seconds = self._queue_s(here, number, other)
                if number == arena and other is Priority.INTERACTIVE:
                    seconds += max(0.0, self._line_ends[other] - self._clock())  # those come back
                if seconds:
                    weight = 1.0 if other is priority else BULK_SHARE - 1.0
                    yield seconds, weight if priority is Priority.BULK else 1 / weight
        if snapshot.stages_s:
            yield snapshot.stages_s, 1.0

    def _all_s(self, snapshot: EngineSnapshot) -> float:
        return sum(seconds for seconds, _ in self._other_s(snapshot, -1, Priority.INTERACTIVE))

    def _until_one_ends(self, snapshot: EngineSnapshot, now: float) -> float:
        """Seconds until a job ends: the mean of all, but not after the first deadline."""
        places = [
            *(place for queue in snapshot.queues for place in queue.places),
            *(each.place for each in self._coming),
        ]
        first = min((place.entry.deadline for place in places), default=math.inf)
        return min(self._all_s(snapshot) / max(1, len(places)), first - now)

    def _check_time(
        self, snapshot: EngineSnapshot, arena: int, here: ArenaSnapshot, priority: Priority, entry: Entry, now: float
    ) -> None:
        """Refuse a job for which the work ahead of it leaves too little time."""
        left_s, queue, ticks = entry.deadline - now, here.queue(priority), here.ticks
        ahead, rows = _ahead(self._places(here, arena, priority), entry, queue)
        rate, own_work = rows / ticks.seconds(rows), entry.rows * entry.cost
        alone_s = _alone_s(entry.calls, own_work, entry.rows, queue.budget, ticks)
        needed_s = ahead / rate + max(alone_s, entry.calls * ticks.seconds(rows) if queue.is_small(entry.rows) else 0)
        others = [min(total, weight * needed_s) for total, weight in self._other_s(snapshot, arena, priority)]
        needed_s += sum(others) - (alone_s if entry.partial else 0.0)
        # A job that hardly fits even alone is accepted if nothing holds it up.
        if needed_s <= max(_SHARE * left_s, 1.1 * alone_s):
            return
        wait_s = max(_LEAST_RETRY_S, min(needed_s - alone_s, needed_s - _SHARE * left_s))
        raise Overloaded(_LATE, wait_s + self._line_s(priority, now, own_work / rate))

    def _line_s(self, priority: Priority, now: float, own_s: float) -> float:
        """Seconds of the jobs refused before, which come back too: each is told a time of its own."""
        line_s = max(0.0, self._line_ends[priority] - now)
        self._line_ends[priority] = now + (line_s + own_s) % _LONGEST_LINE_S
        return line_s


def _rate(ticks: TickCostModel, rows: float) -> float:
    """Network rows a second, in ticks of this many."""
    return rows / ticks.seconds(rows)


def _alone_s(calls: float, work: float, rows: float, budget: int, ticks: TickCostModel) -> float:
    """Seconds of a job that runs alone, given its calls, total rows, and rows per call."""
    return max(calls, work / budget) * ticks.seconds(min(rows, budget))


def _ahead(places: Iterable[Place], entry: Entry, queue: SchedulerSnapshot) -> tuple[float, float]:
    """The network rows that are solved before a new job runs, and the rows of the ticks in which it runs then.

    A small job waits for those with an earlier deadline, as far as they do not find room at once, and shares its ticks
    with what runs. Large jobs share all ticks equally: until one is done, each other gets as much as it needs at most.
    """
    if not queue.is_small(entry.rows):
        work = entry.rows * entry.cost
        return sum(min(place.entry.rows * place.entry.cost, work) for place in places), queue.budget
    ahead = waiting = later = 0.0
    running = float(entry.rows)
    for place in places:
        rows = place.waiting * place.entry.width
        if place.small and (place.active or place.entry.deadline <= entry.deadline):
            waiting, ahead = waiting + rows, ahead + rows * place.cost
        else:
            later += rows
        running += place.active_rows
    room = max(0.0, queue.enough - running)
    return ahead * max(0.0, 1 - room / max(waiting, 1.0)), min(queue.enough, running + waiting + later)


def _check_speed(here: ArenaSnapshot, job: Job, cost: Cost, left_s: float, stages_s: float) -> None:
    calls = cost.typical
    if calls is None and job.solve.adaptive:
        calls = float(job.solve.nfe_least)
    if job.partial or job.follows or calls is None or left_s <= 0:
        return
    rows, budget = job.num_samples * network_rows(job.guidance), here.queue(job.priority).budget
    # The load on the cores may change: only the cost of the work itself proves that it never fits.
    needed_s = stages_s + max(calls, rows * calls / budget) * here.ticks.cost(min(rows, budget))
    if needed_s > left_s:
        raise TooSlow(needed_s)
