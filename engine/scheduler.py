"""The scheduler: chooses which samples of which job become lanes, and knows what ticks cost; it knows no tensors.

A model's arena holds lanes of at most `budget` network rows, so that a tick stays short; a lane has one row, or one for
each term of its guidance. Small jobs (up to a quarter of the budget) enter by deadline, earliest first, as long as more
rows make a tick more efficient. Large jobs, all of which the engine makes bulk jobs, enter in slices, share their rows
equally, and never take the last quarter, so that the next small job finds room at once. While large jobs wait, small
ones leave them a quarter too.

Interactive and bulk jobs have a scheduler each; `BulkShare` decides when bulk lanes take part in a tick.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

BULK_SHARE = 8
"""While interactive jobs use the device, bulk jobs get one part in this many of its time."""

_MUCH_SHORTER = 0.25
"""A job is much shorter than those that run if it takes this share of the calls that they still need."""

_EARLY = 0.2
"""Share of its span after which a lane's calls so far predict its total, for lack of better data."""


@dataclass(eq=False)
class Entry:
    """A job as the scheduler sees it: what it needs, and how far it is. Plain numbers, as all of them are summed often.

    Attributes:
        number: number of the job; later jobs have higher ones.
        samples: number of samples; fewer than the job has once no more are admitted.
        cost: expected calls of one sample.
        whole: admit all samples in the same tick or none.
        width: network rows of one call of one sample.
        calls: expected calls of its slowest sample; at least `cost`.
        certain: whether both rest on facts about the solver rather than on a guess.
        deadline: when it is given up, in seconds of the engine's clock; infinite for never.
        partial: whether it then ends with what it has, instead of failing.
        small: whether it is a small job of its scheduler.
        admitted: number of samples that became lanes so far.
        active: number of those lanes still running.
        begun: the average tick in which the running lanes were admitted.
        forecast: `cost` and `calls` as they were expected at first.
    """

    number: int
    samples: int
    cost: float
    whole: bool = False
    width: int = 1
    calls: float = 0.0
    certain: bool = True
    deadline: float = math.inf
    partial: bool = False
    small: bool = True
    admitted: int = 0
    active: int = 0
    begun: float = 0.0
    forecast: tuple[float, float] = (0.0, 0.0)

    def calls_left(self, tick: int) -> float:
        """Calls until the slowest running lane has ended, at least one."""
        return max(1.0, self.calls - (tick - self.begun)) if self.active else self.calls

    def work(self, tick: int) -> float:
        """Network rows that the job still needs.

        A running lane needs half of its calls if old and new lanes run together. Lanes that still run after most have
        ended are the slow ones.
        """
        waiting = self.samples - self.admitted
        if waiting or not self.active:
            return self.width * (waiting * self.cost + self.active * max(1.0, 0.5 * self.cost))
        slowest = self.calls_left(tick)
        left = max(1.0, self.cost - (tick - self.begun), 0.5 * slowest if self.calls > self.cost else 0.0)
        return self.width * self.active * min(slowest, left)


E = TypeVar("E", bound=Entry)


def part_of(budget: int) -> int:
    """Network rows of the largest small job."""
    return max(1, budget // 4)


class Scheduler(Generic[E]):
    """The jobs of one arena and one priority.

    Attributes:
        budget: network rows of the lanes that the arena holds.
        enough: rows beyond which a row costs hardly less: more lanes would only make all end later, so small jobs wait
            for those before them, unless they are much shorter.
        tick: number of ticks that its lanes have taken.
        entries: the jobs by number, in order of arrival.
        held: those that are not ready to become lanes.
        active_rows: network rows of the running lanes.
    """

    def __init__(self, budget: int) -> None:
        self.budget = self.enough = budget
        self.tick = self.active_rows = 0
        self.entries: dict[int, E] = {}
        self.held: set[int] = set()
        self._part = part_of(budget)
        self._small: list[tuple[float, int, E]] = []  # waiting small jobs by deadline and number
        self._large: deque[E] = deque()  # waiting large jobs
        self._large_rows = 0  # of the running lanes
        self._line: tuple[float, float, float, float] | None = None  # see `line`; None if it has changed

    def is_small(self, rows: float) -> bool:
        """Whether a job is small, by the network rows of one call of all its samples."""
        return rows <= self._part

    def add(self, entry: E, held: bool = False) -> None:
        """Queue a job; a `held` one counts but waits until released."""
        entry.small = entry.samples * entry.width <= self._part
        if entry.calls < entry.cost:
            entry.calls = entry.cost
        entry.forecast = entry.cost, entry.calls
        self.entries[entry.number], self._line = entry, None
        if held:
            self.held.add(entry.number)
        else:
            self._queue(entry)

    def release(self, entry: E) -> None:
        """Release a held job."""
        self.held.remove(entry.number)
        self._queue(entry)

    def _queue(self, entry: E) -> None:
        if entry.small:
            insort(self._small, (entry.deadline, entry.number, entry))
        else:
            self._large.append(entry)

    def remove(self, entry: E) -> None:
        """Remove a job that was given up, unless it is gone; its lanes must be stopped too."""
        if entry.number in self.entries:
            self._unqueue(entry)
            self.ended(entry, entry.active)
            self.entries.pop(entry.number, None)
            self._line = None

    def ended(self, entry: E, lanes: int) -> bool:
        """Note that some lanes of a job have ended.

        Returns:
            Whether the job is complete; it is then removed. False for a job already removed.
        """
        if entry.number not in self.entries:
            return False
        entry.active -= lanes
        rows = lanes * entry.width
        self.active_rows -= rows
        if not entry.small:
            self._large_rows -= rows
        if entry.active or entry.admitted < entry.samples:
            return False
        del self.entries[entry.number]
        return True

    def reprice(self, number: int, nfe: float, share: float, least: float) -> E | None:
        """Re-estimate how many calls the samples of a job under error control need.

        Args:
            number: the job.
            nfe: average number of calls of its lanes so far.
            share: average share of the span that its lanes have completed.
            least: the same share for the slowest lane.

        Returns:
            The job if the estimate has replaced a guess.
        """
        entry = self.entries.get(number)
        if entry is None or least <= (0.0 if entry.certain else _EARLY):
            return None
        # What is known from other jobs applies to the rest of the span; a guess is replaced by the rate so far.
        cost, calls = entry.forecast
        entry.cost = nfe + (1 - share) * cost if entry.certain else nfe / share
        entry.calls = max(entry.cost, nfe + (1 - least) * calls if entry.certain else nfe / least)
        self._line = None
        return None if entry.certain else entry

    def grant(self) -> list[tuple[E, int, int]]:
        """Choose the samples that become lanes now.

        Returns:
            (job, first sample, count) in the order of admission.
        """
        granted: list[tuple[E, int, int]] = []
        if self._small:
            self._feed_small(granted)
        if self._large:
            self._feed_large(self.budget - self.budget // 4, granted)
        return granted

    def _feed_small(self, granted: list[tuple[E, int, int]]) -> None:
        # Large lanes are not pushed out for small jobs.
        reserved, small_rows = (self.budget // 4 if self._large else 0), self.active_rows - self._large_rows
        room = min(self.budget - self.active_rows, self.budget - reserved - small_rows)
        enough, short = min(room, self.enough - small_rows), -1.0
        queue, waiting = self._small, list[tuple[float, int, E]]()
        for place, line in enumerate(queue):
            if room <= 0 or (enough <= 0 and short < 0 and (short := self._short()) <= 0):
                waiting += queue[place:]
                break
            entry = line[2]
            width, missing = entry.width, entry.samples - entry.admitted
            if not small_rows and line is queue[0]:
                enough = max(enough, min(room, width))  # a single guided sample, even where one row is enough
            fits = room if entry.calls <= short or (entry.whole and self.active_rows == self._large_rows) else enough
            count = min(missing, fits // width)
            if count <= 0 or (entry.whole and count < missing):
                enough = 0  # others do not overtake it, unless they are short
                waiting.append(line)
                continue
            room, enough = room - count * width, enough - count * width
            self._take(entry, count, granted)
            if count < missing:
                enough = 0
                waiting.append(line)
        self._small = waiting

    def _short(self) -> float:
        """The calls of a job that is much shorter than what runs; 0 if nothing does."""
        running = [entry.calls_left(self.tick) for entry in self.entries.values() if entry.small and entry.active]
        return _MUCH_SHORTER * sum(running) / len(running) if running else 0.0

    def _feed_large(self, limit: int, granted: list[tuple[E, int, int]]) -> None:
        for _ in range(len(self._large)):
            entry = self._large[0]
            share = max(1, limit // (len(self._large) * entry.width))
            room = min(limit - self._large_rows, self.budget - self.active_rows) // entry.width
            if not self.active_rows:
                room = max(1, room)  # an arena of one row still takes a single guided sample
            count = min(entry.samples - entry.admitted, share - entry.active, room)
            if count > 0:
                self._take(entry, count, granted)
            if entry.admitted < entry.samples:
                self._large.rotate(-1)
            else:
                self._large.popleft()

    def _take(self, entry: E, count: int, granted: list[tuple[E, int, int]]) -> None:
        granted.append((entry, entry.admitted, count))
        rows, self._line = count * entry.width, None
        self.active_rows += rows
        if not entry.small:
            self._large_rows += rows
        entry.admitted += count
        entry.active += count
        entry.begun += (self.tick - entry.begun) * count / entry.active

    def _unqueue(self, entry: E) -> None:
        if entry.number in self.held:
            self.held.remove(entry.number)
        elif entry.admitted < entry.samples:
            if entry.small:
                self._small.remove((entry.deadline, entry.number, entry))
            else:
                self._large.remove(entry)

    def drop_waiting(self, entry: E) -> None:
        """Admit no more of a job's samples."""
        self._unqueue(entry)
        entry.samples, self._line = entry.admitted, None

    def line(self) -> tuple[float, float, float, float]:
        """What waits: rows of a call, network rows in all and latest deadline of small jobs; rows of the others.

        Most refusals come between two ticks, while it stays as it is.
        """
        if self._line is None:
            rows = before = later = 0.0
            latest = -math.inf
            for waiting in self.entries.values():
                if waiting.admitted < waiting.samples:
                    own = (waiting.samples - waiting.admitted) * waiting.width
                    if waiting.small:
                        rows, before = rows + own, before + own * waiting.cost
                        latest = waiting.deadline if waiting.deadline > latest else latest
                    else:
                        later += own
            self._line = rows, before, latest, later
        return self._line


def ahead(entries: Iterable[Entry], entry: Entry, scheduler: Scheduler[E]) -> tuple[float, float]:
    """The network rows that are solved before a new job runs, and the rows of the ticks in which it runs then.

    A small job waits for those with an earlier deadline, as far as they do not find room at once, and shares its ticks
    with what runs. Large jobs share all ticks equally: until one is done, each other gets as much as it needs at most.
    """
    rows = entry.samples * entry.width
    if not scheduler.is_small(rows):
        work = rows * entry.cost
        sizes = [other.width * other.samples * other.forecast[0] for other in entries]
        return sum([min(size, work) for size in sizes]), scheduler.budget
    running, deadline = rows + scheduler.active_rows, entry.deadline
    waiting, before, latest, later = scheduler.line()
    if latest > deadline:
        for other in entries:
            if other.small and other.admitted < other.samples and other.deadline > deadline and not other.active:
                rows = (other.samples - other.admitted) * other.width
                waiting, before, later = waiting - rows, before - rows * other.cost, later + rows
    enough, rows = scheduler.enough, running + waiting + later
    left_over = 1 - (enough - running if enough > running else 0.0) / (waiting if waiting > 1.0 else 1.0)
    return before * (left_over if left_over > 0.0 else 0.0), (rows if rows < enough else enough)


@dataclass
class BulkShare:
    """When bulk lanes take part: in every tick if they are alone, else in one part in `BULK_SHARE` of the time.

    Attributes:
        interactive_s, bulk_s: time that each priority has used since both are present.
        tick_s: duration of the last tick of bulk lanes; their next turn comes once they have earned that much.
    """

    interactive_s: float = 0.0
    bulk_s: float = 0.0
    tick_s: float = 0.0

    def takes_part(self, interactive: int, bulk: int) -> bool:
        """Whether bulk lanes take part now, given the number of lanes of each priority."""
        if not interactive or not bulk:
            self.interactive_s = self.bulk_s = 0.0
            return bulk > 0
        return self.interactive_s >= (BULK_SHARE - 1) * (self.bulk_s + self.tick_s)

    def used(self, interactive: int, bulk: int, seconds: float) -> None:
        """Charge the seconds of a tick to both priorities, in proportion to their rows."""
        share = seconds * bulk / max(1, interactive + bulk)
        self.interactive_s += seconds - share
        self.bulk_s += share
        if bulk:
            self.tick_s = share


_NEWEST = 0.15
"""Weight of the newest tick in the mean cost of its size."""

_EFFICIENT = 1.1
"""Times the least cost of a row that is about as little."""

_WORST = 3.0
"""A tick counts for at most this many means: the first ones touch new memory, and any may be held up."""

_HORIZON_S = 3.0
"""Seconds over which the ratio of time to cost is taken."""

_PRIOR_S = 0.3
"""Weight, in seconds, of a ratio of 1 before any tick."""

_LONGEST_STALL_S = 0.5
"""Longest stall counted for one tick: a longer one (process stopped, machine asleep) says nothing about the next."""

_STALE_S = 30.0
"""Seconds without a tick after which the machine's load may have changed."""


class TickCostModel:
    """Seconds of a whole tick (network, lanes, delivery) by its rows: a mean for each power of two, and one ratio.

    Two things are learned, separately. The cost of a tick of a given size is steady, and is measured as CPU time of the
    engine's thread, in which stalls do not show. How much longer a tick lasts because other threads want the same cores
    (or Python's lock) varies, and hits a few ticks hard and most not at all; it is one ratio for all sizes, over the
    last seconds. Between the sizes seen it interpolates; above the largest, seconds are proportional to rows.

    Attributes:
        stretch: how many times its cost a tick has recently lasted.
    """

    def __init__(self) -> None:
        self.stretch = 1.0
        self._means: list[tuple[float, float, bool] | None] = [None] * 64  # mean rows, mean cost, whether from ticks
        self._sizes: list[tuple[float, float]] | None = None
        self._elapsed = self._cost = _PRIOR_S
        self._last = 0.0

    def measured(self, rows: int, cost: float) -> None:
        """Take in a measurement of the network alone, before any tick."""
        self._means[rows.bit_length()] = float(rows), cost, False
        self._sizes = None

    def learn(self, rows: int, cost: float, elapsed: float, now: float, ticks: int = 1) -> None:
        """Take in some ticks of the same lanes.

        Args:
            rows: of each network call.
            cost: their CPU time in seconds; the same as `elapsed` if another device does the work.
            elapsed: seconds from their beginning to their end.
            now: their end, in seconds of a monotonic clock.
            ticks: their number.
        """
        size, one = rows.bit_length(), cost / ticks
        mean_rows, mean, _ = self._means[size] or (float(rows), one, True)
        newest = one if one < _WORST * mean else _WORST * mean
        self._means[size] = mean_rows + _NEWEST * (rows - mean_rows), mean + _NEWEST * (newest - mean), True
        self._sizes = None
        if now - self._last > _STALE_S:
            self._elapsed = self._cost = _PRIOR_S
        self._last = now
        elapsed = min(max(elapsed, cost), cost + _LONGEST_STALL_S)
        share = 1 - elapsed / _HORIZON_S if elapsed < _HORIZON_S else 0.0
        self._elapsed, self._cost = self._elapsed * share + elapsed, self._cost * share + cost
        self.stretch = self._elapsed / self._cost if self._elapsed > self._cost else 1.0

    def seconds(self, rows: float) -> float:
        """How long a tick of this many rows will last."""
        return self.stretch * self.cost(rows)

    def cost(self, rows: float) -> float:
        """How long it would last with the cores to itself."""
        sizes = self._sizes or self.sizes
        if not sizes:
            return 1e-3
        place = bisect_right(sizes, (rows, math.inf))
        if place == 0:
            return sizes[0][1]  # a smaller tick costs about as much as the smallest seen, at most
        r0, s0 = sizes[place - 1]
        if place == len(sizes):
            return s0 * rows / r0
        r1, s1 = sizes[place]
        return s0 + (s1 - s0) * (rows - r0) / (r1 - r0)

    def enough(self, budget: int) -> int:
        """The rows, up to a budget, from which on a row costs about as little as it ever does."""
        best = _EFFICIENT * min((cost / rows for rows, cost in self.sizes if rows <= budget), default=0.0)
        return next((int(rows) for rows, cost in self.sizes if rows <= budget and cost <= best * rows), budget)

    @property
    def sizes(self) -> list[tuple[float, float]]:
        """(rows, cost) of the sizes seen, rising in both."""
        if self._sizes is None:
            means = [size for size in self._means if size is not None]
            costs, ceiling, floor = [0.0] * len(means), math.inf, 0.0
            for place in range(len(means) - 1, -1, -1):
                _, cost, ticked = means[place]
                costs[place] = cost = cost if cost < ceiling else ceiling  # no tick costs more than a larger one
                ceiling = cost if ticked else ceiling  # (a measurement lacks what is beside the network)
            sizes = list[tuple[float, float]]()
            for (rows, _, _), cost in zip(means, costs, strict=True):
                floor = cost if cost > floor else floor
                sizes.append((rows, floor))
            self._sizes = sizes
        return self._sizes
