"""Sums over slots, coordinates and groups whose bits depend on nothing but the lane itself.

Library reductions and matrix products choose their order of summation by the shape of the whole tensor, so a lane's
last bit would change with its neighbours. Here every operation is elementwise and rounded correctly, in an order fixed
by the lane's own length: the result cannot depend on how many lanes there are, where a lane stands, or on the threads.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solvers.compiled import compiled


def combine(weights: Tensor, k: Tensor) -> Tensor:
    """Weighted sums of stored velocities.

    Args:
        weights: (n, s) weights of the first s slots of each lane.
        k: (n, S, D) with S >= s.

    Returns:
        (n, D) sum over s of weights * k, in k's dtype, summed in the order of the slots.
    """
    total = weights[:, :1] * k[:, 0]
    for slot in range(1, weights.shape[1]):
        total = total + weights[:, slot, None] * k[:, slot]
    return total


def lane_sums(values: Tensor) -> NDArray[np.float64]:
    """Sum over the coordinates of each lane, by halving.

    Args:
        values: (n, D) float64; overwritten.

    Returns:
        (n,) on the host.
    """
    width = values.shape[1]
    while width > 1:
        half = (width + 1) // 2
        values[:, : width - half] += values[:, half:width]
        width = half
    return values[:, 0].cpu().numpy() if width else np.zeros(len(values))


def finite_lanes(values: Tensor) -> NDArray[np.bool_]:
    """(n,) whether all coordinates of a lane of (n, D) are finite."""
    return torch.isfinite(values).all(dim=1).cpu().numpy()


@compiled
def group_norms(sums: NDArray[np.float64], width: int, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Root mean square of each lane's scaled values, shared by the lanes of a group.

    Args:
        sums: (n,) sums of squares over a lane's `width` numbers, NaN for a lane that is not finite.
        width: D.
        groups: (n,) -1 for a lane on its own; neighbours with the same other number share one norm: the mean over
            all of them that are finite, summed in lane order.

    Returns:
        (n,) norms; a lane that is not finite keeps NaN.
    """
    norms = np.sqrt(sums / max(width, 1))
    first = 0
    while first < len(sums):
        end, total, count = first, 0.0, 0
        while end < len(sums) and groups[end] == groups[first] and (groups[first] >= 0 or end == first):
            if np.isfinite(sums[end]):
                total, count = total + sums[end], count + 1
            end += 1
        if groups[first] >= 0:
            shared = np.sqrt(total / (count * max(width, 1)))
            for j in range(first, end):
                norms[j] = shared if np.isfinite(sums[j]) else np.nan
        first = end
    return norms
