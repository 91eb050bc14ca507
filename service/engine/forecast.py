"""When a job would be done, and when one that is refused now would be taken. Knows numbers of calls, no tensors.

Small jobs are admitted first come, first served: their forecast walks the queue. Large ones share what they get
equally, so a new one waits for at most its own work of each other. Time is counted in ticks of a full arena, then
turned into seconds. A refused job is taken once its forecast, made at that later time, meets its deadline: nobody else
is assumed to come.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from service.engine.scheduler import BULK_SHARE, Entry, Scheduler

_BISECTIONS = 24


@dataclass(frozen=True)
class Outlook:
    """What stands before one job.

    Attributes:
        wait: ticks until a small job's lanes start.
        work: the job's own network rows.
        cost: calls of each of its samples.
        rivals: network rows left of each large job that it shares with; empty for a small job.
        rows: of a tick that it and its rivals have together.
        backlog_s: seconds of everything present in its arena.
        busy_tick_s, idle_tick_s: seconds of a tick while that lasts, and of its own rows alone.
        elsewhere_s: seconds of work of each other model, which take turns with this one.
        above_s: for a bulk job, the seconds of interactive work that go before it.
    """

    wait: float
    work: float
    cost: float
    rivals: Sequence[float]
    rows: int
    backlog_s: float
    busy_tick_s: float
    idle_tick_s: float
    elsewhere_s: Sequence[float] = ()
    above_s: float = 0.0

    def end_s(self, after_s: float = 0.0) -> float:
        """Seconds from submission to the end, if it is submitted `after_s` seconds from now."""
        tick_s = self.busy_tick_s
        if self.rivals:
            # Each rival has had its part of the rows meanwhile.
            gone = after_s / tick_s * self.rows / len(self.rivals)
            ahead = sum(min(max(0.0, rival - gone), self.work) for rival in self.rivals)
            own_s = max(self.cost, (ahead + self.work) / self.rows) * tick_s
        else:
            wait_s = max(0.0, self.wait * tick_s - after_s)
            calls = max(self.cost, self.work / self.rows)
            slow_s = min(max(0.0, self.backlog_s - after_s - wait_s), calls * tick_s)
            own_s = wait_s + slow_s + (calls - slow_s / tick_s) * self.idle_tick_s
        others = sum(min(max(0.0, seconds - after_s), own_s) for seconds in self.elsewhere_s)
        above = min(max(0.0, self.above_s - after_s), (BULK_SHARE - 1) * own_s)
        return own_s + others + above

    def alone_s(self) -> float:
        """Seconds that it would take with nobody else there."""
        return max(self.cost, self.work / self.rows) * self.idle_tick_s

    def taken_in_s(self, limit_s: float) -> float:
        """Seconds until its forecast is at most `limit_s`."""
        low, high = 0.0, self.backlog_s + sum(self.elsewhere_s) + self.above_s
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if self.end_s(middle) > limit_s:
                low = middle
            else:
                high = middle
        return high


class Snapshot:
    """What a scheduler holds at one moment, so far as forecasts need it; made in a pass over its jobs.

    Attributes:
        added: the scheduler's, then.
        rows: network rows of one call of all jobs.
        small_rows: of the running lanes of small jobs.
        work: network rows that all jobs still need.
        rivals: of that, each large job's.
        large_rows: rows of a tick that large jobs have together.
        first_end: ticks until the first job is done and leaves its place in the queue.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.added, self._scheduler = scheduler.added, scheduler
        entries, tick, budget = scheduler.entries(), scheduler.tick, scheduler.budget
        works = [entry.work(tick) for entry in entries]
        self.rows, self.work = sum(entry.rows for entry in entries), sum(works)
        self.rivals = [work for entry, work in zip(entries, works, strict=True) if not entry.small]
        self.small_rows = small = sum(entry.active_rows for entry in entries if entry.small)
        quarter = budget // 4
        self.large_rows = max(1, min(budget - quarter, max(quarter, budget - small)))
        ends = [entry.left(tick) for entry in entries if entry.active and not entry.waiting]
        if self.rivals:
            ends.append(min(self.rivals) * len(self.rivals) / self.large_rows)
        self.first_end = min(ends, default=1.0)
        # The queue of small jobs is walked once; a new job goes on where the walk has ended.
        large = sum(entry.active_rows for entry in entries if not entry.small)
        reserved = quarter if any(entry.waiting for entry in entries if not entry.small) else 0
        self._small_limit = max(1, min(budget - reserved, budget - large))
        self._free, self._now = self._small_limit - small, 0.0
        self._ends = [(entry.left(tick), entry.active_rows) for entry in entries if entry.small and entry.active]
        heapq.heapify(self._ends)
        self._queue_up([(entry.waiting * entry.width, entry.cost) for entry in scheduler.waiting_small()])

    def wait(self, incoming: Sequence[Entry], rows: int) -> float:
        """Ticks until all lanes of a new small job have started.

        Args:
            incoming: jobs of this priority that are on their way to the scheduler.
            rows: network rows of its lanes.
        """
        before = self._free, self._now, self._ends.copy()
        small = [(entry.rows, entry.cost) for entry in incoming if self._scheduler.is_small(entry.rows)]
        self._queue_up([*small, (rows, 0.0)])
        found = self._now
        self._free, self._now, self._ends = before
        return found

    def _queue_up(self, jobs: Sequence[tuple[int, float]]) -> None:
        for rows, cost in jobs:
            while self._free < min(rows, self._small_limit) and self._ends:
                end, freed = heapq.heappop(self._ends)
                self._now, self._free = max(self._now, end), self._free + freed
            self._free -= rows
            heapq.heappush(self._ends, (self._now + cost, rows))

    def against(self, incoming: Sequence[Entry]) -> list[float]:
        """The work of each large job that a new large one shares with."""
        large = [entry for entry in incoming if not self._scheduler.is_small(entry.rows)]
        return [*self.rivals, *(entry.total_work for entry in large)]
