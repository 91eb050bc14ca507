"""Promises: jobs are accepted only if they and all accepted before them meet their deadlines.

A promise is made with some of its time to spare, as forecasts are estimates. Shorter jobs that come later may use most
of that, so that a long one never keeps them all out. Where that is not enough, as the machine has become slower or a
sample is harder than others of its kind, `hopeless` chooses who is given up so that the rest make it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.engine.forecast import Demand, Lot, Times, alone_s, wall

KEPT = 0.45
"""A forecast may take up this share of a job's time: the rest is for what it cannot know.

It costs no goodput: under overload the device is never idle, only the queue is shorter."""

_KEPT_FOR_SHORT = 0.9
"""The same share after a much shorter job has joined."""

_SHORT = 0.25
"""A job is much shorter than another if it takes at most this share of what that one still takes."""

_SURELY = 0.7
"""A job is given up once this share of what it is forecast to take does not fit in its time."""

_BISECTIONS = 8


class Prospects:
    """What the jobs present make of a newcomer.

    Args:
        lots: of all models that have work, and that of the newcomer.
        mine: the newcomer's.
        job: the newcomer; its `left_s` counts from when it comes.
    """

    def __init__(self, lots: Sequence[Lot], mine: Lot, job: Demand) -> None:
        self._lots, self._mine, self._job = lots, mine, job
        self._alone_s = alone_s(job.calls, job.work, job.rows, mine.budget, mine.curve)
        self._before = [wall(lot, lot.ends, self._others(lot)) for lot in lots]

    def _others(self, lot: Lot, total: float | None = None) -> list[tuple[Lot, float]]:
        """The other lots and the seconds they want; `total` is that of the newcomer's own, once it has come."""
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
        # A job that hardly fits even alone is taken where nothing holds it up.
        if alone <= left < np.inf and took > max(KEPT * left, min(left, 1.1 * alone)):
            return False
        for lot, before in zip(self._lots, self._before, strict=True):
            now = after[:-1] if lot is self._mine else wall(lot, lot.ends, self._others(lot, total))
            if self._breaks(lot, before, now, joins_s):
                return False
        return True

    def _breaks(self, lot: Lot, before: Times, after: Times, joins_s: float) -> bool:
        """Whether one of a lot's promises holds before and not after, seen from when the newcomer comes."""
        short = self._alone_s <= _SHORT * (before - joins_s)
        kept = joins_s + np.where(short, _KEPT_FOR_SHORT, KEPT) * (lot.left - joins_s)
        held = lot.promised & ~(short & lot.tight) & (before <= lot.left)
        return bool((held & (after > kept) & (after > before + 1e-9)).any())

    def fits_in_s(self) -> float:
        """Return the seconds until the newcomer would be taken if no other job arrives."""
        low, high = 0.0, sum(lot.total for lot in self._lots)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if self.fits(middle):
                high = middle
            else:
                low = middle
        return high


def hopeless(lots: Sequence[Lot]) -> tuple[Lot, int] | None:
    """The job to give up, so that others keep their promises; None where all are forecast to be in time.

    Of those that will be late it is the one that still wants most: others gain most from it, and least is lost. A job
    that has the device to itself runs on, as no other job would gain.
    """
    if sum(len(lot.demands) for lot in lots) < 2:
        return None
    worst: tuple[float, Lot, int] | None = None
    for lot in lots:
        others = [(other, other.total) for other in lots if other is not lot]
        late = lot.promised & (_SURELY * wall(lot, lot.ends, others) > lot.left)
        for place in np.flatnonzero(late):
            demand = lot.demands[place]
            wants = demand.work * lot.curve.seconds(demand.rows) / demand.rows
            if worst is None or wants > worst[0]:
                worst = wants, lot, demand.number
    return None if worst is None else worst[1:]
