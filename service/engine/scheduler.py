"""Who runs next: which samples of which job become lanes. Knows rows and jobs, no tensors.

A model's arena holds lanes of at most `budget` network rows (a lane has one, or two where it is guided), so that a tick
stays short. Small jobs (up to a quarter of it) enter by their deadlines, the earliest first. Large ones are fed in
slices, share equally what they get, and never take the last quarter: the next small job finds room at once. While large
jobs wait, small ones leave them a quarter too. A large job whose samples share their steps is admitted whole, but takes
part in each tick with a part of at most a quarter.

Interactive and bulk jobs have a scheduler each; `Turns` decides when bulk lanes take part in a tick.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass, field

BULK_SHARE = 8
"""While interactive jobs want the device, bulk jobs get one part in this many of its time."""

_MOST_PARTED = 2
"""Jobs whose samples share their steps and that take part in every tick by parts: the next ones wait for one to end."""

_EARLY = 0.2
"""Share of its span from which on a lane's calls tell how many it will take, where nothing else does."""


@dataclass
class Entry:
    """One job's place.

    Attributes:
        number: the job.
        samples: how many it has.
        cost: expected calls of one sample.
        whole: admit all samples in the same tick or none.
        width: network rows of one call of one sample.
        calls: expected calls of its slowest sample; where left out, that is `cost`.
        known: whether both stand on what is known of the solver, not on a guess.
        deadline: when it is given up, in seconds of the engine's clock; infinite where it never is.
        promised: whether it fails if it is not done by then.
        tight: whether it takes more than half of its time even alone.
        bears_s: how long all ticks may be for it to be in time; 0 where the ticks alone do not tell.
        relaxed: whether that is as long as the tick of a full arena.
        small: its class; set when it is added.
        most: lanes that take part in a tick at most; set when it is added.
        admitted: samples that became lanes so far.
        active: of those, lanes that still run.
        begun: the tick in which those were admitted, on average.
        first: `cost` and `calls` as they were before the job ran, once they have been estimated anew.
    """

    number: int
    samples: int
    cost: float
    whole: bool = False
    width: int = 1
    calls: float = 0.0
    known: bool = True
    deadline: float = math.inf
    promised: bool = False
    tight: bool = False
    bears_s: float = 0.0
    relaxed: bool = False
    small: bool = True
    most: int = 2**62
    admitted: int = 0
    active: int = 0
    begun: float = 0.0
    first: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        self.calls = max(self.calls, self.cost)

    @property
    def waiting(self) -> int:
        """Samples that are not lanes yet."""
        return self.samples - self.admitted

    @property
    def rows(self) -> int:
        """Network rows of one call of all its samples."""
        return self.samples * self.width

    @property
    def active_rows(self) -> int:
        """Of those, the rows of lanes that take part in a tick."""
        return min(self.active, self.most) * self.width

    @property
    def total_work(self) -> float:
        """Network rows that it needs from its beginning to its end."""
        return self.rows * self.cost

    def calls_left(self, tick: int) -> float:
        """Calls until the slowest of the lanes that run has ended: at least one."""
        return max(1.0, self.calls - (tick - self.begun)) if self.active else self.calls

    def left(self, tick: int) -> float:
        """Calls that a running lane still needs: at least one; half of all where old and new lanes run together."""
        if self.waiting:
            return max(1.0, 0.5 * self.cost)
        slowest = self.calls_left(tick)  # those that still run when most have ended are the slow ones
        return min(slowest, max(1.0, self.cost - (tick - self.begun), 0.5 * slowest if self.calls > self.cost else 0.0))

    def work(self, tick: int) -> float:
        """Network rows that the job still needs."""
        return self.width * (self.waiting * self.cost + self.active * self.left(tick))


@dataclass
class Scheduler:
    """The jobs of one model's arena and one priority.

    The properties that other threads ask for copy what they count first, as the jobs change meanwhile.

    Attributes:
        budget: network rows of the lanes that the arena holds.
        tick: how many ticks its lanes have taken.
        parted: jobs that run in parts.
        added: how many jobs have been added so far.
        strained: how many jobs are not `relaxed`.
    """

    budget: int
    tick: int = 0
    parted: int = 0
    added: int = 0
    strained: int = 0
    _entries: dict[int, Entry] = field(default_factory=dict)
    _small: list[Entry] = field(default_factory=list)
    _large: deque[Entry] = field(default_factory=deque)
    _active: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def __len__(self) -> int:
        """Jobs present, waiting or running."""
        return len(self._entries)

    @property
    def active_rows(self) -> int:
        """Network rows of the lanes that run."""
        return self._active[True] + self._active[False]

    @property
    def queued(self) -> int:
        """Jobs of which no sample runs yet."""
        return sum(entry.admitted == 0 for queue in (self._small, self._large) for entry in list(queue))

    def entries(self) -> list[Entry]:
        """All jobs, in the order they came."""
        return list(self._entries.values())

    def is_small(self, rows: int) -> bool:
        """The class of a job, by the network rows of one call of all its samples."""
        return rows <= self.part

    @property
    def part(self) -> int:
        """Network rows of a part of a job that is too large to take part in each tick as a whole."""
        return max(1, self.budget // 4)

    def room(self) -> int:
        """Network rows that small jobs may still take; large lanes are not pushed out for them."""
        reserved = self.budget // 4 if self._large else 0
        return min(self.budget - self.active_rows, self.budget - reserved - self._active[True])

    def enters_at_once(self, rows: int, before: int) -> bool:
        """Whether a new job would become lanes in the next tick, all of it, after `before` rows of others."""
        return self.is_small(rows) and not self._small and rows + before <= self.room()

    def backlog(self) -> float:
        """Expected network rows of everything that is present."""
        return sum(entry.work(self.tick) for entry in self.entries())

    def add(self, entry: Entry) -> None:
        """Queue a job."""
        entry.small = self.is_small(entry.rows)
        if entry.whole and not entry.small:
            entry.most = max(1, self.part // entry.width)
        self._entries[entry.number] = entry
        if entry.small:
            insort(self._small, entry, key=lambda each: each.deadline)
        else:
            self._large.append(entry)
        self.added += 1
        self.strained += not entry.relaxed

    def remove(self, number: int) -> None:
        """Forget a job that was given up; its lanes must be stopped too."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        self.strained -= not entry.relaxed
        self._set_active(entry, 0)
        queue = self._queue_of(entry)
        if entry in queue:
            queue.remove(entry)

    def ended(self, number: int, lanes: int) -> bool:
        """Some lanes of a job have ended.

        Returns:
            Whether the job is complete; it is then forgotten. False for a job that was removed.
        """
        entry = self._entries.get(number)
        if entry is None:
            return False
        self._set_active(entry, entry.active - lanes)
        if entry.active or entry.waiting:
            return False
        del self._entries[number]
        self.strained -= not entry.relaxed
        return True

    def reprice(self, number: int, nfe: float, share: float, least: float) -> Entry | None:
        """Estimate anew how many calls the samples of a job under error control need.

        Args:
            number: the job.
            nfe: calls that its lanes have made on average.
            share: of their spans that they have behind them on average.
            least: the share of the slowest.

        Returns:
            Its entry if the estimate has replaced a guess.
        """
        entry = self._entries.get(number)
        if entry is None or least <= (0.0 if entry.known else _EARLY):
            return None
        if entry.first is None:
            entry.first = entry.cost, entry.calls
        before = entry.calls
        cost, calls = entry.first
        # What is known of others holds for the rest of the span; a guess gives way to the pace so far.
        entry.cost = nfe + (1 - share) * cost if entry.known else nfe / share
        entry.calls = max(entry.cost, nfe + (1 - least) * calls if entry.known else nfe / least)
        entry.bears_s *= before / entry.calls
        return None if entry.known else entry

    def grant(self) -> list[tuple[int, int, int]]:
        """Choose what becomes lanes now.

        Returns:
            (job, first sample, count) in the order of admission.
        """
        granted: list[tuple[int, int, int]] = []
        if not self._small and not self._large:
            return granted
        small_room = self.room()
        while self._small:
            entry = self._small[0]
            count = min(entry.waiting, small_room // entry.width)
            if count <= 0 or (entry.whole and count < entry.waiting):
                break
            small_room -= count * entry.width
            self._take(entry, count, granted)
            if not entry.waiting:
                self._small.pop(0)
        self._feed_large(self.budget - self.budget // 4, granted)
        return granted

    def _feed_large(self, limit: int, granted: list[tuple[int, int, int]]) -> None:
        for _ in range(len(self._large)):
            entry = self._large[0]
            if entry.whole:
                part = entry.most * entry.width
                full = self.parted >= _MOST_PARTED or self.active_rows + part > self.budget
                count = 0 if self.active_rows and full else entry.samples
            else:
                share = max(1, limit // (len(self._large) * entry.width))
                room = min(limit - self._active[False], self.budget - self.active_rows) // entry.width
                if not self.active_rows:
                    room = max(1, room)  # an arena of one row still holds a guided sample, alone
                count = min(entry.waiting, share - entry.active, room)
            if count > 0:
                self._take(entry, count, granted)
            if entry.waiting:
                self._large.rotate(-1)
            else:
                self._large.popleft()

    def _take(self, entry: Entry, count: int, granted: list[tuple[int, int, int]]) -> None:
        granted.append((entry.number, entry.admitted, count))
        entry.admitted += count
        entry.begun += (self.tick - entry.begun) * count / (entry.active + count)
        self._set_active(entry, entry.active + count)

    def _set_active(self, entry: Entry, lanes: int) -> None:
        before, was_parted = entry.active_rows, entry.active > 0
        entry.active = lanes
        self._active[entry.small] += entry.active_rows - before
        if entry.whole and not entry.small:
            self.parted += (lanes > 0) - was_parted

    def _queue_of(self, entry: Entry) -> list[Entry] | deque[Entry]:
        return self._small if entry.small else self._large

    def first_waiting(self, number: int) -> int:
        """The first sample of a job that is not a lane yet; its number of samples where all are."""
        return self._entries[number].admitted

    def drop_waiting(self, number: int) -> None:
        """Admit no more of a job's samples."""
        entry = self._entries[number]
        queue = self._queue_of(entry)
        if entry in queue:
            queue.remove(entry)
        entry.samples = entry.admitted


@dataclass
class Turns:
    """When bulk lanes take part in a tick: always where they are alone, else for one part in `BULK_SHARE` of the time.

    Attributes:
        interactive_s, bulk_s: time that each has used since both are there.
        tick_s: what the last tick of bulk lanes took: their turn comes once they have earned that much.
    """

    interactive_s: float = 0.0
    bulk_s: float = 0.0
    tick_s: float = 0.0

    def bulk(self, interactive: int, bulk: int) -> bool:
        """Whether bulk lanes take part now, given how many lanes of each there are."""
        if not interactive or not bulk:
            self.interactive_s = self.bulk_s = 0.0
            return bulk > 0
        return self.interactive_s >= (BULK_SHARE - 1) * (self.bulk_s + self.tick_s)

    def used(self, interactive: int, bulk: int, seconds: float) -> None:
        """A tick of so many rows of each has taken so long; both pay for theirs."""
        share = seconds * bulk / max(1, interactive + bulk)
        self.interactive_s += seconds - share
        self.bulk_s += share
        if bulk:
            self.tick_s = share
