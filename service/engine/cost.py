"""Costs: how many network calls a job takes (its NFE), and how many seconds a tick lasts.

The NFE of a job before it has run is exact for plans, and learned from jobs of the same kind under error control.

Of ticks two things are learned apart. The cost of a tick of some size is steady, and told by the CPU time of the
engine's thread, in which stalls do not show. How much longer it lasts because others want the same cores (or Python's
lock) changes, hits few ticks hard and most not at all, and is one ratio for all sizes, over the last seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

from service.engine.job import Job

Kind = tuple[str, ...]
_T = TypeVar("_T")

_GUESSED_NFE = 80.0
"""Calls of an adaptive sample before any has been seen."""

_JOBS_KEPT = 32
"""Jobs of a kind that are remembered."""

_CAUTIOUS = 0.9
"""A job's slowest sample is expected to take as many calls as in this share of those."""

_MOST_KINDS = 256


@dataclass(frozen=True)
class Cost:
    """Calls of a job's samples.

    Attributes:
        mean: of a sample.
        most: of the slowest one, with caution.
        typical: of the slowest one in half of all jobs; None where no job has asked for the same.
    """

    mean: float
    most: float
    typical: float | None


@dataclass(frozen=True)
class NfeEstimates:
    """What the jobs of one arena have taken; never changed, so any thread may ask: what is learned makes a new one.

    Kinds are looked up from the most exact to the least: method, tolerances and span by powers, and how many samples
    (the slowest of many takes longer); then without the number, then the method alone.

    Attributes:
        seen: calls of a sample on average, and of the slowest, of the newest jobs of a kind.
        under_way: the same extrapolated from the first job of a kind, while it runs.
    """

    seen: Mapping[Kind, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    under_way: Mapping[Kind, tuple[float, float]] = field(default_factory=dict)

    def of(self, job: Job) -> Cost:
        """What is to be expected of a job."""
        if job.solve.nfe is not None:
            nfe = float(job.solve.nfe)
            return Cost(nfe, nfe, nfe)
        least, bound, kinds = float(job.solve.nfe_least), float(job.solve.nfe_bound), _kinds(job)

        def possible(calls: float) -> float:
            return min(max(calls, least), bound)  # no job of this kind need have been seen

        if kinds[1] not in self.seen and (found := self.under_way.get(kinds[1])):
            return Cost(possible(found[0]), possible(found[1]), None)
        for exactness, kind in enumerate(kinds):
            if pairs := self.seen.get(kind):
                mean = sum(each for each, _ in pairs) / len(pairs)
                most = sorted(each for _, each in pairs)
                cautious = most[min(len(most) - 1, int(_CAUTIOUS * len(most)))]
                typical = possible(most[(len(most) - 1) // 2]) if exactness < 2 else None
                return Cost(possible(mean), possible(cautious), typical)
        guess = possible(_GUESSED_NFE)
        return Cost(guess, guess, None)

    def suspect(self, job: Job, mean: float, most: float) -> NfeEstimates:
        """Note what the first job of its kind will take, extrapolated from its progress."""
        return replace(self, under_way=_newest(self.under_way, {_kinds(job)[1]: (mean, most)}))

    def learn(self, job: Job, mean: float, most: float) -> NfeEstimates:
        """Learn the mean and the largest number of calls of the samples of a finished job."""
        kinds = _kinds(job)[:2] if _bounded(job) else _kinds(job)
        told = {kind: (*self.seen.get(kind, ())[1 - _JOBS_KEPT :], (mean, most)) for kind in kinds}
        return replace(self, seen=_newest(self.seen, told))


def _newest(kept: Mapping[Kind, _T], told: Mapping[Kind, _T]) -> dict[Kind, _T]:
    """Both, without the kinds that were told of longest ago if there are too many."""
    both = dict(kept)
    for kind in told:
        both.pop(kind, None)
    both.update(told)
    for kind in list(islice(both, max(0, len(both) - _MOST_KINDS))):
        del both[kind]
    return both


def _kinds(job: Job) -> tuple[Kind, ...]:
    """Kinds of a job, the most exact first.

    A job whose max_step asks for many steps is like those whose max_step asks for about as many, and tells nothing of
    others.
    """
    spec, (start, end) = job.solve.spec, job.solve.t_span
    powers = [f"{math.log10(each):.0f}" for each in (spec.rtol, spec.atol) if each is not None]
    kind = (spec.solver, spec.error_control, *powers, f"{math.log2(abs(end - start)):.0f}")
    bits = f"{job.num_samples.bit_length()} bits"
    if not _bounded(job):
        return (*kind, bits), kind, (spec.solver,)
    short = (*kind, f"least {job.solve.nfe_least:.1e}")
    return (*short, bits), short, kind, (spec.solver,)


def _bounded(job: Job) -> bool:
    return job.solve.spec.max_step is not None


_TICKS_KEPT = 15
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

_FRESH_S = 0.005
"""The curve is put together anew once in so long at most: for short ticks that would take longer than what they do."""

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
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=_TICKS_KEPT))
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
        self._made: tuple[int, float, list[tuple[float, float]]] = (
            0,
            0.0,
            [],
        )  # after so many changes, when, the curve

    def measured(self, rows: int, cost: float) -> None:
        """The network alone was measured before any tick."""
        self._sizes[rows.bit_length()] = _Size(float(rows), cost)
        self._made = (0, 0.0, [])
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
        """(rows, cost) of each size, rising in both, as of a moment ago."""
        changes, (made, when, known) = self._changes, self._made
        if made != changes and not (known and when <= self._last < when + _FRESH_S):
            known = self._put_together()
            self._made = changes, self._last, known
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
