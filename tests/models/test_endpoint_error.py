"""Bounds on endpoint errors that apply to 95 % of all samples."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.endpoint_error import limit_95


@given(st.integers(1, 600), st.integers(0, 2**32 - 1))
def test_the_limit_is_one_of_the_distances_and_at_least_the_quantile(n: int, seed: int) -> None:
    distances = np.random.default_rng(seed).random(n)
    found = limit_95(distances)
    assert found in distances
    assert (distances <= found).mean() >= 0.95
    if n < 59:
        assert found == distances.max()


def test_the_limit_fails_as_rarely_as_it_says() -> None:
    source = np.random.default_rng(0)
    below = np.mean([limit_95(source.random(256)) < 0.95 for _ in range(4000)])
    assert below < 0.05
