"""How long a tick takes, learned while ticking. Knows seconds and rows, no tensors."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

_WINDOW = 15
"""Ticks of a size that are remembered."""

_ENOUGH = 5
"""Ticks of a size before they count: the first ones touch new memory, and a median of fewer is not robust."""

_WORST = 3.0
"""A tick counts as this many medians at most."""

_STALE_S = 30.0
"""After so long without a tick of its size, what was seen under another load of the machine is forgotten."""


@dataclass
class _Size:
    """Ticks of about as many rows.

    Attributes:
        rows: running mean.
        measured: seconds on the idle device at load; None where nobody measured.
        newest: seconds of the newest ticks.
        learned: their mean without outliers; None until there are enough.
        at: when the newest was, in seconds of any clock.
    """

    rows: float
    measured: float | None = None
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    learned: float | None = None
    at: float = 0.0

    def learn(self, rows: int, seconds: float, now: float) -> None:
        if now - self.at > _STALE_S:
            self.newest.clear()
            self.learned = None
        self.rows += 0.1 * (rows - self.rows)
        self.newest.append(seconds)
        self.at = now
        if len(self.newest) >= _ENOUGH:
            median = sorted(self.newest)[len(self.newest) // 2]
            self.learned = sum(min(each, _WORST * median) for each in self.newest) / len(self.newest)

    def seconds(self, now: float) -> float | None:
        return self.measured if self.learned is None or now - self.at > _STALE_S else self.learned


class Pace:
    """Seconds of a whole tick (network, lanes, delivery) by its rows, one estimate for each power of two.

    A forecast that is too long turns away clients who would have been served in time, so an estimate stands on
    several ticks, hardly moves for one that was held up (a page fault, a busy core), never exceeds that of a larger
    tick, and is forgotten when it is old.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}  # by bit length of the rows
        self._now = 0.0

    def measured(self, rows: int, seconds: float) -> None:
        """The network alone was measured before any tick."""
        self._sizes[rows.bit_length()] = _Size(float(rows), seconds)

    def learn(self, rows: int, seconds: float, now: float) -> None:
        """Take in one tick that ended at `now` (seconds of a clock that never goes back)."""
        self._now = now
        key = rows.bit_length()
        size = self._sizes.get(key)
        if size is None:
            size = _Size(float(rows), at=now)
            self._sizes = {**self._sizes, key: size}  # replaced, not changed: other threads read it meanwhile
        size.learn(rows, seconds, now)

    def seconds(self, rows: int) -> float:
        """Expected seconds of a tick of this many rows: interpolated; beyond what was seen, in proportion at most."""
        known = self._known()
        if not known:
            return 1e-3
        place = bisect_right(known, (float(rows), float("inf")))
        if place == 0:
            return known[0][1]  # a small tick costs about what the smallest seen does, at most
        r0, s0 = known[place - 1]
        if place == len(known):
            return s0 * rows / r0
        r1, s1 = known[place]
        return s0 + (s1 - s0) * (rows - r0) / (r1 - r0)

    def _known(self) -> list[tuple[float, float]]:
        """(rows, seconds) of each size, rising in both."""
        found = ((size.rows, size.seconds(self._now)) for size in self._sizes.values())
        known = sorted((rows, seconds) for rows, seconds in found if seconds is not None)
        for k in range(len(known) - 2, -1, -1):
            known[k] = known[k][0], min(known[k][1], known[k + 1][1])
        return known
