import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import kstest

from models.noise import noise, noise_of, rademacher
from solvers.draws import uniform

MASK = (1 << 64) - 1


def philox(key: int, counter: int) -> list[int]:
    """Philox4x64-10 in Python integers, from the paper of Salmon et al. (2011)."""
    c = [(counter >> (64 * i)) & MASK for i in range(4)]
    k0, k1 = key & MASK, key >> 64
    for _ in range(10):
        p0, p1 = c[0] * 0xD2E7470EE14C6C93, c[2] * 0xCA5A826395121157
        c = [(p1 >> 64) ^ c[1] ^ k0, p1 & MASK, (p0 >> 64) ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return c


def slow(seed: int, index: int, size: int) -> list[float]:
    """Sample `index` of `seed`, one number at a time; NumPy counts from 1."""
    counters = math.ceil(size / 4)
    words = [w for j in range(counters) for w in philox(seed, index * counters + j + 1)]
    return [float(ndtri(float(Fraction(2 * (w >> 11) + 1, 2**54)))) for w in words[:size]]


@pytest.mark.parametrize("shape", [(1,), (2,), (4,), (5,), (3, 3), (64,)])
def test_agrees_with_an_independent_slow_computation(shape: tuple[int, ...]) -> None:
    for seed, index in product([0, 1, 12345678901, 2**63 - 1], [0, 1, 7, 2**31, 2**62, 2**63 - 2]):
        found = noise(seed, index, 2, shape, torch.float64)
        assert found.shape == (2, *shape)
        expected = [slow(seed, index + row, math.prod(shape)) for row in range(2)]
        assert found.reshape(2, -1).tolist() == expected


@pytest.mark.parametrize("size", [2, 3, 64])
def test_a_sample_depends_on_seed_and_index_only(size: int) -> None:
    whole = noise(3, 0, 300, (size,))
    for first, number in [(0, 1), (17, 100), (255, 45), (299, 1)]:
        assert torch.equal(noise(3, first, number, (size,)), whole[first : first + number])
    assert not torch.equal(noise(4, 0, 300, (size,)), whole)


def test_is_the_same_across_the_internal_chunks() -> None:
    size = 4096  # 256 rows per chunk
    whole = noise(9, 2**62, 600, (size,))
    for row in (0, 255, 256, 511, 512, 599):
        assert torch.equal(noise(9, 2**62 + row, 1, (size,))[0], whole[row])


def test_float32_is_the_rounded_float64() -> None:
    assert torch.equal(noise(1, 5, 100, (3,)), noise(1, 5, 100, (3,), torch.float64).float())


def test_is_standard_normal_and_uncorrelated() -> None:
    z = noise(0, 0, 100_000, (2,), torch.float64).numpy()
    assert kstest(z.ravel(), "norm").pvalue > 0.001
    assert abs(np.corrcoef(z.T)[0, 1]) < 0.015
    assert abs(np.corrcoef(z[1:, 0], z[:-1, 0])[0, 1]) < 0.015


def test_the_most_extreme_words_give_finite_numbers() -> None:
    extremes = [uniform(np.uint64(word)) for word in (0, MASK)]
    assert extremes == [2.0**-54, 1 - 2.0**-53]
    assert np.isfinite(ndtri(extremes)).all()


def test_no_samples_and_scalar_events() -> None:
    assert noise(0, 0, 0, (2, 3)).shape == (0, 2, 3)
    assert noise(0, 0, 5, ()).shape == (5,)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((-1, 0, 1, (2,)), "seed is -1"),
        ((2**63, 0, 1, (2,)), "seed is 9223372036854775808"),
        (("7", 0, 1, (2,)), "seed is '7'"),
        ((True, 0, 1, (2,)), "seed is True"),
        ((0, -1, 1, (2,)), "first_index is -1"),
        ((0, 0, -1, (2,)), "num_samples is -1"),
        ((0, 0, 1, (2,), torch.float16), "float16"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        noise(*arguments)


def test_noise_of_several_seeds_at_once_is_that_of_each() -> None:
    blocks = [(5, 0, 3), (2**63 - 1, 2**63 - 1, 2), (0, 7, 0), (5, 3, 40_000), (9, 1, 1)]
    for shape in ((3,), (1,), (4, 5)):
        together = noise_of(blocks, shape)
        assert torch.equal(together, torch.cat([noise(*block, shape) for block in blocks]))


def test_seeking_is_advancing() -> None:
    for seed, first in ((0, 0), (7, 3), (2**63 - 1, 2**63 - 1), (3, 2**40)):
        generator = np.random.Philox(key=seed)
        generator.advance(first * 2)  # five numbers use two counters of four words
        expected = ndtri([uniform(word) for word in generator.random_raw(8)[:5]])
        assert noise(seed, first, 1, (5,), torch.float64)[0].tolist() == expected.tolist()


@pytest.mark.parametrize("width", [1, 2, 255, 256, 257, 784])
def test_the_probes_of_a_sample_do_not_depend_on_the_number_of_samples(width: int):
    many = rademacher(7, 0, 0, 20, (width,), torch.float32)
    assert torch.equal(rademacher(7, 0, 13, 2, (width,), torch.float32), many[13:15])
    assert set(rademacher(7, 0, 0, 300, (width,), torch.float64).unique().tolist()) == {-1.0, 1.0}


def test_probes_are_even_and_independent_of_each_other_and_of_the_noise():
    n = 20_000
    first, second = (rademacher(3, probe, 0, n, (2, 2), torch.float64).flatten() for probe in (0, 1))
    spread = (4 * n) ** -0.5
    assert abs(first.mean()) < 5 * spread
    assert abs((first * second).mean()) < 5 * spread
    assert abs((first * noise(3, 0, n, (2, 2), torch.float64).flatten()).mean()) < 5 * spread
    assert not torch.equal(first, rademacher(4, 0, 0, n, (2, 2), torch.float64).flatten())


def test_with_free_axes_the_noise_of_a_longer_sample_begins_with_that_of_a_shorter_one() -> None:
    short, long = (noise(3, 5, 4, (2, size, 3), free=(1,)) for size in (6, 10))
    assert torch.equal(short, long[:, :, :6])
    assert torch.equal(noise(3, 7, 1, (2, 6, 3), free=(1,))[0], short[2])
    assert torch.equal(noise_of([(3, 7, 1), (3, 5, 1)], (2, 6, 3), free=(1,)), short[[2, 0]])
    assert short.is_contiguous()


def test_with_free_axes_a_sample_owns_a_block_of_counters_whatever_its_shape() -> None:
    found = noise(9, 4, 1, (2, 3), torch.float64, free=(1,))[0]
    counter = 4 << 40
    words = [word for step in (1, 2) for word in philox(9, counter + step)][:6]
    wanted = ndtri((np.array([word >> 11 for word in words]) + 0.5) * 2.0**-53).reshape(3, 2).T
    np.testing.assert_array_equal(found.numpy(), wanted)
    last = noise((1 << 63) - 1, (1 << 63) - 1, 1, (2, 3), free=(1,))
    assert last.isfinite().all()


def test_samples_of_other_indices_share_no_words_whatever_their_shapes() -> None:
    twice = {float(x) for x in noise(0, 1, 1, (4, 300), torch.float64, free=(1,)).reshape(-1)}
    assert not twice & {float(x) for x in noise(0, 2, 1, (4, 150), torch.float64, free=(1,)).reshape(-1)}
    assert not twice & {float(x) for x in noise(0, 0, 1, (4, 900), torch.float64, free=(1,)).reshape(-1)}
