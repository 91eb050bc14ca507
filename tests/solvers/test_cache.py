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
    for key in "abcdefgh":
        cache.keep(key, bytes(100))
    first = cache.find("a")
    cache.keep("i", bytes(100))  # drives out b
    assert cache.find("a") is first is cache.keep("a", bytes(100))
    assert cache.find("b") is None
    assert cache.bytes == 800
    assert len(cache.keep("large", bytes(801))) == 801
    assert cache.find("large") is None
    assert cache.bytes == 800


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
    held = sum(array.nbytes for array in vars(largest.rows).values() if isinstance(array, np.ndarray))
    assert held < largest.bytes < 2 * held
