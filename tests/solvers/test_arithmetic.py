"""Sums that cannot see their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solvers.arithmetic import all_finite, all_of_group, combine, finite_lanes, group_norms, lane_sums, pick, put
from tests.solvers.support import same_bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "s", "d"), [(1, 1, 1), (1, 7, 3), (33, 4, 1), (257, 7, 65), (5, 3, 784)])
def test_combine_is_the_sum_and_each_lane_stands_alone(dtype: torch.dtype, n: int, s: int, d: int) -> None:
    generator = torch.Generator().manual_seed(0)
    k = torch.randn(d, 7, n, generator=generator, dtype=dtype)
    weights = np.random.default_rng(0).standard_normal((2, s, n))
    found = combine(weights, k)
    expected = torch.einsum("msn,dsn->mdn", torch.from_numpy(weights), k[:, :s].double())
    assert torch.allclose(found.double(), expected, atol=1e-5 if dtype == torch.float32 else 1e-13)
    for lane in {0, n // 2, n - 1}:
        one = slice(lane, lane + 1)
        assert same_bits(combine(weights[..., one].copy(), k[..., one].clone()), found[..., one].contiguous())


@pytest.mark.parametrize("slots", [4, 5, 7])
def test_zero_weights_change_no_bit(slots: int) -> None:
    generator = torch.Generator().manual_seed(1)
    k = torch.randn(9, 7, 50, generator=generator)
    weights = np.zeros((slots, 50))
    weights[:3] = np.random.default_rng(1).standard_normal((3, 50))
    x = torch.randn(9, 50, generator=generator)
    assert same_bits(x + combine(weights, k), x + combine(weights[:3].copy(), k))


@given(st.integers(1, 70), st.integers(1, 40))
def test_lane_sums_depend_on_the_lane_alone(n: int, d: int) -> None:
    values = torch.randn(d, n, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    found = lane_sums(values.clone())
    assert np.allclose(found, values.sum(dim=0).numpy(), atol=1e-12)
    assert lane_sums(values[:, -1:].clone())[0] == found[-1]


def test_finite() -> None:
    values = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [1.0, -float("inf")], [3e38, 3e38]])
    assert finite_lanes(values.t()).tolist() == [True, False, False, True]
    assert not all_finite(values)
    assert all_finite(values[3:])
    assert all_finite(values[:0])


def test_pick_and_put() -> None:
    values, index = torch.arange(8.0).reshape(2, 4), np.array([1, 3])
    assert pick(values, index).tolist() == [[1, 3], [5, 7]]
    assert put(values, index, torch.zeros(2, 2)).tolist() == [[0, 0, 2, 0], [4, 0, 6, 0]]


def test_group_norms() -> None:
    alone, none = np.array([-1, -1]), np.array([False, True])
    assert group_norms(np.array([8.0, 18.0]), 2, alone).tolist() == [2.0, 3.0]
    groups = np.array([5, -1, 5, 3, 5])
    found = group_norms(np.array([2.0, 32.0, np.nan, 50.0, 6.0]), 2, groups)
    assert found[[0, 1, 3, 4]].tolist() == [np.sqrt(2.0), 4.0, 5.0, np.sqrt(2.0)]
    assert np.isnan(found[2])
    assert all_of_group(none, alone).tolist() == [False, True]
    assert all_of_group(np.array([True, False, True, True, False]), groups).tolist() == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_powers_do_not_depend_on_the_place_in_an_array() -> None:
    """The step-size controller's power is NumPy's: it must give each lane the same bits wherever it stands."""
    rng = np.random.default_rng(0)
    error, exponent = (
        rng.uniform(1e-6, 3, 4001),
        rng.choice([-1 / 6, -1 / 5, -1 / 3, -1 / 4, 0.04, 0.2, -0.5, 0.5], 4001),
    )
    whole = error**exponent
    strided = np.stack([error, exponent], axis=1)
    assert np.array_equal(strided[:, 0] ** strided[:, 1], whole)
    for size in (1, 2, 3, 7, 8, 9, 17):
        parts = [error[k : k + size] ** exponent[k : k + size] for k in range(0, 4001, size)]
        assert np.array_equal(np.concatenate(parts), whole)
