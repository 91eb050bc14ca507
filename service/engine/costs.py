"""How many calls a job's samples will take: exact for plans, learned from jobs of the same kind under error control."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from service.engine.job import Job

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


class Costs:
    """What the jobs of one model have taken.

    Kinds are looked up from the most exact to the least: method, tolerances and span by powers, and how many samples
    (the slowest of many takes longer); then without the number, then the method alone.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, ...], deque[tuple[float, float]]] = OrderedDict()
        self._under_way: OrderedDict[tuple[str, ...], tuple[float, float]] = OrderedDict()

    def of(self, job: Job) -> Cost:
        """What is to be expected of a job."""
        if job.solve.nfe is not None:
            nfe = float(job.solve.nfe)
            return Cost(nfe, nfe, nfe)
        least, bound, keys = float(job.solve.nfe_least), float(job.solve.nfe_bound), _keys(job)

        def possible(calls: float) -> float:
            return min(max(calls, least), bound)  # no job of this kind need have been seen

        if keys[1] not in self._seen and (found := self._under_way.get(keys[1])):
            return Cost(possible(found[0]), possible(found[1]), None)
        for exactness, key in enumerate(keys):
            seen = self._seen.get(key)
            if seen:
                pairs = list(seen)  # the engine's thread goes on adding
                mean = sum(each for each, _ in pairs) / len(pairs)
                most = sorted(each for _, each in pairs)
                cautious = most[min(len(most) - 1, int(_CAUTIOUS * len(most)))]
                typical = possible(most[(len(most) - 1) // 2]) if exactness < 2 else None
                return Cost(possible(mean), possible(cautious), typical)
        guess = possible(_GUESSED_NFE)
        return Cost(guess, guess, None)

    def suspect(self, job: Job, mean: float, most: float) -> None:
        """The first job of its kind is still under way, and by its pace will have taken so many."""
        kind = _keys(job)[1]
        self._under_way[kind] = mean, most
        self._under_way.move_to_end(kind)
        if len(self._under_way) > _MOST_KINDS:
            self._under_way.popitem(last=False)

    def learn(self, job: Job, mean: float, most: float) -> None:
        """The samples of a job under error control have taken so many calls, on average and at most."""
        for key in _keys(job)[:2] if _bounded(job) else _keys(job):
            if key not in self._seen:
                self._seen[key] = deque(maxlen=_WINDOW)
            self._seen[key].append((mean, most))
            self._seen.move_to_end(key)
            if len(self._seen) > _MOST_KINDS:
                self._seen.popitem(last=False)


def _keys(job: Job) -> tuple[tuple[str, ...], ...]:
    """Under what jobs of a kind are kept, the most exact first.

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
