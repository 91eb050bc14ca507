import numpy as np
import pytest
from scipy import stats

from training import draws
from training.draws import DrawPurpose


def test_same_place_same_numbers_other_place_other_numbers():
    first, again = draws.batch(3, 7, 32, (2,)), draws.batch(3, 7, 32, (2,))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (draws.batch(3, 8, 32, (2,)), draws.batch(4, 7, 32, (2,))):
        assert not np.array_equal(first[0], other[0])
        assert not np.array_equal(first[1], other[1])
    assert len({draws.seed32(0, purpose) for purpose in DrawPurpose}) == len(DrawPurpose)


def test_noise_is_standard_normal_and_times_are_uniform():
    x0, t = draws.batch(0, 0, 20_000, (2, 2))
    assert x0.shape == (20_000, 2, 2)
    assert (x0.dtype, t.dtype) == (np.float32, np.float32)
    assert stats.kstest(x0.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(t, "uniform").pvalue > 1e-3
    assert t.min() >= 0
    assert t.max() < 1


@pytest.mark.parametrize("seed", [0, 2**63 - 1])
def test_any_allowed_seed_works(seed: int):
    assert 0 <= draws.seed32(seed, DrawPurpose.DATA) < 2**32
