"""Sums of a lane that do not depend on other lanes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solvers.clocks import norms
from solvers.kernels_torch import combine, finite_lanes, lane_sums
from solvers.state import LANE
from tests.solvers.support import same_bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "s", "d"), [(1, 1, 1), (1, 7, 3), (33, 4, 1), (257, 7, 65), (5, 3, 784)])
def test_combine_is_the_sum_and_each_lane_stands_alone(dtype: torch.dtype, n: int, s: int, d: int) -> None:
    generator = torch.Generator().manual_seed(0)
    k = torch.randn(n, 7, d, generator=generator, dtype=dtype)
    weights = torch.randn(n, s, generator=generator, dtype=dtype)
    found = combine(weights, k)
    expected = torch.einsum("ns,nsd->nd", weights.double(), k[:, :s].double())
    assert torch.allclose(found.double(), expected, atol=1e-5 if dtype == torch.float32 else 1e-13)
    for lane in {0, n // 2, n - 1}:
        one = slice(lane, lane + 1)
        assert same_bits(combine(weights[one].clone(), k[one].clone()), found[one])


@pytest.mark.parametrize("slots", [4, 5, 7])
def test_zero_weights_change_no_bit(slots: int) -> None:
    generator = torch.Generator().manual_seed(1)
    k = torch.randn(50, 7, 9, generator=generator)
    weights = torch.zeros(50, slots)
    weights[:, :3] = torch.randn(50, 3, generator=generator)
    x = torch.randn(50, 9, generator=generator)
    assert same_bits(x + combine(weights, k), x + combine(weights[:, :3].clone(), k))


@given(st.integers(1, 70), st.integers(1, 40))
def test_lane_sums_depend_on_the_lane_alone(n: int, d: int) -> None:
    values = torch.randn(n, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
    found = lane_sums(values.clone())
    assert np.allclose(found, values.sum(dim=1).numpy(), atol=1e-12)
    assert lane_sums(values[-1:].clone())[0] == found[-1]


def test_finite() -> None:
    values = torch.tensor([[1.0, 2.0], [float("nan"), 0.0], [1.0, -float("inf")], [3e38, 3e38]])
    assert finite_lanes(values).tolist() == [True, False, False, True]


def test_group_norms() -> None:
    def shared(sums: list[float], groups: list[int], errors: bool = False) -> list[float]:
        lanes = np.zeros(len(groups), dtype=LANE)
        lanes["group"] = groups
        return norms(lanes, np.arange(len(groups)), np.array(sums), 2, errors).tolist()

    assert shared([8.0, 18.0], [-1, -1]) == [2.0, 3.0]
    sums = [2.0, np.nan, 6.0, 32.0, 18.0, 50.0]
    expected = [np.sqrt(2.0), np.nan, np.sqrt(2.0), 4.0, 3.0, 5.0]
    assert np.array_equal(shared(sums, [5, 5, 5, -1, -1, 3]), expected, equal_nan=True)
    assert shared(sums, [5, 5, 5, -1, -1, 3], errors=True)[1] == np.inf
    assert np.isnan(shared([np.nan, np.nan], [0, 0])).all()
