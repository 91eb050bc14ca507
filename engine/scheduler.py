"""The scheduler: chooses which samples of which job become lanes. It knows rows and jobs, but no tensors.

A model's arena holds lanes of at most `budget` network rows (a lane has one, or two if guided), so that a tick stays
short. Small jobs (up to a quarter of the budget) enter by deadline, earliest first, as long as more rows make a tick
more efficient. Large jobs enter in slices, share their rows equally, and never take the last quarter, so that the next
small job finds room at once. While large jobs wait, small ones leave them a quarter too.

Interactive and bulk jobs have a scheduler each; `Turns` decides when bulk lanes take part in a tick.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

BULK_SHARE = 8
"""While interactive jobs use the device, bulk jobs get one part in this many of its time."""

_MUCH_SHORTER = 0.25
"""A job is much shorter than those that run if it takes this share of the calls that they still need."""

_EARLY = 0.2
"""Share of its span after which a lane's calls so far predict its total, for lack of better data."""


@dataclass(frozen=True)
class Entry:
    """A job as accepted; it never changes.

    Attributes:
        number: number of the job; later jobs have higher ones.
        samples: number of samples.
        cost: expected calls of one sample.
        whole: admit all samples in the same tick or none.
        width: network rows of one call of one sample.
        calls: expected calls of its slowest sample; at least `cost`.
        known: whether both rest on known facts about the solver rather than on a guess.
        deadline: when it is given up, in seconds of the engine's clock; infinite for never.
        partial: whether it then ends with what it has, instead of failing.
    """

    number: int
    samples: int
    cost: float
    whole: bool = False
    width: int = 1
    calls: float = 0.0
    known: bool = True
    deadline: float = math.inf
    partial: bool = False

    @property
    def rows(self) -> int:
        """Network rows of one call of all its samples."""
        return self.samples * self.width


class Place(NamedTuple):
    """A job's place in its scheduler; never changed, only replaced, so any thread may read it.

    Attributes:
        entry: the job.
        small: whether it is a small job.
        samples: number of samples; fewer than in the entry once no more are admitted.
        cost, calls: as in the entry, or re-estimated since.
        admitted: number of samples that became lanes so far.
        active: number of those lanes still running.
        begun: the average tick in which the running lanes were admitted.
    """

    entry: Entry
    small: bool
    samples: int
    cost: float
    calls: float
    admitted: int = 0
    active: int = 0
    begun: float = 0.0

    @classmethod
    def of(cls, entry: Entry, budget: int) -> Place:
        """The place of a new job in a scheduler with this budget."""
        calls = max(entry.calls, entry.cost)
        return cls(entry, entry.rows <= part_of(budget), entry.samples, entry.cost, calls)

    @property
    def waiting(self) -> int:
        """The number of samples that are not lanes yet."""
        return self.samples - self.admitted

    @property
    def active_rows(self) -> int:
        """Network rows of its lanes that take part in a tick."""
        return self.active * self.entry.width

    def calls_left(self, tick: int) -> float:
        """Calls until the slowest running lane has ended, at least one."""
        return max(1.0, self.calls - (tick - self.begun)) if self.active else self.calls

    def left(self, tick: int) -> float:
        """Calls that a running lane still needs, at least one; half of all if old and new lanes run together."""
        if self.waiting:
            return max(1.0, 0.5 * self.cost)
        slowest = self.calls_left(tick)  # lanes that still run after most have ended are the slow ones
        return min(slowest, max(1.0, self.cost - (tick - self.begun), 0.5 * slowest if self.calls > self.cost else 0.0))

    def work(self, tick: int) -> float:
        """Network rows that the job still needs."""
        return self.entry.width * (self.waiting * self.cost + self.active * self.left(tick))


def part_of(budget: int) -> int:
    """Network rows of the largest small job."""
    return max(1, budget // 4)


class SchedulerSnapshot(NamedTuple):
    """A scheduler at one moment.

    Attributes:
        budget, enough, tick: see `Scheduler`.
        places: the places of all jobs, in order of arrival.
    """

    budget: int
    enough: int
    tick: int
    places: tuple[Place, ...]

    @property
    def queued(self) -> int:
        """The number of jobs without a running sample yet."""
        return sum(not place.admitted for place in self.places)

    @property
    def lanes(self) -> int:
        """The number of samples being solved."""
        return sum(place.active for place in self.places)

    def is_small(self, rows: int) -> bool:
        """Whether a job is small, by the network rows of one call of all its samples."""
        return rows <= part_of(self.budget)


@dataclass
class Scheduler:
    """The jobs of one arena and one priority.

    Attributes:
        budget: network rows of the lanes that the arena holds.
        enough: rows beyond which a row costs hardly less: more lanes would only make all end later, so small jobs wait
            for those before them, unless they are much shorter.
        tick: number of ticks that its lanes have taken.
        held: jobs that are not ready to become lanes.
    """

    budget: int
    enough: int = 2**62
    tick: int = 0
    held: set[int] = field(default_factory=set)
    _places: dict[int, Place] = field(default_factory=dict)
    _listed: tuple[Place, ...] | None = ()  # the places as a tuple; None after a change
    _small: list[tuple[float, int]] = field(default_factory=list)  # deadline and number of waiting small jobs
    _large: deque[int] = field(default_factory=deque)
    _active: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def __len__(self) -> int:
        """Jobs present, waiting or running."""
        return len(self._places)

    @property
    def active_rows(self) -> int:
        """Network rows of the running lanes."""
        return self._active[True] + self._active[False]

    def snapshot(self) -> SchedulerSnapshot:
        """The current state; has no cost per job unless one has changed."""
        if self._listed is None:
            self._listed = tuple(self._places.values())
        return SchedulerSnapshot(self.budget, min(self.enough, self.budget), self.tick, self._listed)

    def _room(self) -> int:
        """Network rows that small jobs may still take; large lanes are not pushed out for them."""
        reserved = self.budget // 4 if self._large else 0
        return min(self.budget - self.active_rows, self.budget - reserved - self._active[True])

    def add(self, entry: Entry, held: bool = False) -> None:
        """Queue a job; a `held` one is visible but waits until released."""
        place = Place.of(entry, self.budget)
        self._put(place)
        if held:
            self.held.add(entry.number)
        else:
            self._queue(place)

    def release(self, number: int) -> None:
        """Release a held job."""
        self.held.remove(number)
        self._queue(self._places[number])

    def _queue(self, place: Place) -> None:
        if place.small:
            insort(self._small, (place.entry.deadline, place.entry.number))
        else:
            self._large.append(place.entry.number)

    def remove(self, number: int) -> None:
        """Remove a job that was given up; its lanes must be stopped too."""
        place = self._places.get(number)
        if place is not None:
            self._unqueue(place)
            self._activate(place, 0)
            self._drop(place)

    def ended(self, number: int, lanes: int) -> bool:
        """Note that some lanes of a job have ended.

        Returns:
            Whether the job is complete; it is then removed. False for a job already removed.
        """
        place = self._places.get(number)
        if place is None:
            return False
        place = self._activate(place, place.active - lanes)
        if place.active or place.waiting:
            return False
        self._drop(place)
        return True

    def reprice(self, number: int, nfe: float, share: float, least: float) -> Place | None:
        """Re-estimate how many calls the samples of a job under error control need.

        Args:
            number: the job.
            nfe: average number of calls of its lanes so far.
            share: average share of the span that its lanes have completed.
            least: the same share for the slowest lane.

        Returns:
            Its place if the estimate has replaced a guess.
        """
        place = self._places.get(number)
        if place is None or least <= (0.0 if place.entry.known else _EARLY):
            return None
        entry, before = place.entry, max(place.entry.calls, place.entry.cost)
        # What is known from other jobs applies to the rest of the span; a guess is replaced by the rate so far.
        cost = nfe + (1 - share) * entry.cost if entry.known else nfe / share
        calls = max(cost, nfe + (1 - least) * before if entry.known else nfe / least)
        place = self._put(place._replace(cost=cost, calls=calls))
        return None if entry.known else place

    def grant(self) -> list[tuple[int, int, int]]:
        """Choose the samples that become lanes now.

        Returns:
            (job, first sample, count) in the order of admission.
        """
        granted: list[tuple[int, int, int]] = []
        if not self._small and not self._large:
            return granted
        if self._small:
            self._feed_small(granted)
        self._feed_large(self.budget - self.budget // 4, granted)
        return granted

    def _feed_small(self, granted: list[tuple[int, int, int]]) -> None:
        room, waiting = self._room(), list[tuple[float, int]]()
        enough, short = room - (self.budget - min(self.enough, self.budget)), -1.0
        for key in self._small:
            place = self._places[key[1]]
            width = place.entry.width
            if room <= 0 or (enough <= 0 and short < 0 and (short := self._short()) <= 0):
                waiting.append(key)
                continue
            free = room if place.calls <= short or (place.entry.whole and not self._active[True]) else enough
            count = min(place.waiting, free // width)
            if count <= 0 or (place.entry.whole and count < place.waiting):
                enough = 0  # others do not overtake it, unless they are short
                waiting.append(key)
                continue
            room, enough = room - count * width, enough - count * width
            if self._take(place, count, granted).waiting:
                enough = 0
                waiting.append(key)
        self._small = waiting

    def _short(self) -> float:
        """The calls of a job that is much shorter than what runs; 0 if nothing does."""
        running = [place.calls_left(self.tick) for place in self._places.values() if place.small and place.active]
        return _MUCH_SHORTER * sum(running) / len(running) if running else 0.0

    def _feed_large(self, limit: int, granted: list[tuple[int, int, int]]) -> None:
        for _ in range(len(self._large)):
            place = self._places[self._large[0]]
            width = place.entry.width
            share = max(1, limit // (len(self._large) * width))
            room = min(limit - self._active[False], self.budget - self.active_rows) // width
            if not self.active_rows:
                room = max(1, room)  # an arena of one row still takes a single guided sample
            count = min(place.waiting, share - place.active, room)
            if count > 0:
                place = self._take(place, count, granted)
            if place.waiting:
                self._large.rotate(-1)
            else:
                self._large.popleft()

    def _take(self, place: Place, count: int, granted: list[tuple[int, int, int]]) -> Place:
        granted.append((place.entry.number, place.admitted, count))
        begun = place.begun + (self.tick - place.begun) * count / (place.active + count)
        return self._activate(place, place.active + count, admitted=place.admitted + count, begun=begun)

    def _activate(self, place: Place, lanes: int, **changes: float) -> Place:
        after = place._replace(active=lanes, **changes)
        self._active[place.small] += after.active_rows - place.active_rows
        return self._put(after)

    def _put(self, place: Place) -> Place:
        self._places[place.entry.number] = place
        self._listed = None
        return place

    def _drop(self, place: Place) -> None:
        del self._places[place.entry.number]
        self._listed = None

    def _unqueue(self, place: Place) -> None:
        number, deadline = place.entry.number, place.entry.deadline
        if number in self.held:
            self.held.remove(number)
            return
        if not place.waiting:
            return
        if place.small:
            self._small.remove((deadline, number))
        else:
            self._large.remove(number)

    def first_waiting(self, number: int) -> int:
        """Return the first sample of a job that is not a lane yet; its number of samples if all are."""
        return self._places[number].admitted

    def drop_waiting(self, number: int) -> None:
        """Admit no more of a job's samples."""
        place = self._places[number]
        self._unqueue(place)
        self._put(place._replace(samples=place.admitted))


@dataclass
class Turns:
    """The turns of bulk lanes: every tick if they are alone, else one part in `BULK_SHARE` of the time.

    Attributes:
        interactive_s, bulk_s: time that each has used since both are present.
        tick_s: duration of the last tick of bulk lanes; their next turn comes once they have earned that much.
    """

    interactive_s: float = 0.0
    bulk_s: float = 0.0
    tick_s: float = 0.0

    def bulk(self, interactive: int, bulk: int) -> bool:
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
