"""Traces: attempted steps of a result, and the log that collects them while lanes run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.compiled import Index, Numbers, Records, compiled

COLUMNS = 32
"""The most attempts of a lane that are logged in place; a longer history is moved out in blocks of this size."""


@dataclass(frozen=True)
class StepTrace:
    """Attempted steps, one entry each, ordered by sample and then by attempt.

    Attributes:
        sample: (E,) index of the sample within its request.
        t, h: (E,) start and size of the step; h is negative where the span runs backwards.
        error: (E,) scaled error, accepted at 1 or less; infinite for a non-finite stage, NaN for fixed steps.
        accepted: (E,) bool.
        stiffness: (E,) |h| times the estimate of the largest eigenvalue of the Jacobian along the step (Hairer & Wanner
            II, IV.2, p. 22): explicit methods are unstable beyond their stability limit. NaN where the method does not
            have two stages at the step's end, or x did not move between them.
    """

    sample: NDArray[np.int64]
    t: NDArray[np.float64]
    h: NDArray[np.float64]
    error: NDArray[np.float64]
    accepted: NDArray[np.bool_]
    stiffness: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.sample)

    @classmethod
    def build(cls, sample: NDArray[np.int64], values: NDArray[np.float64]) -> StepTrace:
        """Make a trace from samples (E,) and columns (E, 5): t, h, error, accepted, stiffness."""
        t, h, error, accepted, stiffness = values.T
        return cls(sample, t, h, error, accepted == 1, stiffness)

    @classmethod
    def empty(cls) -> StepTrace:
        """Make a trace without attempts."""
        return cls.build(np.zeros(0, dtype=np.int64), np.zeros((0, 5)))

    @classmethod
    def of_grid(cls, times: NDArray[np.float64], steps: NDArray[np.int64], broken: NDArray[np.bool_]) -> StepTrace:
        """Make the trace of fixed steps, which follows from the grid.

        Args:
            times: (N + 1,) the start and the ends of the steps, see `Plan.times`.
            steps: (n,) how many steps each sample completed.
            broken: (n,) whether one more step was attempted and gave a non-finite state.
        """
        attempts = steps + broken
        ends = np.cumsum(attempts)
        step = np.arange(attempts.sum()) - np.repeat(ends - attempts, attempts)
        starts, lengths = steps_of(times)
        values = np.full((len(step), 5), np.nan)
        values[:, 0], values[:, 1], values[:, 3] = starts[step], lengths[step], 1.0
        last = ends[broken] - 1
        values[last, 2], values[last, 3] = np.inf, 0.0
        return cls.build(np.repeat(np.arange(len(steps)), attempts), values)


def steps_of(times: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the starts and lengths (N,) of steps, given their start and ends (N + 1,), see `Plan.times`."""
    moved = np.where(np.diff(times) != 0, np.arange(len(times) - 1), 0)
    starts = times[np.maximum.accumulate(moved)]
    return starts, times[1:] - starts


class StepLog:
    """Attempts of running lanes: a fixed place for each lane, so that recording is one vectorised write.

    Attributes:
        arrays: (places, COLUMNS, 5) the attempts in place, and (places,) how many; for `write_attempts`.
    """

    def __init__(self) -> None:
        self.arrays = np.zeros((0, COLUMNS, 5)), np.zeros(0, dtype=np.int64)
        self._free: list[int] = []
        self._moved: dict[int, list[NDArray[np.float64]]] = {}

    def open(self, lanes: int) -> NDArray[np.int64]:
        """Reserve places for this many lanes."""
        missing = lanes - len(self._free)
        if missing > 0:
            values, counts = self.arrays
            size = len(counts)
            grown = max(2 * size, size + missing, 64)
            more = np.zeros((grown - size, COLUMNS, 5)), np.zeros(grown - size, dtype=np.int64)
            self.arrays = np.concatenate([values, more[0]]), np.concatenate([counts, more[1]])
            self._free.extend(range(grown - 1, size - 1, -1))
        places = np.array(self._free[len(self._free) - lanes :], dtype=np.int64)
        del self._free[len(self._free) - lanes :]
        self.arrays[1][places] = 0
        return places

    def free(self, places: Index) -> None:
        """Free the places of lanes that never started."""
        self._free.extend(places.tolist())

    def record(self, lanes: Records, index: Index, error: Numbers, rho: Numbers) -> None:
        """Add the attempts of lanes `index` (m,), still at the start of the step; error and rho are (m,)."""
        if write_attempts(lanes, index, error, rho, *self.arrays):
            self.move_full(lanes[index])

    def move_full(self, lanes: Records) -> None:
        """Move the history of lanes out of full places, which happens once in COLUMNS attempts."""
        values, counts = self.arrays
        for place in lanes["log"].tolist():
            if place >= 0 and counts[place] == COLUMNS:
                self._moved.setdefault(place, []).append(values[place].copy())
                counts[place] = 0

    def close(self, lanes: Records) -> tuple[Index, Numbers]:
        """Remove and return the attempts of lanes, and free their places.

        Returns:
            The number of attempts of each lane (n,), and their columns (sum, 5), lane by lane.
        """
        attempts, values = _read(lanes, *self.arrays)
        places = [place for place in lanes["log"].tolist() if place >= 0]
        self._free.extend(places)
        if self._moved and not self._moved.keys().isdisjoint(places):
            blocks: list[Numbers] = []
            for k, block in enumerate(np.split(values, np.cumsum(attempts)[:-1])):
                earlier = self._moved.pop(int(lanes["log"][k]), [])
                blocks += [*earlier, block]
                attempts[k] += COLUMNS * len(earlier)
            values = np.concatenate(blocks)
        return attempts, values


@compiled
def _read(lanes: Records, values: Numbers, counts: Index) -> tuple[Index, Numbers]:
    """Return how many rows each lane has in place, and those rows."""
    attempts = np.zeros(len(lanes), dtype=np.int64)
    for j in range(len(lanes)):
        if lanes[j].log >= 0:
            attempts[j] = counts[lanes[j].log]
    rows = np.empty((attempts.sum(), values.shape[2]))
    k = 0
    for j in range(len(lanes)):
        for column in range(attempts[j]):
            rows[k] = values[lanes[j].log, column]
            k += 1
    return attempts, rows


@compiled
def quantiles_by_bin(t: Numbers, values: Numbers, edges: Numbers, shares: Numbers) -> Numbers:
    """Quantiles of values in each bin of t, with the bits of `np.quantile`.

    Args:
        t: (E,) where each value lies; beyond the first or last edge it counts to the bin there.
        values: (E,) finite.
        edges: (B + 1,) rising.
        shares: (Q,) between 0 and 1.

    Returns:
        (Q, B); NaN where a bin is empty.
    """
    bins = len(edges) - 1
    place, ends = np.empty(len(t), dtype=np.int64), np.zeros(bins + 1, dtype=np.int64)
    for m in range(len(t)):
        place[m] = min(max(np.searchsorted(edges, t[m], side="right") - 1, 0), bins - 1)
        ends[place[m] + 1] += 1
    for b in range(bins):
        ends[b + 1] += ends[b]
    grouped, filled = np.empty(len(t)), ends[:-1].copy()
    for m in range(len(t)):
        grouped[filled[place[m]]] = values[m]
        filled[place[m]] += 1
    quantiles = np.full((len(shares), bins), np.nan)
    for b in range(bins):
        mine = np.sort(grouped[ends[b] : ends[b + 1]])
        for q in range(len(shares)):
            if len(mine):
                quantiles[q, b] = _between(mine, shares[q] * (len(mine) - 1))
    return quantiles


@compiled
def _between(rising: Numbers, place: float) -> float:
    """The number at a place between two entries."""
    below = int(np.floor(place))
    low, high, part = rising[below], rising[min(below + 1, len(rising) - 1)], place - below
    # From the nearer end, as NumPy does: so the quantile of equal numbers is that number.
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


@compiled
def write_attempts(lanes: Records, index: Index, error: Numbers, rho: Numbers, values: Numbers, counts: Index) -> bool:
    """Write one row (t, h, error, accepted, stiffness) for each lane; return whether a place is now full."""
    full = False
    for m in range(len(index)):
        lane = lanes[index[m]]
        row = values[lane.log, counts[lane.log]]
        row[0], row[1], row[2], row[3] = lane.t, lane.h, error[m], error[m] <= 1
        row[4] = abs(lane.h) * rho[m] if np.isfinite(rho[m]) else np.nan
        counts[lane.log] += 1
        full |= counts[lane.log] == COLUMNS
    return full
