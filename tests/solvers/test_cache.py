"""The cache of plans counts bytes, not entries."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from solvers import SolverError, resolve
from solvers.cache import BytesCache
from solvers.plan import Plan


def test_the_values_used_last_are_kept() -> None:
    cache: BytesCache[str, bytes] = BytesCache(800, len)
    made: list[str] = []

    def value(key: str, size: int = 100) -> bytes:
        return cache.get(key, lambda: (made.append(key), bytes(size))[1])

    for key in "abcdefgh":
        value(key)
    value("a")
    value("i")  # drives out b
    value("a")
    value("b")
    assert made == [*"abcdefgh", "i", "b"]
    assert cache.bytes == 800
    for _ in range(2):
        value("large", 101)  # would drive out more than its share
    assert made[-2:] == ["large", "large"]


def test_errors_are_not_kept() -> None:
    cache: BytesCache[int, int] = BytesCache(100, lambda value: 1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get(1, lambda: 1 // 0)
    assert cache.get(1, lambda: 2) == 2


def test_plans_of_refused_requests_do_not_pile_up() -> None:
    alive: weakref.WeakSet[Plan] = weakref.WeakSet()
    for k in range(100):
        grid = np.linspace(0, 1, 3_000 + k)
        alive.add(resolve(solver="ab4", grid=grid))
        with pytest.raises(SolverError, match="max_nfe"):
            resolve(solver="ab4", grid=grid, max_nfe=10)
    gc.collect()
    assert sum(plan.bytes for plan in alive) <= 1 << 25
    [largest] = sorted(alive, key=lambda plan: plan.bytes)[-1:]
    arrays = [*largest.rows.packed, *vars(largest.rows).values()]
    held = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    assert held < largest.bytes < 2 * held
