"""Forecasts: when jobs would be done, and the promises that rest on them. Works with numbers of calls, not tensors.

`walk` simulates the scheduler to the end: small jobs enter as there is room, earliest deadline first, and all of their
lanes take part in every tick; large jobs share their rows equally. It counts only the seconds of the jobs' own ticks.
Jobs of another priority or model have their own ticks in between: `Lot` and `wall` add them.

An accepted job is promised to meet its deadline: `Prospects` says whether it and all jobs accepted before it are
forecast to. As forecasts are estimates, a promise leaves some time to spare. Shorter jobs that come later may use most
of it, so that a long job never keeps them all out. If that is not enough, because the machine has become slower or a
sample is harder than others of its kind, `hopeless` chooses the job to give up so that the others finish in time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.cost import Curve
from engine.scheduler import BULK_SHARE, Place, SchedulerSnapshot

Times = NDArray[np.float64]

KEPT = 0.45
"""Share of a job's time that a forecast may take up: the rest is for what a forecast cannot know.

This costs no goodput: under overload the device is never idle, and only the queue is shorter."""

_KEPT_FOR_SHORT = 0.9
"""The same share after a much shorter job has joined."""

_SHORT = 0.25
"""A job is much shorter than another if it takes at most this share of the time that the other still needs."""

_OPTIMISTIC_SHARE = 0.7
"""A job is given up once even this share of its forecast time does not fit before its deadline."""

_BISECTIONS = 8


@dataclass(frozen=True)
class Demand:
    """What one job still needs.

    Attributes:
        number: the job.
        rows: network rows of one call of all its remaining samples.
        calls: calls until its last sample has ended.
        work: network rows in all.
        small, runs: whether it is a small job, and whether some of its samples are lanes already.
        left_s: seconds until its deadline.
        promised, tight: see `Entry`.
    """

    number: int
    rows: float
    calls: float
    work: float
    small: bool = True
    runs: bool = False
    left_s: float = math.inf
    promised: bool = False
    tight: bool = False

    @classmethod
    def of(cls, place: Place, tick: int, now: float) -> Demand:
        """The demand of a job in a scheduler, at a tick and a time."""
        entry = place.entry
        return cls(
            number=entry.number,
            rows=max(1, (place.waiting + place.active) * entry.width),
            calls=place.calls_left(tick),
            work=place.work(tick),
            small=place.small,
            runs=place.active > 0,
            left_s=entry.deadline - now,
            promised=entry.promised,
            tight=entry.tight,
        )


def alone_s(calls: float, work: float, rows: float, budget: int, curve: Curve) -> float:
    """Seconds of a job that runs alone, given its calls, total rows, and rows per call."""
    return max(calls, work / budget) * curve.seconds(min(rows, budget))


def walk(
    demands: Sequence[Demand], budget: int, seconds: Callable[[float], float], joins_s: float = 0.0
) -> list[float]:
    """The end of each job, in seconds of the jobs' own ticks from now.

    Args:
        demands: demands of one scheduler's jobs.
        budget: budget of that scheduler.
        seconds: rows -> seconds of a tick.
        joins_s: when the last job joins the others.
    """
    ends = [0.0] * len(demands)
    reserve = budget // 4
    running: list[tuple[float, float, int]] = []  # call at which it ends, rows, place
    large: list[tuple[float, int]] = []  # rows served to each large job when it ends, place
    waiting: list[tuple[float, int, int]] = []  # deadline, number, place
    small_rows = wanted = now = calls = served = 0.0
    late = len(demands) - 1 if joins_s > 0 else -1

    def join(place: int) -> None:
        nonlocal wanted, small_rows
        demand = demands[place]
        if not demand.small:
            heapq.heappush(large, (served + demand.work, place))
            wanted += demand.rows
        elif demand.runs:
            rows = demand.work / demand.calls
            heapq.heappush(running, (calls + demand.calls, rows, place))
            small_rows += rows
        else:
            heapq.heappush(waiting, (demand.left_s, demand.number, place))

    for place in range(len(demands)):
        if place != late:
            join(place)
    while True:
        limit = budget - reserve if large else budget
        while waiting:
            demand = demands[waiting[0][2]]
            rows = demand.work / demand.calls  # on average: samples under error control end one by one
            if running and small_rows + rows > limit:
                break
            heapq.heappush(running, (calls + demand.calls, rows, heapq.heappop(waiting)[2]))
            small_rows += rows
        if not running and not large:
            if late < 0:
                return ends
            now = max(now, joins_s)
            join(late)
            late = -1
            continue
        share = min(wanted, budget - reserve, max(reserve, budget - small_rows), budget) if large else 0.0
        share = max(1.0, share) if large else 0.0
        tick_s = seconds(max(1.0, small_rows + share))
        step = running[0][0] - calls if running else math.inf
        if large:
            step = min(step, (large[0][0] - served) * len(large) / share)
        if late >= 0 and joins_s - now < step * tick_s:
            step = max(0.0, joins_s - now) / tick_s
            arrived, late = late, -1
        else:
            arrived = -1
        now += step * tick_s
        calls += step
        if large:
            served += step * share / len(large)
        while running and running[0][0] <= calls + 1e-9:
            _, rows, place = heapq.heappop(running)
            small_rows = small_rows - rows if running else 0.0
            ends[place] = now
        while large and large[0][0] <= served * (1 + 1e-12) + 1e-9:
            place = heapq.heappop(large)[1]
            wanted -= demands[place].rows
            ends[place] = now
        if arrived >= 0:
            join(arrived)


@dataclass
class Lot:
    """The jobs of one priority of one arena at one moment.

    Attributes:
        bulk: whether the priority is `bulk`.
        budget: budget of its scheduler.
        curve: seconds of its ticks.
        demands: demands of its jobs.
        ends: (n,) end of each job, in seconds of the lot's own ticks.
        left, promised, tight: (n,) those of the demands.
        total: seconds of its own ticks until all have ended.
    """

    bulk: bool
    budget: int
    curve: Curve
    demands: list[Demand]
    ends: Times = field(init=False)

    def __post_init__(self) -> None:
        # A job that ends at its deadline, done or not, needs no more than fits before it.
        self.demands = [self._cut(demand) for demand in self.demands]
        self.left = np.array([demand.left_s for demand in self.demands])
        self.promised = np.array([demand.promised for demand in self.demands], dtype=np.bool_)
        self.tight = np.array([demand.tight for demand in self.demands], dtype=np.bool_)
        self.ends = np.array(walk(self.demands, self.budget, self.curve.seconds))
        self.total = float(self.ends.max(initial=0.0))

    @classmethod
    def of(cls, bulk: bool, queue: SchedulerSnapshot, coming: Iterable[Place], curve: Curve, now: float) -> Lot:
        """The lot of a scheduler and of the jobs on their way to it."""
        demands = [Demand.of(place, queue.tick, now) for place in (*queue.places, *coming)]
        return cls(bulk, queue.budget, curve, demands)

    @classmethod
    def of_stages(cls, seconds: float, curve: Curve) -> Lot:
        """A lot without jobs, for stages that take turns with the arenas for this many seconds."""
        found = cls(False, 1, curve, [])
        found.total = seconds
        return found

    def without(self, number: int) -> Lot:
        """The lot without one job."""
        left = [demand for demand in self.demands if demand.number != number]
        return Lot(self.bulk, self.budget, self.curve, left)

    def joined(self, demand: Demand, joins_s: float = 0.0) -> Times:
        """(n + 1,) `ends` with one more job, which is the last."""
        return np.array(walk([*self.demands, demand], self.budget, self.curve.seconds, joins_s))

    def weight(self, other: Lot) -> float:
        """Seconds that another lot gets for each of this one's while both want the device."""
        if self.bulk == other.bulk:
            return 1.0
        return BULK_SHARE - 1.0 if self.bulk else 1 / (BULK_SHARE - 1)

    def _cut(self, demand: Demand) -> Demand:
        if demand.promised or demand.left_s == math.inf:
            return demand
        max_ticks = max(1.0, demand.left_s / self.curve.seconds(demand.rows))
        if demand.calls <= max_ticks and demand.work <= max_ticks * demand.rows:
            return demand
        calls, work = min(demand.calls, max_ticks), min(demand.work, max_ticks * demand.rows)
        return Demand(demand.number, demand.rows, calls, work, demand.small, demand.runs, demand.left_s)


def wall(lot: Lot, ends: Times, others: Sequence[tuple[Lot, float]]) -> Times:
    """(n,) seconds from now, given a lot's ends in its own ticks, and each other lot with the seconds it wants."""
    out = ends.copy()
    for other, total in others:
        out += np.minimum(total, lot.weight(other) * ends)
    return out


class Prospects:
    """The forecast of the present jobs and a newcomer.

    Args:
        lots: the lots of all models with work, including that of the newcomer.
        mine: the newcomer's lot.
        job: the newcomer; its `left_s` counts from its arrival.
    """

    def __init__(self, lots: Sequence[Lot], mine: Lot, job: Demand) -> None:
        self._lots, self._mine, self._job = lots, mine, job
        self._alone_s = alone_s(job.calls, job.work, job.rows, mine.budget, mine.curve)
        self._before = [wall(lot, lot.ends, self._others(lot)) for lot in lots]

    def _others(self, lot: Lot, total: float | None = None) -> list[tuple[Lot, float]]:
        """The other lots and the seconds they want; `total` is that of the newcomer's lot once it has arrived."""
        return [
            (other, other.total if total is None or other is not self._mine else total)
            for other in self._lots
            if other is not lot
        ]

    def fits(self, joins_s: float = 0.0) -> bool:
        """Return whether all promises hold if the newcomer arrives in `joins_s` seconds."""
        ends = self._mine.joined(self._job, joins_s)
        total = float(ends.max())
        after = wall(self._mine, ends, self._others(self._mine))
        took = float(after[-1]) - joins_s
        left, alone = self._job.left_s, self._alone_s
        # A job that hardly fits even alone is accepted if nothing holds it up.
        if alone <= left < np.inf and took > max(KEPT * left, min(left, 1.1 * alone)):
            return False
        for lot, before in zip(self._lots, self._before, strict=True):
            now = after[:-1] if lot is self._mine else wall(lot, lot.ends, self._others(lot, total))
            if self._breaks(lot, before, now, joins_s):
                return False
        return True

    def _breaks(self, lot: Lot, before: Times, after: Times, joins_s: float) -> bool:
        """Whether one of a lot's promises holds before but not after, as of the newcomer's arrival."""
        short = self._alone_s <= _SHORT * (before - joins_s)
        kept = joins_s + np.where(short, _KEPT_FOR_SHORT, KEPT) * (lot.left - joins_s)
        held = lot.promised & ~(short & lot.tight) & (before <= lot.left)
        return bool((held & (after > kept) & (after > before + 1e-9)).any())

    def fits_in_s(self) -> float:
        """Return the seconds until the newcomer would be accepted if no other job arrives."""
        low, high = 0.0, sum(lot.total for lot in self._lots)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if self.fits(middle):
                high = middle
            else:
                low = middle
        return high


def hopeless(lots: Sequence[Lot]) -> tuple[Lot, int] | None:
    """The job to give up, so that others keep their promises; None if all are forecast to be in time.

    Of the jobs that will be late, it is the one that still needs most: the others gain most, and least is lost. A job
    that has the device to itself runs on, as no other job would gain.
    """
    if sum(len(lot.demands) for lot in lots) < 2:
        return None
    worst: tuple[float, Lot, int] | None = None
    for lot in lots:
        others = [(other, other.total) for other in lots if other is not lot]
        late = lot.promised & (_OPTIMISTIC_SHARE * wall(lot, lot.ends, others) > lot.left)
        for place in np.flatnonzero(late):
            demand = lot.demands[place]
            wants = demand.work * lot.curve.seconds(demand.rows) / demand.rows
            if worst is None or wants > worst[0]:
                worst = wants, lot, demand.number
    return None if worst is None else worst[1:]
