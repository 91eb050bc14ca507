"""Random signs."""

import pytest
import torch

from models.noise import noise
from models.noise import signs


@pytest.mark.parametrize("width", [1, 2, 255, 256, 257, 784])
def test_those_of_a_sample_do_not_depend_on_the_number_of_samples(width: int):
    many = signs(7, 0, 0, 20, (width,), torch.float32)
    assert torch.equal(signs(7, 0, 13, 2, (width,), torch.float32), many[13:15])
    assert set(signs(7, 0, 0, 300, (width,), torch.float64).unique().tolist()) == {-1.0, 1.0}


def test_they_are_even_and_independent_of_each_other_and_of_the_noise():
    n = 20_000
    first, second = (signs(3, probe, 0, n, (2, 2), torch.float64).flatten() for probe in (0, 1))
    spread = (4 * n) ** -0.5
    assert abs(first.mean()) < 5 * spread
    assert abs((first * second).mean()) < 5 * spread
    assert abs((first * noise(3, 0, n, (2, 2), torch.float64).flatten()).mean()) < 5 * spread
    assert not torch.equal(first, signs(4, 0, 0, n, (2, 2), torch.float64).flatten())
