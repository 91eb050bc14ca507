"""How long a tick takes, learned while ticking. Knows seconds and rows, no tensors."""

from __future__ import annotations

_NEWEST = 0.1
"""Weight of the newest tick in the running means."""


class Pace:
    """Seconds of a whole tick (network, lanes, delivery) by its rows: one running mean for each power of two."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}  # bit length of the rows -> (mean rows, mean seconds)

    def learn(self, rows: int, seconds: float) -> None:
        """Take in one tick."""
        key = rows.bit_length()
        old = self._seen.get(key)
        if old is None:
            self._seen[key] = (float(rows), seconds)
            return
        # One tick that was held up (a page fault, a busy core) must not turn clients away for seconds.
        seconds = min(seconds, 5 * old[1])
        self._seen[key] = (old[0] + _NEWEST * (rows - old[0]), old[1] + _NEWEST * (seconds - old[1]))

    def seconds(self, rows: int) -> float:
        """Expected seconds of a tick of this many rows: interpolated; beyond what was seen, in proportion at most."""
        known = sorted(self._seen.values())
        if not known:
            return 1e-3
        below = [pair for pair in known if pair[0] <= rows]
        above = [pair for pair in known if pair[0] > rows]
        if not below:
            return above[0][1]  # a small tick costs about what the smallest seen does, at most
        r0, s0 = below[-1]
        if not above:
            return s0 * rows / r0
        r1, s1 = above[0]
        return s0 + (s1 - s0) * (rows - r0) / (r1 - r0)
