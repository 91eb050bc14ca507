"""The bank: space is shared, returned and reused."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from solvers import resolve
from solvers.bank import Bank, RangeAllocator
from solvers.lanes import Admission, Lanes
from tests.solvers.support import decay, ones, run


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_stretches_never_overlap_and_join_again(moves: list[tuple[bool, int]]) -> None:
    space, held = RangeAllocator(), {}
    for take, count in moves:
        if take or not held:
            first = space.take(count)
            assert first + count <= space.size
            assert all(first + count <= other or other + length <= first for other, length in held.items())
            held[first] = count
        else:
            first = sorted(held)[count % len(held)]
            space.give(first, held.pop(first))
        if count % 4 == 0:
            space.shrink()
            assert all(first + length <= space.size for first, length in held.items())
            assert sum(length for _, length in space.free) + sum(held.values()) == space.size
    for first, count in held.items():
        space.give(first, count)
    assert space.free == ([(0, space.size)] if space.size else [])
    space.shrink()
    assert (space.size, space.free) == (0, [])


def test_equal_plans_share_one_place() -> None:
    bank = Bank(7)
    plan, other = resolve(solver="rk4", steps=5), resolve(solver="rk4", steps=6)
    assert plan.times is not None
    assert other.times is not None
    first, time = bank.hold(plan.rows), bank.hold(plan.times)
    assert (bank.hold(other.rows), bank.hold(plan.times)) == (first, time)
    assert bank.hold(other.times) != time
    assert np.array_equal(bank.times[time : time + 6], plan.times)
    for item in (plan.rows, plan.times, other.rows, plan.times, other.times):
        bank.release(item)
    assert not bank._ranges


def test_many_different_plans_do_not_make_the_bank_grow() -> None:
    lanes = Lanes((1,), torch.float64)
    sizes = set()
    for turn in range(60):
        solves = [
            resolve(solver="ab4", steps=3 + turn % 40, start="rk", grid={"name": "shift", "value": 1 + turn / 7}),
            resolve(solver="euler", grid=[0.0, (turn + 1) / 300, 1.0]),
            resolve(rtol=1e-3 + turn * 1e-6, max_nfe=10 + turn),
        ]
        run(lanes, decay, [Admission(solve, ones(2), owner=k) for k, solve in enumerate(solves)])
        sizes.add((len(lanes.bank.rows), len(lanes.bank.times), len(lanes.bank.curves)))
    assert max(size[0] for size in sizes) <= 128
    assert max(size[1] for size in sizes) <= 128
    assert max(size[2] for size in sizes) == 1
    assert not lanes.bank._ranges
    assert not lanes._tickets
    assert len(lanes.log._free) == len(lanes.log.arrays[1])
    assert (lanes.states.x.shape, lanes.states.k.shape) == ((0, 1), (0, 7, 1))
