"""The bank: rows and times of all plans that the lanes of an arena follow.

Everything is stored in a few growing arrays, so a tick gathers the weights of all lanes with one index. A plan's space
is freed when its last lane leaves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.plan import ROW, Rows


@dataclass
class RangeAllocator:
    """A first-fit allocator of ranges of indices; the total grows as needed."""

    size: int = 0
    free: list[tuple[int, int]] = field(default_factory=list)

    def take(self, count: int) -> int:
        """Allocate `count` consecutive indices and return the first; `size` may grow."""
        for k, (first, length) in enumerate(self.free):
            if length >= count:
                self.free[k : k + 1] = [(first + count, length - count)] if length > count else []
                return first
        first = self.size
        if self.free and sum(self.free[-1]) == self.size:
            first = self.free.pop()[0]
        self.size = max(2 * self.size, first + count, 64)
        if self.size > first + count:
            self.free.append((first + count, self.size - first - count))
        return first

    def give(self, first: int, count: int) -> None:
        """Free a range, merging it with free neighbours."""
        merged: list[tuple[int, int]] = []
        for start, length in sorted([*self.free, (first, count)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self.free = merged

    def shrink(self) -> None:
        """Halve the total, or more, if three quarters of it or more are free at the end."""
        if self.free and sum(self.free[-1]) == self.size and 4 * self.free[-1][0] <= self.size:
            first, _ = self.free.pop()
            self.size = 2 * first
            if first:
                self.free.append((first, first))


def grown(array: NDArray[Any], *shape: int) -> NDArray[Any]:
    """Pad an array with zeros to at least this shape along its first axes; return it as is if it is large enough."""
    sizes = (*map(max, array.shape, shape), *array.shape[len(shape) :])
    if sizes == array.shape:
        return array
    grown = np.zeros(sizes, dtype=array.dtype)
    grown[tuple(map(slice, array.shape))] = array
    return grown


class Bank:
    """Rows, times of grids and save times, by absolute index.

    Attributes:
        weights: (R, 5, S) the weights of each row.
        rows: (R,) records of `plan.ROW`.
        times: (G,) grids and save times.
        curves: (M, S, degree) the dense outputs, padded to the highest degree.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.weights = np.zeros((0, 5, slots))
        self.rows: NDArray[Any] = np.zeros(0, dtype=ROW)
        self.times = np.zeros(0)
        self.curves = np.zeros((0, slots, 0))
        self._row_space, self._time_space = RangeAllocator(), RangeAllocator()
        self._ranges: dict[int, tuple[RangeAllocator, int, int]] = {}  # first index and length, by identity
        self._users = Counter[int]()

    def widen(self, slots: int) -> None:
        """Widen all rows to `slots` slots, which must be more than before."""
        self.weights, self.curves = grown(self.weights, 0, 0, slots), grown(self.curves, 0, slots)
        self.slots = slots

    def hold(self, item: Rows | NDArray[np.float64]) -> int:
        """Load rows or times if needed, count one more user, and return their first index.

        The caller must keep the item alive. If memory runs out, nothing changes.
        """
        key = id(item)
        if key not in self._ranges:
            rows = isinstance(item, Rows)
            space, count = (self._row_space, len(item.records)) if rows else (self._time_space, len(item))
            before = space.size, list(space.free)
            first = space.take(count)
            try:
                self._load(item, first, count)
            except BaseException:
                space.size, space.free = before  # not `give`: a size that was too much would be asked for again
                raise
            self._ranges[key] = space, first, count
        self._users[key] += 1
        return self._ranges[key][1]

    def release(self, item: Rows | NDArray[np.float64]) -> None:
        """Count one user fewer; the last one frees the space."""
        key = id(item)
        self._users[key] -= 1
        if not self._users[key]:
            space, first, count = self._ranges.pop(key)
            space.give(first, count)
            del self._users[key]

    def _load(self, item: Rows | NDArray[np.float64], first: int, count: int) -> None:
        if not isinstance(item, Rows):
            self.times = grown(self.times, self._time_space.size)
            self.times[first : first + count] = item
            return
        self.weights = grown(self.weights, self._row_space.size)
        self.rows = grown(self.rows, self._row_space.size)
        dense = -1 if item.dense is None else self._curve(item.dense)
        weights, records = self.weights[first : first + count], self.rows[first : first + count]
        weights[:, :, : item.slots], weights[:, :, item.slots :] = item.weights, 0.0
        records[:] = item.records
        records["next"] += first
        records["restart"] += first
        records["dense"] = dense

    def _curve(self, dense: NDArray[np.float64]) -> int:
        """Return the index of a dense output, adding it if new. Each method has one, and none is ever removed."""
        self.curves = grown(self.curves, 0, 0, dense.shape[1])
        curve = grown(dense, *self.curves.shape[1:])
        for k, stored in enumerate(self.curves):
            if np.array_equal(stored, curve):
                return k
        self.curves = np.concatenate([self.curves, curve[None]])
        return len(self.curves) - 1
