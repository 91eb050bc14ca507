"""The noise of steps: NumPy's Philox, SciPy's quantiles, random access."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from models.noise import noise_places
from solvers.draws import normals, philox, quantile, stir

NO_ORDER = np.zeros(0, dtype=np.int64)


def words_of(seed: int, index: int, step: int, count: int) -> NDArray[np.uint64]:
    """The words as NumPy makes them."""
    generator = np.random.Philox(key=seed + (1 << 127))
    state = generator.state
    state["state"]["counter"], state["buffer_pos"] = np.array([0, index, step, 0], np.uint64), 4
    generator.state = state
    return generator.random_raw(count)


@pytest.mark.parametrize(("seed", "index"), [(0, 0), (7, 3), (2**63 - 1, 2**63 - 3)])
def test_steps_have_the_quantiles_of_numpys_words(seed: int, index: int) -> None:
    z = np.empty((3, 10))
    normals(seed, index, z)
    for step in range(3):
        u = words_of(seed, index, step, 10)
        np.testing.assert_allclose(z[step], ndtri(((u >> np.uint64(11)) + 0.5) * 2.0**-53), rtol=2e-15)


def test_philox_of_any_counter_and_key() -> None:
    counter, key = np.array([2**64 - 2, 5, 6, 7], np.uint64), np.array([8, 2**64 - 9], np.uint64)
    found = philox(*counter, *key)
    generator = np.random.Philox(key=int(key[0]) + (int(key[1]) << 64))
    state = generator.state
    state["state"]["counter"], state["buffer_pos"] = counter - np.array([1, 0, 0, 0], np.uint64), 4
    generator.state = state
    assert [int(word) for word in found] == generator.random_raw(4).tolist()


def test_quantiles_of_extreme_words() -> None:
    """The least, the largest, both sides of every border of the approximation, and the middle."""
    for p in (
        2.0**-54,
        1e-12,
        1e-11,
        1.3887e-11,
        1.3888e-11,
        0.0749,
        0.0751,
        0.4999,
        0.5001,
        0.9249,
        0.9251,
        1 - 1e-12,
    ):
        word = np.uint64(int(p * 2**53) << 11)
        exact = NormalDist().inv_cdf((int(p * 2**53) + 0.5) * 2.0**-53)
        assert quantile(word) == pytest.approx(exact, rel=1e-14, abs=1e-15)
    assert quantile(np.uint64(2**64 - 1)) == pytest.approx(ndtri(1 - 2.0**-53), rel=1e-14)


def test_stir_adds_state_and_noise_in_the_order_of_the_free_axes() -> None:
    x = np.arange(12, dtype=np.float32)
    z = np.empty((6, 12))
    normals(1, 2, z)
    places = noise_places((3, 4), (1,))
    out = np.ones(12, dtype=np.float32)
    stir(out, x, -0.5, 0.25, 1, 2, 5, places)
    drawn = np.empty(12)
    drawn[places] = z[5]
    half, quarter = np.float32(-0.5), np.float32(0.25)
    assert out.tolist() == ((np.float32(1) + half * x) + quarter * drawn.astype(np.float32)).tolist()
    assert drawn.reshape(3, 4)[:, 0].tolist() == z[5, :3].tolist()


def test_a_longer_sample_begins_with_the_noise_of_a_shorter_one() -> None:
    def drawn(length: int) -> NDArray[np.float64]:
        out = np.zeros(3 * length)
        stir(out, out, 0.0, 1.0, 9, 4, 1, noise_places((3, length), (1,)))
        return out.reshape(3, length)

    assert drawn(7)[:, :4].tolist() == drawn(4).tolist()
    assert noise_places((3, 4), ()).tolist() == []
