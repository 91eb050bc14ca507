"""Step ends: a network receives the end of each lane's step, in the same call for all lanes."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from solvers import resolve
from solvers.integrate import integrate_indexed
from solvers.lanes import Admission, Lanes
from tests.solvers.support import same_bits

JOBS: list[dict[str, Any]] = [
    {"solver": "euler", "steps": 1},
    {"solver": "euler", "steps": 4},
    {"solver": "euler", "grid": [0.0, 0.1, 0.7, 1.0]},
    {"solver": "euler", "steps": 3, "grid": "sway"},
    {"solver": "euler", "steps": 2, "t_span": (0.25, 0.75)},
]


def average(x: Tensor, times: Tensor) -> Tensor:
    """An average velocity: any function of the state and both times."""
    start, end = times.unbind(1)
    return torch.sin(3 * x) * (1 + start)[:, None] - (end * end)[:, None]


def start(owner: int, rows: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, 2, generator=torch.Generator().manual_seed(owner), dtype=torch.float64).to(dtype)


def by_hand(job: dict[str, Any], x: Tensor) -> Tensor:
    """Euler steps one after another, each with both of its ends."""
    grid = resolve(**job, dtype=x.dtype).times
    assert grid is not None
    for begin, end in pairwise(grid):
        times = torch.tensor([[begin, end]], dtype=torch.float64).to(x.dtype).expand(len(x), 2)
        x = x + torch.tensor(end - begin, dtype=torch.float64).to(x.dtype) * average(x, times)
    return x


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_lane_is_told_the_end_of_its_own_step_alone_and_in_company(dtype: torch.dtype, compiled: bool) -> None:
    lanes = Lanes((2,), dtype, compiled=compiled, step_ends=True)
    lanes.admit([Admission(resolve(**job, dtype=dtype), start(k, k + 1, dtype), k) for k, job in enumerate(JOBS)])
    calls, found = 0, {}
    while len(lanes):
        x, times = lanes.query()
        assert times.shape == (len(x), 2)
        assert times.dtype == dtype
        assert bool((times[:, 1] > times[:, 0]).all())
        finished, calls = lanes.absorb(average(x, times)), calls + 1
        if finished is not None:
            for owner, index, row in zip(finished.owner, finished.index, finished.x, strict=True):
                found[int(owner), int(index)] = row
    assert calls == 4
    for k, job in enumerate(JOBS):
        expected = by_hand(job, start(k, k + 1, dtype))
        alone = integrate_indexed(
            lambda x, times, _: average(x, times), start(k, k + 1, dtype), resolve(**job, dtype=dtype), step_ends=True
        )
        for index in range(k + 1):
            assert same_bits(found[k, index], expected[index])
            assert same_bits(alone.x[index], expected[index])


def test_others_are_told_one_time() -> None:
    lanes = Lanes((2,))
    lanes.admit([Admission(resolve(solver="euler", steps=2), torch.zeros(3, 2))])
    assert lanes.query()[1].shape == (3,)


def test_ends_are_copies_that_a_network_may_change() -> None:
    lanes = Lanes((2,), torch.float64, step_ends=True)
    lanes.admit([Admission(resolve(solver="euler", steps=2, dtype=torch.float64), torch.zeros(1, 2))])
    lanes.query()[1].fill_(9.0)
    assert np.array_equal(lanes.query()[1].numpy(), [[0.0, 0.5]])
