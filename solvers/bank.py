"""The bank: rows and times of all plans that the lanes of an arena follow.

Everything is stored in a few growing arrays, so a tick gathers the weights of all lanes with one index. A plan's space
is freed when its last lane leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.plan import ROW, Plan, Rows


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


def _grown(array: NDArray[Any], *shape: int) -> NDArray[Any]:
    """Pad an array with zeros to at least this shape along its first axes; return it as is if it is large enough."""
    sizes = (*map(max, array.shape, shape), *array.shape[len(shape) :])
    if sizes == array.shape:
        return array
    grown = np.zeros(sizes, dtype=array.dtype)
    grown[tuple(map(slice, array.shape))] = array
    return grown


@dataclass
class _Loaded:
    first: int
    count: int
    users: int = 0


class Bank:
    """Rows, times of grids and save times, by absolute index.

    Attributes:
        weights: (R, 5, S) the weights of each row.
        rows: (R,) records of `ROW`.
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
        self._rows: dict[int, _Loaded] = {}
        self._grids: dict[int, _Loaded] = {}

    def widen(self, slots: int) -> None:
        """Widen all rows to `slots` slots, which must be more than before."""
        self.weights, self.curves = _grown(self.weights, 0, 0, slots), _grown(self.curves, 0, slots)
        self.slots = slots

    def hold(self, plan: Plan) -> tuple[int, int]:
        """Load a plan if needed, and count one more user. The caller must keep the plan alive.

        If memory runs out, nothing changes; the same is true of `hold_times`.

        Returns:
            (first row, first time); the latter is 0 under error control, where there is no grid.
        """
        loaded = self._rows.get(id(plan.rows))
        if loaded is None:
            loaded = self._rows[id(plan.rows)] = _Loaded(self._load(plan.rows), len(plan.rows.c))
        loaded.users += 1
        if plan.times is None:
            return loaded.first, 0
        try:
            return loaded.first, self.hold_times(plan.times)
        except BaseException:
            self._leave(self._rows, id(plan.rows), self._row_space)
            raise

    def hold_times(self, times: NDArray[np.float64]) -> int:
        """Load times if needed, count one more user, and return their first index."""
        grid = self._grids.get(id(times))
        if grid is None:
            first = self._time_space.take(len(times))
            try:
                self.times = _grown(self.times, self._time_space.size)
            except BaseException:
                self._time_space.give(first, len(times))
                raise
            self.times[first : first + len(times)] = times
            grid = self._grids[id(times)] = _Loaded(first, len(times))
        grid.users += 1
        return grid.first

    def release(self, plan: Plan) -> None:
        """Count one user fewer; the last one frees the space."""
        self._leave(self._rows, id(plan.rows), self._row_space)
        if plan.times is not None:
            self.release_times(plan.times)

    def release_times(self, times: NDArray[np.float64]) -> None:
        """Undo one `hold_times`."""
        self._leave(self._grids, id(times), self._time_space)

    @staticmethod
    def _leave(table: dict[int, _Loaded], key: int, space: RangeAllocator) -> None:
        loaded = table[key]
        loaded.users -= 1
        if not loaded.users:
            space.give(loaded.first, loaded.count)
            del table[key]

    def _load(self, rows: Rows) -> int:
        table, records = rows.packed
        count = len(records)
        first = self._row_space.take(count)
        try:
            self.weights = _grown(self.weights, self._row_space.size)
            self.rows = _grown(self.rows, self._row_space.size)
            dense = -1 if rows.dense is None else self._curve(rows.dense)
        except BaseException:
            self._row_space.give(first, count)
            raise
        weights, loaded = self.weights[first : first + count], self.rows[first : first + count]
        weights[:, :, : rows.slots], weights[:, :, rows.slots :] = table, 0.0
        loaded[:] = records
        loaded["next"] += first
        loaded["restart"] += first
        loaded["dense"] = dense
        return first

    def _curve(self, dense: NDArray[np.float64]) -> int:
        """Return the index of a dense output, adding it if new. Each method has one, and none is ever removed."""
        self.curves = _grown(self.curves, 0, 0, dense.shape[1])
        curve = _grown(dense, *self.curves.shape[1:])
        for k, stored in enumerate(self.curves):
            if np.array_equal(stored, curve):
                return k
        self.curves = np.concatenate([self.curves, curve[None]])
        return len(self.curves) - 1
