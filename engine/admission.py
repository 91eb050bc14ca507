"""Admission: decides at once whether a job is accepted, off the thread that runs the jobs.

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

from engine.cost import Cost
from engine.forecast import KEPT, Demand, Lot, Prospects, alone_s, wall
from engine.job import Job, Overloaded, Priority, TooSlow
from engine.scheduler import Entry, Place
from engine.snapshot import ArenaLoad, ArenaSnapshot, EngineSnapshot
from models.guidance import network_rows

_LOT_S = 0.02
"""Seconds for which a forecast is reused, if no job has joined its queue since."""

_LEAST_RETRY_S, _LONGEST_RETRY_S = 0.1, 3600.0

_REFUSAL_REUSE_S = 0.1
"""Seconds for which an equal request is refused without a new forecast, at most half of its Retry-After:
under overload, forecasts would cost as much as the accepted requests."""

_MAX_REFUSALS = 64

_FULL = "the queue is full (PATHLINE_MAX_QUEUE)"
_LATE = "at capacity: this request would miss its timeout_s, or make another one miss its own"


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
        self._lots: dict[tuple[int, bool], tuple[float, Lot]] = {}  # by arena, and whether for its bulk jobs
        self._refusals: dict[tuple[float, ...], tuple[float, float]] = {}  # when refused, and seconds to wait

    def open(self, arena: int, fresh: ArenaSnapshot) -> None:
        """Expect jobs for an arena."""
        self._fresh[arena] = fresh

    def close(self, arena: int) -> None:
        """Expect no more jobs for an arena."""
        del self._fresh[arena]
        self._lots.clear()
        self._refusals.clear()

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

    def ends_s(self) -> dict[int, float]:
        """Return the forecast of seconds until each job (by number) is done, if no other job arrives."""
        lots, ends = self._all_lots(self._snapshot(), self._clock()), dict[int, float]()
        for lot in lots:
            others = [(other, other.total) for other in lots if other is not lot]
            seconds = wall(lot, lot.ends, others).tolist()
            ends.update(zip((demand.number for demand in lot.demands), seconds, strict=True))
        return ends

    def loads(self, arenas: Iterable[int]) -> tuple[dict[int, ArenaLoad], float]:
        """Return the load of each of these open arenas, and the forecast of seconds until everything is done."""
        snapshot, now, busy = self._snapshot(), self._clock(), self._busy(self._snapshot())
        found: dict[int, ArenaLoad] = {}
        for arena in arenas:
            here = self._here(snapshot, arena)
            lots = [self._lot(snapshot, arena, each, now) for each in Priority] if arena in busy else []
            work = {lot.bulk: sum(demand.work for demand in lot.demands) for lot in lots}
            curve, budget = here.curve, here.interactive.budget
            tick_s = tuple((rows, curve.stretch * cost) for rows, cost in curve.known)
            found[arena] = ArenaLoad(work.get(False, 0.0), work.get(True, 0.0), budget, tick_s)
        return found, max(self.ends_s().values(), default=0.0)

    def take(self, arena: int, job: Job, stages_s: float = 0.0) -> Entry:
        """Accept a job for an open arena; send it to the engine's thread before another is accepted.

        Args:
            arena: number of the arena.
            job: the job.
            stages_s: seconds that it needs before and after its network calls.

        Raises:
            TooSlow: it would be late even with the machine to itself, and a partial result is no use.
            Overloaded: the queue is full, or the job would be late or make another one late; with the time until the
                same job would be accepted.
        """
        snapshot, now = self._snapshot(), self._clock()
        here = self._here(snapshot, arena)
        cost = here.nfe.of(job)
        entry = self._entry(here, job, cost, now, stages_s)
        if snapshot.jobs + len(self._coming) >= self._max_queue:
            raise Overloaded(_FULL, max(_LEAST_RETRY_S, self._until_one_ends(snapshot, now)))
        if job.deadline is not None:
            _check_speed(here, job, cost, job.deadline - now, stages_s)
            self._check_promises(snapshot, arena, here, job.priority, entry, now)
        place = Place.of(entry, here.queue(job.priority).budget)
        self._coming.append(_Coming(arena, job.priority, place, here, now))
        self._lots.pop((arena, job.priority is Priority.BULK), None)
        return entry

    def pace(self, arena: int, calls: float, work: float, rows: float, priority: Priority) -> float:
        """Return the seconds that a job would take alone, given its calls, total rows, and rows per call."""
        here = self._here(self._snapshot(), arena)
        group = priority if here.interactive.is_small(math.ceil(rows)) else Priority.BULK
        return alone_s(calls, work, rows, here.queue(group).budget, here.curve)

    def _snapshot(self) -> EngineSnapshot:
        """The newest snapshot; the jobs that it shows are dropped from those on their way."""
        snapshot, coming = self._latest(), self._coming
        while coming and coming[0].place.entry.number <= snapshot.seen:
            coming.popleft()
        return snapshot

    def _here(self, snapshot: EngineSnapshot, arena: int) -> ArenaSnapshot:
        """An arena in the snapshot, or as it was opened if the engine's thread does not know it yet."""
        found = snapshot.arenas.get(arena) or self._fresh.get(arena)
        return found or next(each.here for each in self._coming if each.arena == arena)

    def _entry(self, here: ArenaSnapshot, job: Job, cost: Cost, now: float, stages_s: float) -> Entry:
        width, budget, curve = network_rows(job.guidance), here.queue(job.priority).budget, here.curve
        rows, calls = job.num_samples * width, max(cost.slowest, cost.mean)
        deadline = math.inf if job.deadline is None else max(now, job.deadline - stages_s)
        left_s, bears_s, relaxed = deadline - now, 0.0, False
        if job.priority is Priority.INTERACTIVE and here.interactive.is_small(rows):
            bears_s = KEPT * left_s / calls
            relaxed = curve.seconds(here.interactive.budget + here.bulk.budget) <= bears_s
        return Entry(
            next(self._numbers),
            job.num_samples,
            cost.mean,
            whole=job.solve.batch,
            width=width,
            calls=calls,
            known=cost.typical is not None,
            deadline=deadline,
            promised=job.deadline is not None and not job.partial,
            tight=alone_s(calls, rows * cost.mean, rows, budget, curve) > 0.5 * left_s,
            bears_s=bears_s,
            relaxed=relaxed,
        )

    def _until_one_ends(self, snapshot: EngineSnapshot, now: float) -> float:
        """Return the seconds until a job ends: by the forecast, but not after its deadline."""
        lots = [lot for lot in self._all_lots(snapshot, now) if lot.demands]
        soonest = min((float(lot.ends.min()) for lot in lots), default=0.0)
        forecast = min(soonest, _LONGEST_RETRY_S) * max(1, len(self._busy(snapshot)))
        queues = [queue for here in snapshot.arenas.values() for queue in (here.interactive, here.bulk)]
        places = [*(place for queue in queues for place in queue.places), *(each.place for each in self._coming)]
        return min(forecast, min((place.entry.deadline for place in places), default=math.inf) - now)

    def _busy(self, snapshot: EngineSnapshot) -> set[int]:
        """Arenas with jobs, present or on their way."""
        busy = {number for number, each in snapshot.arenas.items() if each.interactive.places or each.bulk.places}
        busy.update([coming.arena for coming in self._coming])
        return busy

    def _all_lots(self, snapshot: EngineSnapshot, now: float) -> list[Lot]:
        """The lots of all queues with jobs, and one for the waiting preludes and decoders."""
        lots = [self._lot(snapshot, arena, each, now) for arena in sorted(self._busy(snapshot)) for each in Priority]
        found = [lot for lot in lots if lot.demands]
        if found and snapshot.stages_s:
            found.append(Lot.of_stages(snapshot.stages_s, found[0].curve))
        return found

    def _lot(self, snapshot: EngineSnapshot, arena: int, priority: Priority, now: float) -> Lot:
        """The jobs of a queue: as of now, or of up to 20 ms ago if none has joined since."""
        bulk = priority is Priority.BULK
        made = self._lots.get((arena, bulk))
        if made is None or not made[0] <= now <= made[0] + _LOT_S:
            here = self._here(snapshot, arena)
            coming = [each.place for each in self._coming if each.arena == arena and each.priority is priority]
            lot = Lot.of(bulk, here.queue(priority), coming, here.curve, now)
            made = self._lots[arena, bulk] = now, lot
        return made[1]

    def _check_promises(
        self, snapshot: EngineSnapshot, arena: int, here: ArenaSnapshot, priority: Priority, entry: Entry, now: float
    ) -> None:
        busy, left_s = self._busy(snapshot), entry.deadline - now
        if not busy or self._enters_easily(busy, arena, here, priority, entry):
            return
        kind = (arena, priority is Priority.BULK, entry.rows, entry.promised, round(entry.calls), round(left_s, 1))
        since, wait_s = self._refusals.get(kind, (0.0, 0.0))
        if 0 <= now - since < min(_REFUSAL_REUSE_S, 0.5 * wait_s):
            raise Overloaded(_LATE, max(_LEAST_RETRY_S, wait_s - (now - since)))
        mine = self._lot(snapshot, arena, priority, now)
        lots = [mine, *(lot for lot in self._all_lots(snapshot, now) if lot is not mine)]
        queue = here.queue(priority)
        prospects = Prospects(lots, mine, Demand.of(Place.of(entry, queue.budget), queue.tick, now))
        if not prospects.fits():
            wait_s = max(_LEAST_RETRY_S, prospects.fits_in_s())
            if len(self._refusals) >= _MAX_REFUSALS:
                self._refusals = {}
            self._refusals[kind] = now, wait_s
            raise Overloaded(_LATE, wait_s)

    def _enters_easily(self, busy: set[int], arena: int, here: ArenaSnapshot, priority: Priority, entry: Entry) -> bool:
        """Return whether all jobs tolerate ticks of all rows present, so that no forecast is needed.

        A later job, which makes ticks longer, is checked against all of them in turn.
        """
        if busy != {arena} or here.bulk.places or self._snapshot().stages_s:
            return False
        coming, queue = [each.place for each in self._coming], here.queue(priority)
        before = sum([place.entry.rows for place in coming])
        if not queue.enters_at_once(entry.rows, before):
            return False
        tick_s = here.curve.seconds(entry.rows + before + sum([place.entry.rows for place in queue.places]))
        return min([entry.bears_s, *(place.bears_s for place in (*queue.places, *coming))]) >= tick_s


def _check_speed(here: ArenaSnapshot, job: Job, cost: Cost, left_s: float, stages_s: float) -> None:
    calls = cost.typical
    if calls is None and job.solve.adaptive:
        calls = float(job.solve.nfe_least)
    if job.partial or job.follows or calls is None or left_s <= 0:
        return
    rows, budget = job.num_samples * network_rows(job.guidance), here.queue(job.priority).budget
    # The load on the cores may change: only the cost of the work itself proves that it never fits.
    needed_s = stages_s + max(calls, rows * calls / budget) * here.curve.cost(min(rows, budget))
    if needed_s > left_s:
        raise TooSlow(needed_s)
