"""NFE of a job before it has run: exact for plans, learned from jobs of the same kind under error control."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from service.engine.job import Job

Kind = tuple[str, ...]
_T = TypeVar("_T")

_GUESSED_NFE = 80.0
"""Calls of an adaptive sample before any has been seen."""

_WINDOW = 32
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
        told = {kind: (*self.seen.get(kind, ())[1 - _WINDOW :], (mean, most)) for kind in kinds}
        return replace(self, seen=_newest(self.seen, told))


def _newest(kept: Mapping[Kind, _T], told: Mapping[Kind, _T]) -> dict[Kind, _T]:
    """Both, without the kinds that were told of longest ago if there are too many."""
    both = {**{kind: each for kind, each in kept.items() if kind not in told}, **told}
    for kind in list(both)[: max(0, len(both) - _MOST_KINDS)]:
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
