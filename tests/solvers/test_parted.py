"""Lanes under batch error control in parts: the same bits as in one call, in calls of bounded size."""

import numpy as np
import pytest
import torch
from torch import Tensor

from solvers import resolve
from solvers.lanes import Admission, Finished, Lanes
from solvers.parted import Parted
from tests.solvers.support import ADAPTIVE


def velocity(x: Tensor, t: Tensor) -> Tensor:
    return torch.sin(3 * x) * (1 + 4 * t[:, None]) + torch.where(x > 2.5, x * float("inf"), x) * 0.1


def solved(lanes: Lanes | Parted) -> tuple[list[Finished], list[int]]:
    """Return the ended trajectories, and the rows of each call."""
    ended, rows = [], []
    while len(lanes):
        x, t = lanes.query()
        rows.append(len(x))
        finished = lanes.absorb(velocity(x, t))
        ended += [] if finished is None else [finished]
    return ended, rows


def by_sample(ended: list[Finished]) -> list[tuple[object, ...]]:
    found = {}
    for each in ended:
        edges = np.concatenate([[0], np.cumsum(each.attempts)])
        for k, index in enumerate(each.index):
            steps = each.steps[edges[k] : edges[k + 1]].tobytes()
            found[int(index)] = (each.x[k].numpy().tobytes(), each.t[k], each.nfe[k], each.status[k], steps)
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("solver", ADAPTIVE)
@pytest.mark.parametrize("size", [1, 7, 16, 50])
@pytest.mark.parametrize("broken", [(), (3,), (0, 1, 2, 3, 4, 5, 6, 20)])
def test_parts_give_the_bits_of_the_whole(solver: str, size: int, broken: tuple[int, ...]) -> None:
    solve = resolve(solver=solver, rtol=1e-5, atol=1e-5, error_control="batch")
    x0 = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    x0[list(broken)] = 9.0
    admission = Admission(solve, x0, 5)
    whole = Lanes((3,))
    whole.admit([admission])
    parted = Parted(admission, lambda: Lanes((3,)), size)
    expected, _ = solved(whole)
    ended, rows = solved(parted)
    assert by_sample(ended) == by_sample(expected)
    assert max(rows) == min(size, 50)
    assert parted.total == 0
