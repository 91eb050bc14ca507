"""The split of data into rows to train on and rows held out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from training import draws
from training.draws import Purpose
from training.errors import DataError

Rows = NDArray[np.int64]


def split(
    source: str, count: int, share: float, seed: int, conditions: NDArray[Any] | None = None
) -> tuple[Rows, Rows]:
    """Return the rows to train on and the rows held out, both in random order.

    Each class gives its share of the held-out rows, rounded, and keeps at least one row to train on. Conditions that
    are vectors are classes in this sense if they repeat, as one-hot columns do.

    Args:
        source: what the data are, for errors.
        count: the number of rows.
        share: the share to hold out, at least one row in all.
        seed: fixes the draw.
        conditions: labels (count,) or vectors (count, width), or None.

    Raises:
        DataError: there are fewer than three rows, or none is left to hold out.
    """
    held = max(1, round(share * count))
    if count - held < 2:
        raise DataError(f"{source} has {count} samples; at least 3 are needed, 2 to train on and 1 held out")
    order = draws.generator(seed, Purpose.DATA).permutation(count)
    group = _groups(count, conditions)[order]
    sizes = np.bincount(group)
    if not (held := min(held, count - len(sizes))):
        raise DataError(
            f"{source} has {count} samples, each in a class of its own; at least one class needs a second sample, to "
            "be held out. A quantity is a condition, not a label"
        )
    by_group = np.argsort(group, kind="stable")
    place = np.empty(count, dtype=np.int64)  # of a row among those of its class, from 1
    place[by_group] = 1 + np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # The rows are held out in the order in which they complete a share of their class; the last row would complete it.
    chosen = np.zeros(count, dtype=bool)
    chosen[np.argsort(place / sizes[group], kind="stable")[:held]] = True
    return order[~chosen], order[chosen]


def _groups(count: int, conditions: NDArray[Any] | None) -> Rows:
    """Return the number of each row's class, counted from 0 without gaps, (count,)."""
    if conditions is None:
        return np.zeros(count, dtype=np.int64)
    groups = np.unique(conditions, axis=0, return_inverse=True)[1].reshape(-1)
    alone = conditions.ndim > 1 and groups.max() >= count // 2
    return np.zeros(count, dtype=np.int64) if alone else groups
