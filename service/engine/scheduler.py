"""Who runs next: which samples of which job become lanes. Knows rows and jobs, no tensors.

A model's arena holds at most `budget` lanes, so that a tick stays short. Small jobs (up to a quarter of it) enter in
the order they came. Large ones are fed in slices, share equally what they get, and never take the last quarter: the
next small job finds room at once. While large jobs wait, small ones leave them a quarter too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass
class Entry:
    """One job's place.

    Attributes:
        number: the job.
        samples: how many it has.
        cost: expected calls of one sample.
        whole: admit all samples in the same tick or none.
        small: its class; set when it is added.
        admitted: samples that became lanes so far.
        active: of those, lanes that still run.
    """

    number: int
    samples: int
    cost: float
    whole: bool = False
    small: bool = True
    admitted: int = 0
    active: int = 0

    @property
    def waiting(self) -> int:
        """Samples that are not lanes yet."""
        return self.samples - self.admitted


@dataclass
class Scheduler:
    """The jobs of one model's arena.

    Attributes:
        budget: lanes that the arena holds.
    """

    budget: int
    _entries: dict[int, Entry] = field(default_factory=dict)
    _small: deque[Entry] = field(default_factory=deque)
    _large: deque[Entry] = field(default_factory=deque)
    _active: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def __len__(self) -> int:
        """Jobs present, waiting or running."""
        return len(self._entries)

    @property
    def queued(self) -> int:
        """Jobs of which no sample runs yet."""
        return sum(entry.admitted == 0 for queue in (self._small, self._large) for entry in queue)

    def backlog(self) -> float:
        """Expected network rows of everything that is present; a running lane counts as half done."""
        return sum((entry.waiting + 0.5 * entry.active) * entry.cost for entry in self._entries.values())

    def add(self, entry: Entry) -> None:
        """Queue a job."""
        entry.small = entry.samples <= max(1, self.budget // 4)
        self._entries[entry.number] = entry
        self._queue_of(entry).append(entry)

    def remove(self, number: int) -> None:
        """Forget a job that was given up; its lanes must be stopped too."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        self._active[entry.small] -= entry.active
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
        entry.active -= lanes
        self._active[entry.small] -= lanes
        if entry.active or entry.waiting:
            return False
        del self._entries[number]
        return True

    def grant(self) -> list[tuple[int, int, int]]:
        """Choose what becomes lanes now.

        Returns:
            (job, first sample, count) in the order of admission.
        """
        quarter = self.budget // 4
        granted: list[tuple[int, int, int]] = []
        total = self._active[True] + self._active[False]
        small_room = min(self.budget - total, self.budget - (quarter if self._large else 0) - self._active[True])
        while self._small:
            entry = self._small[0]
            count = min(entry.waiting, small_room)
            if count <= 0 or (entry.whole and count < entry.waiting):
                break
            small_room -= count
            self._take(entry, count, granted)
            if not entry.waiting:
                self._small.popleft()
        self._feed_large(self.budget - quarter, granted)
        return granted

    def _feed_large(self, limit: int, granted: list[tuple[int, int, int]]) -> None:
        for _ in range(len(self._large)):
            entry = self._large[0]
            total = self._active[True] + self._active[False]
            if entry.whole:
                if total and total + entry.samples > self.budget:
                    return  # it waits for room, and those behind it wait with it
                count = entry.samples
            else:
                share = max(1, limit // len(self._large))
                count = min(entry.waiting, share - entry.active, limit - self._active[False], self.budget - total)
            if count > 0:
                self._take(entry, count, granted)
            if entry.waiting:
                self._large.rotate(-1)
            else:
                self._large.popleft()

    def _take(self, entry: Entry, count: int, granted: list[tuple[int, int, int]]) -> None:
        granted.append((entry.number, entry.admitted, count))
        entry.admitted += count
        entry.active += count
        self._active[entry.small] += count

    def _queue_of(self, entry: Entry) -> deque[Entry]:
        return self._small if entry.small else self._large

    def running_jobs(self) -> list[int]:
        """Jobs with lanes in the next tick."""
        return [entry.number for entry in self._entries.values() if entry.active]

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
