"""Verdicts on measured numbers, by rules that do not depend on the results.

A number that was measured over seeds is an interval: mean and 95 % confidence limits of the mean (Student's t). A rule
holds if the whole interval satisfies it, and does not hold if the whole interval violates it. Otherwise it is
inconclusive.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.stats import t as student


class Verdict(StrEnum):
    """Outcome of a claim."""

    HOLDS = "holds"
    PARTLY = "partly"
    FAILS = "does not hold"
    NOISE = "inconclusive"


@dataclass(frozen=True)
class Interval:
    """A measured number.

    Attributes:
        mean: the mean over seeds.
        low, high: 95 % confidence limits of the mean; both equal the mean for a number without spread.
        sd: standard deviation over seeds, 0 for a number without spread.
        n: number of seeds.
    """

    mean: float
    low: float
    high: float
    sd: float = 0.0
    n: int = 1

    def __str__(self) -> str:
        if self.n == 1:
            whole = self.mean >= 1000 and float(self.mean).is_integer()
            return f"{self.mean:,.0f}" if whole else f"{self.mean:.4g}"
        return f"{self.mean:.4g} ± {self.sd:.2g}"


def exact(value: float) -> Interval:
    """Return a number without spread: a count, or the result of a deterministic calculation."""
    return Interval(value, value, value)


def over_seeds(values: Sequence[float]) -> Interval:
    """Return mean and confidence limits of values measured with different seeds.

    A single value has infinite limits, as it gives no information on the spread.

    Raises:
        ValueError: there is no value, or one is not finite.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError(f"values over seeds must be a list of finite numbers, got {values!r}")
    mean = float(array.mean())
    if len(array) == 1:
        return Interval(mean, -math.inf, math.inf)
    sd = float(array.std(ddof=1))
    half = float(student.ppf(0.975, len(array) - 1)) * sd / math.sqrt(len(array))
    return Interval(mean, mean - half, mean + half, sd, len(array))


def within(measured: Interval, low: float, high: float) -> Verdict:
    """Judge the rule low <= number <= high."""
    if low <= measured.low and measured.high <= high:
        return Verdict.HOLDS
    if measured.high < low or high < measured.low:
        return Verdict.FAILS
    return Verdict.NOISE


def at_most(measured: Interval, bound: float) -> Verdict:
    """Judge the rule number <= bound."""
    return within(measured, -math.inf, bound)


def at_least(measured: Interval, bound: float) -> Verdict:
    """Judge the rule number >= bound."""
    return within(measured, bound, math.inf)


def combine(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a claim with several parts.

    If all parts agree, their verdict. If one holds and another does not, or is inconclusive: partly. If none holds and
    at least one does not: does not hold.

    Raises:
        ValueError: there is no part.
    """
    found = set(verdicts)
    if not found:
        raise ValueError("a claim needs at least one part")
    if len(found) == 1:
        return found.pop()
    return Verdict.PARTLY if found & {Verdict.HOLDS, Verdict.PARTLY} else Verdict.FAILS
