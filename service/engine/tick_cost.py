"""The tick cost model: seconds of a tick by rows, learned while ticking. Knows seconds and rows, no tensors.

Two things are learned apart. What a tick of some size costs is steady, and told by the CPU time of the engine's
thread, in which stalls do not show. How much longer it lasts because others want the same cores (or Python's lock)
changes, hits few ticks hard and most not at all, and is one ratio for all sizes, over the last seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_WINDOW = 15
"""Ticks of a size that are remembered."""

_ENOUGH = 5
"""Ticks of a size before they count: the first ones touch new memory, and a median of fewer is not robust."""

_WORST = 3.0
"""A tick costs this many medians at most."""

_HORIZON_S = 3.0
"""Time over which the ratio is taken."""

_PRIOR_S = 0.3
"""Weight of the ratio 1, before any tick."""

_LONGEST_STALL_S = 0.5
"""One tick that was held up for longer (the process was stopped, the machine slept) says nothing of the next ones."""

_STALE_S = 30.0
"""After so long without a tick the machine's load may be another one."""


@dataclass
class _Size:
    """Ticks of about as many rows.

    Attributes:
        rows: running mean.
        measured: cost of the network alone, measured at load; None if it was not.
        newest: cost of the newest ticks in seconds.
    """

    rows: float
    measured: float | None = None
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _mean: tuple[float | None] | None = None  # of `newest`, once it was asked for

    def learn(self, rows: int, cost: float) -> None:
        self.rows += 0.1 * (rows - self.rows)
        self.newest.append(cost)
        self._mean = None

    @property
    def learned(self) -> float | None:
        """Their mean without outliers; None until there are enough."""
        found = self._mean
        if found is None:
            found = self._mean = (self._of_newest(),)
        return found[0]

    def _of_newest(self) -> float | None:
        newest = sorted(self.newest)
        if len(newest) < _ENOUGH:
            return None
        median = newest[len(newest) // 2]
        return sum(min(each, _WORST * median) for each in newest) / len(newest)


@dataclass(frozen=True)
class Curve:
    """Seconds of a tick by its rows at one moment: interpolated; beyond what was seen, in proportion at most.

    Attributes:
        known: (rows, cost) of sizes that were seen, rising in both.
        stretch: how many times its cost a tick lasts.
    """

    known: Sequence[tuple[float, float]]
    stretch: float = 1.0

    def seconds(self, rows: float) -> float:
        """How long a tick of this many rows will last."""
        return self.stretch * self.cost(rows)

    def cost(self, rows: float) -> float:
        """The same with the cores all to itself."""
        known = self.known
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


class TickCostModel:
    """Seconds of a whole tick (network, lanes, delivery) by its rows, one cost for each power of two.

    A forecast that is too long turns away clients who would have been served in time, so an estimate stands on
    several ticks and hardly moves for one that was held up.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}  # by bit length of the rows
        self._lasted = self._cost = _PRIOR_S
        self._last = 0.0
        self._changes = 0
        self._made: tuple[int, list[tuple[float, float]]] = (-1, [])

    def measured(self, rows: int, cost: float) -> None:
        """The network alone was measured before any tick."""
        self._sizes[rows.bit_length()] = _Size(float(rows), cost)
        self._changes += 1

    def learn(self, rows: int, cost: float, lasted: float, now: float, ticks: int = 1) -> None:
        """Take in some ticks of the same lanes.

        Args:
            rows: of each network call.
            cost: their CPU time in seconds; the same as `lasted` where the work is done elsewhere.
            lasted: seconds from their beginning to their end.
            now: their end, in seconds of a clock that never goes back.
            ticks: how many they are.
        """
        key = rows.bit_length()
        if key not in self._sizes:
            self._sizes[key] = _Size(float(rows))
        self._sizes[key].learn(rows, cost / ticks)
        self._changes += 1
        if now - self._last > _STALE_S:
            self._lasted = self._cost = _PRIOR_S
        self._last = now
        lasted = min(max(lasted, cost), cost + _LONGEST_STALL_S)
        kept = max(0.0, 1 - lasted / _HORIZON_S)
        self._lasted, self._cost = self._lasted * kept + lasted, self._cost * kept + cost

    @property
    def stretch(self) -> float:
        """How many times its cost a tick has lasted of late."""
        return max(1.0, self._lasted / self._cost)

    def seconds(self, rows: int) -> float:
        """How long a tick of this many rows will last, see `Curve`."""
        return self.curve().seconds(rows)

    def curve(self) -> Curve:
        """What is known now, to be asked many times."""
        return Curve(self._known(), self.stretch)

    def _known(self) -> list[tuple[float, float]]:
        """(rows, cost) of each size, rising in both; one request asks several times between two ticks."""
        changes, (made, known) = self._changes, self._made
        if made != changes:
            known = self._put_together()
            self._made = changes, known
        return known

    def _put_together(self) -> list[tuple[float, float]]:
        sizes = sorted(self._sizes.values(), key=lambda size: size.rows)
        known: list[tuple[float, float]] = []
        ceiling = float("inf")  # no tick costs more than a larger one
        for size in reversed(sizes):
            if (learned := size.learned) is not None:
                ceiling = min(ceiling, learned)
                known.append((size.rows, ceiling))
            elif size.measured is not None:
                known.append((size.rows, min(ceiling, size.measured)))
        known.reverse()
        floor = 0.0  # what was measured lacks all but the network
        for k, (rows, cost) in enumerate(known):
            floor = max(floor, cost)
            known[k] = rows, floor
        return known
