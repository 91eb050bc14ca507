import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from studies.experiments.verdicts import Interval, Verdict, at_least, at_most, combine, exact, over_seeds, within

HOLDS, PARTLY, FAILS, NOISE = Verdict.HOLDS, Verdict.PARTLY, Verdict.FAILS, Verdict.NOISE


def test_the_interval_over_seeds_is_students():
    values = [0.3, 0.5, 0.1, 0.4]
    found = over_seeds(values)
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(0.325)
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert found.n == 4


def test_one_seed_can_never_decide():
    found = over_seeds([5.0])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert at_least(found, 0.0) == at_most(found, 100.0) == within(found, 4.0, 6.0) == NOISE


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_values_that_are_no_measurement_are_refused(values: list[float]):
    with pytest.raises(ValueError, match="finite numbers"):
        over_seeds(values)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.1, 1.9, HOLDS), (1.0, 2.0, HOLDS), (0.5, 0.9, FAILS), (2.1, 3.0, FAILS), (0.9, 1.5, NOISE), (0.0, 3.0, NOISE)],
)
def test_within_asks_for_the_whole_interval(low: float, high: float, verdict: Verdict):
    assert within(Interval((low + high) / 2, low, high, 0.1, 3), 1.0, 2.0) == verdict


def test_a_number_without_spread_is_always_decided():
    assert at_least(exact(2.0), 2.0) == HOLDS
    assert at_least(exact(1.99), 2.0) == FAILS
    assert at_most(exact(2.0), 2.0) == HOLDS
    assert at_most(exact(2.01), 2.0) == FAILS


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([HOLDS], HOLDS),
        ([HOLDS, HOLDS], HOLDS),
        ([FAILS, FAILS], FAILS),
        ([NOISE, NOISE], NOISE),
        ([HOLDS, FAILS], PARTLY),
        ([HOLDS, NOISE], PARTLY),
        ([HOLDS, NOISE, FAILS], PARTLY),
        ([FAILS, NOISE], FAILS),
        ([PARTLY, FAILS], PARTLY),
    ],
)
def test_parts_combine(parts: list[Verdict], verdict: Verdict):
    assert combine(parts) == verdict
    assert combine(reversed(parts)) == verdict


def test_a_claim_without_parts_is_refused():
    with pytest.raises(ValueError, match="at least one part"):
        combine([])


def test_numbers_read_with_their_spread():
    assert str(exact(546818.0)) == "546,818"
    assert str(over_seeds([1.0, 1.2])) == "1.1 ± 0.14"
