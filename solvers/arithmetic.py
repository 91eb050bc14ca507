"""Sums over slots and coordinates whose bits depend on nothing but the lane itself.

Library reductions and matrix products choose their order of summation by the shape of the whole tensor, so a lane's
last bit would change with its neighbours. Here every operation is elementwise and rounded correctly, in an order fixed
by the lane's own length: the result cannot depend on how many lanes there are, where a lane stands, or on the threads.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Array = TypeVar("_Array", Tensor, NDArray[Any])
_HOST = {torch.float32: np.float32, torch.float64: np.float64}


def tensor_like(values: NDArray[np.float64], like: Tensor) -> Tensor:
    """Numbers of the host as a tensor of another one's dtype and device."""
    tensor = torch.from_numpy(values.astype(_HOST.get(like.dtype, np.float64), copy=False))
    return tensor if like.device.type == "cpu" and like.dtype in _HOST else tensor.to(like.device, like.dtype)


def combine(weights: NDArray[np.float64], k: Tensor) -> Tensor:
    """Weighted sums of stored velocities.

    Args:
        weights: (..., s, n) float64: weights of the first s slots for each of n lanes.
        k: (D, S, n) with S >= s.

    Returns:
        (..., D, n) sum over s of weights * k, in k's dtype, summed in the order of the slots.
    """
    used = weights.shape[-2]
    if k.device.type != "cpu" or k.dtype not in _HOST:
        return _in_order(tensor_like(weights, k).unsqueeze(-3) * k[:, :used])
    # On the host NumPy does the same operations at half the cost of a call.
    with np.errstate(invalid="ignore", over="ignore"):
        return torch.from_numpy(_in_order(weights.astype(_HOST[k.dtype])[..., None, :, :] * k.numpy()[:, :used]))


def _in_order(products: _Array) -> _Array:
    """Sum over the last axis but one. Never by a reduction of the library: its order would depend on n."""
    total = products[..., 0, :]
    for slot in range(1, products.shape[-2]):
        total = total + products[..., slot, :]
    return total


def lane_sums(values: Tensor) -> NDArray[np.float64]:
    """Sum over the coordinates of each lane, by halving.

    Args:
        values: (D, n) float64; overwritten.

    Returns:
        (n,) on the host.
    """
    width = values.shape[0]
    while width > 1:
        half = (width + 1) // 2
        values[: width - half] += values[half:width]
        width = half
    return values[0].cpu().numpy() if width else np.zeros(values.shape[1])


def all_finite(values: Tensor) -> bool:
    """Whether all of a tensor is finite: zero times anything else is NaN, and NaN stays in any sum."""
    return float((values * 0).sum()) == 0.0


def finite_lanes(values: Tensor) -> NDArray[np.bool_]:
    """(n,) whether all coordinates of a lane of (D, n) are finite."""
    return torch.isfinite(values).all(dim=0).cpu().numpy()


def pick(values: Tensor, index: NDArray[np.int64]) -> Tensor:
    """Lanes of a tensor (..., n) by sorted index; the tensor itself where that is all of them."""
    if len(index) == values.shape[-1]:
        return values
    return values.index_select(-1, torch.from_numpy(index).to(values.device))


def put(values: Tensor, index: NDArray[np.int64], lanes: Tensor) -> Tensor:
    """The tensor (..., n) with those lanes replaced; `lanes` itself where that is all of them."""
    if len(index) == values.shape[-1]:
        return lanes
    return values.index_copy_(-1, torch.from_numpy(index).to(values.device), lanes)


def group_norms(sums: NDArray[np.float64], width: int, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Root mean square of each lane's scaled values, shared by the lanes of a group.

    Args:
        sums: (n,) sums of squares over a lane's `width` numbers, NaN for a lane that is not finite.
        width: D.
        groups: (n,) -1 for a lane on its own; lanes with the same other number share one norm: the mean over all of
            them that are finite, summed in lane order.

    Returns:
        (n,) norms; a lane that is not finite keeps NaN.
    """
    if not (groups >= 0).any():
        return np.sqrt(sums / width)
    _, member = np.unique(groups, return_inverse=True)
    finite = np.isfinite(sums)
    # bincount adds in the order of its input, which is the order of the samples.
    totals = np.bincount(member, weights=np.where(finite, sums, 0.0))
    counts = np.bincount(member, weights=finite)
    with np.errstate(invalid="ignore"):
        shared = (totals / (counts * width))[member]
    return np.sqrt(np.where(groups >= 0, np.where(finite, shared, np.nan), sums / width))


def all_of_group(flags: NDArray[np.bool_], groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) each lane's flag; in a group, whether all of its lanes have it."""
    if not (groups >= 0).any():
        return flags
    _, member = np.unique(groups, return_inverse=True)
    return np.where(groups >= 0, (np.bincount(member, weights=~flags) == 0)[member], flags)
