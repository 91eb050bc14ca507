"""Costs: how many network calls a job takes (its NFE), and how many seconds a tick lasts.

The NFE of a job that has not run yet is exact for plans; under error control, it is learned from jobs of the same kind.

Two things are learned about ticks, separately. The cost of a tick of a given size is steady, and is measured as CPU
time of the engine's thread, in which stalls do not show. How much longer a tick lasts because other threads want the
same cores (or Python's lock) varies, and hits a few ticks hard and most not at all; it is one ratio for all sizes, over
the last seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TypeVar

from engine.job import Job

Kind = tuple[str, ...]
_T = TypeVar("_T")

_GUESSED_NFE = 80.0
"""Calls of an adaptive sample before any has been seen."""

_JOBS_KEPT = 32
"""Maximum number of jobs remembered for each kind."""

_CAUTIOUS = 0.9
"""Quantile of those jobs that predicts the calls of a job's slowest sample."""

_MAX_KINDS = 256


@dataclass(frozen=True)
class Cost:
    """Calls of a job's samples.

    Attributes:
        mean: expected calls of one sample.
        slowest: expected calls of the slowest sample, estimated cautiously.
        typical: median over earlier jobs of the slowest sample's calls; None if no similar job has run.
    """

    mean: float
    slowest: float
    typical: float | None


@dataclass(frozen=True)
class NfeEstimates:
    """Calls that the jobs of one arena have taken. Never changed, so any thread may read it: learning makes a new one.

    Kinds are looked up from the most exact to the least: method, powers of tolerances and span, and number of samples
    (the slowest of many takes longer); then without the number, then the method alone.

    Attributes:
        seen: for the newest jobs of each kind, the calls of a sample on average, and of the slowest.
        in_progress: the same, extrapolated from the first job of a kind while it runs.
    """

    seen: Mapping[Kind, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    in_progress: Mapping[Kind, tuple[float, float]] = field(default_factory=dict)

    def of(self, job: Job) -> Cost:
        """The expected cost of a job."""
        if job.solve.nfe is not None:
            nfe = float(job.solve.nfe)
            return Cost(nfe, nfe, nfe)
        least, bound, kinds = float(job.solve.nfe_least), float(job.solve.nfe_bound), _kinds(job)

        def possible(calls: float) -> float:
            return min(max(calls, least), bound)  # the estimate may come from another kind

        if kinds[1] not in self.seen and (found := self.in_progress.get(kinds[1])):
            return Cost(possible(found[0]), possible(found[1]), None)
        for exactness, kind in enumerate(kinds):
            if pairs := self.seen.get(kind):
                mean = sum(each for each, _ in pairs) / len(pairs)
                slowest = sorted(each for _, each in pairs)
                cautious = slowest[min(len(slowest) - 1, int(_CAUTIOUS * len(slowest)))]
                typical = possible(slowest[(len(slowest) - 1) // 2]) if exactness < 2 else None
                return Cost(possible(mean), possible(cautious), typical)
        guess = possible(_GUESSED_NFE)
        return Cost(guess, guess, None)

    def suspect(self, job: Job, mean: float, slowest: float) -> NfeEstimates:
        """Note the calls that the first job of its kind will take, extrapolated from its progress."""
        return replace(self, in_progress=_newest(self.in_progress, {_kinds(job)[1]: (mean, slowest)}))

    def learn(self, job: Job, mean: float, slowest: float) -> NfeEstimates:
        """Learn the mean and the largest number of calls of the samples of a finished job."""
        kinds = _kinds(job)[:2] if _bounded(job) else _kinds(job)
        updates = {kind: (*self.seen.get(kind, ())[1 - _JOBS_KEPT :], (mean, slowest)) for kind in kinds}
        return replace(self, seen=_newest(self.seen, updates))


def _newest(kept: Mapping[Kind, _T], updates: Mapping[Kind, _T]) -> dict[Kind, _T]:
    """Both merged; if there are too many kinds, those updated longest ago are dropped."""
    both = dict(kept)
    for kind in updates:
        both.pop(kind, None)
    both.update(updates)
    for kind in list(islice(both, max(0, len(both) - _MAX_KINDS))):
        del both[kind]
    return both


def _kinds(job: Job) -> tuple[Kind, ...]:
    """Kinds of a job, the most exact first.

    A job with max_step is compared first to those that max_step forces to about as many steps, and does not predict
    jobs without it.
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

    Between the sizes seen it interpolates; above the largest, seconds are proportional to rows. The engine's thread
    teaches it, and any thread may ask.
    """

    def __init__(self) -> None:
        self._sizes: list[tuple[float, float, bool] | None] = [None] * 64  # mean rows, mean cost, whether from ticks
        self._rising: tuple[tuple[float, float], ...] | None = None
        self._elapsed = self._cost = _PRIOR_S
        self._last = 0.0

    def measured(self, rows: int, cost: float) -> None:
        """Take in a measurement of the network alone, before any tick."""
        self._sizes[rows.bit_length()] = float(rows), cost, False
        self._rising = None

    def learn(self, rows: int, cost: float, elapsed: float, now: float, ticks: int = 1) -> None:
        """Take in some ticks of the same lanes.

        Args:
            rows: of each network call.
            cost: their CPU time in seconds; the same as `elapsed` if another device does the work.
            elapsed: seconds from their beginning to their end.
            now: their end, in seconds of a monotonic clock.
            ticks: their number.
        """
        size = rows.bit_length()
        mean_rows, mean, _ = self._sizes[size] or (float(rows), cost / ticks, True)
        newest = min(cost / ticks, _WORST * mean)
        self._sizes[size] = mean_rows + _NEWEST * (rows - mean_rows), mean + _NEWEST * (newest - mean), True
        self._rising = None
        if now - self._last > _STALE_S:
            self._elapsed = self._cost = _PRIOR_S
        self._last = now
        elapsed = min(max(elapsed, cost), cost + _LONGEST_STALL_S)
        kept = max(0.0, 1 - elapsed / _HORIZON_S)
        self._elapsed, self._cost = self._elapsed * kept + elapsed, self._cost * kept + cost

    @property
    def stretch(self) -> float:
        """How many times its cost a tick has recently lasted."""
        return max(1.0, self._elapsed / self._cost)

    def seconds(self, rows: float) -> float:
        """How long a tick of this many rows will last."""
        return self.stretch * self.cost(rows)

    def cost(self, rows: float) -> float:
        """How long it would last with the cores to itself."""
        sizes = self.sizes
        if not sizes:
            return 1e-3
        place = bisect_right(sizes, (float(rows), math.inf))
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
    def sizes(self) -> tuple[tuple[float, float], ...]:
        """(rows, cost) of the sizes seen, rising in both."""
        if (rising := self._rising) is None:
            sizes, ceiling = [], math.inf
            for rows, cost, ticked in reversed([size for size in self._sizes if size is not None]):
                sizes.append((rows, min(cost, ceiling)))  # no tick costs more than a larger one
                ceiling = sizes[-1][1] if ticked else ceiling  # (a measurement lacks what is beside the network)
            floor = accumulate((cost for _, cost in reversed(sizes)), max)
            rising = self._rising = tuple((rows, cost) for (rows, _), cost in zip(reversed(sizes), floor, strict=True))
        return rising
