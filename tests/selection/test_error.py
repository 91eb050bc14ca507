"""The summary of endpoint errors, and how often its interval of p95 fails."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.field import Field, solve
from selection.error import LEAST_SAMPLES, Ends, NoErrors, arrivals, summary
from solvers import SolverSpec


@given(st.integers(1, 600), st.integers(0, 2**32 - 1))
def test_each_number_is_one_of_the_errors_and_they_are_in_order(n: int, seed: int) -> None:
    errors = np.random.default_rng(seed).random(n)
    members = summary(errors)
    assert members is not None
    assert {members[name] for name in ("p50", "p95", "p95_low", "p95_high")} <= set(errors)
    assert members["p95_low"] <= members["p95"] <= members["p95_high"] <= members["worst"] == errors.max()
    assert (errors <= members["p95"]).mean() >= 0.95
    if n < LEAST_SAMPLES:
        assert members["p95_high"] == errors.max()


@pytest.mark.parametrize("n", [LEAST_SAMPLES, 512])
def test_each_end_of_the_interval_fails_as_rarely_as_it_says(n: int) -> None:
    source = np.random.default_rng(0)
    intervals = [summary(source.random(n)) or {} for _ in range(4000)]
    assert np.mean([members["p95_high"] < 0.95 for members in intervals]) < 0.015
    assert np.mean([members["p95_low"] > 0.95 for members in intervals]) < 0.015


def test_samples_that_fail_are_infinitely_far() -> None:
    errors = np.append(np.linspace(0, 1, 98), [np.inf, np.inf])
    members = summary(errors)
    assert members is None, "p95 is promised of samples that arrive"
    errors = np.append(np.linspace(0, 1, 511), np.inf)
    members = summary(errors)
    assert members is not None
    assert (members["failed"], members["worst"]) == (1, 1.0)


def test_errors_are_shares_of_the_spread() -> None:
    ends = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 4.0], [0.0, -4.0], [torch.nan, 0.0]])
    exact = Ends.of(ends)
    assert exact.spread == pytest.approx(np.sqrt(12.5))
    errors = exact.errors(ends + torch.tensor([0.3, 0.4]))
    np.testing.assert_allclose(errors[:4] * exact.spread, 0.5, rtol=1e-6)
    assert np.isinf(errors[4])
    for same, words in ((ends[:1], "all paths end at the same point"), (ends[4:], "none of 1 paths reached t = 1")):
        with pytest.raises(NoErrors, match=words):
            Ends.of(same)


def test_each_sample_has_its_own_condition_and_a_point_counts_it() -> None:
    conditions = torch.tensor([1.0, -2.0, 5.0])
    field = Field(lambda x, t, c: c[:, None].expand_as(x), conditions)
    solution = solve(field, torch.zeros(3, 2), SolverSpec.parse("rk4-3"))
    torch.testing.assert_close(solution.x, conditions[:, None].expand(3, 2))
    ends = Ends.of(conditions[:, None].expand(3, 2).double())
    arrived = arrivals(solution.x, solution.status)
    point = ends.point("rk4-3", arrived, solution.nfe)
    assert point is not None
    assert (point.nfe, point.nfe_most, point.failed) == (12, 12, 0)
    assert point.worst == pytest.approx(0, abs=1e-6)
    none = Ends(torch.full((3, 2), torch.nan), 1.0)
    assert np.isinf(none.errors(arrived)).all()
    assert not none.reached.any()
