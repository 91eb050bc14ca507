"""Conditional flow matching: the path from noise to data, the coupling of the two, and the loss."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn


class Path(Protocol):
    """A conditional path between a noise sample `x0` (t = 0) and a data sample `x1` (t = 1)."""

    def position(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Return x_t, shape (rows, *event), for times `t` of shape (rows,)."""
        ...

    def velocity(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Return dx_t/dt, shape (rows, *event): the target of the regression."""
        ...


def _per_row(t: Tensor, like: Tensor) -> Tensor:
    """Return `t` (rows,) with trailing axes of size 1, so that it broadcasts against `like`."""
    return t.reshape(-1, *([1] * (like.ndim - 1)))


@dataclass(frozen=True)
class OptimalTransportPath:
    """The straight line x_t = (1 - t) x0 + t x1, followed at the constant velocity x1 - x0.

    Reference: Lipman et al., "Flow Matching for Generative Modeling", ICLR 2023, with sigma_min = 0; Liu et al., "Flow
    Straight and Fast", ICLR 2023.
    """

    def position(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Return (1 - t) x0 + t x1. Shapes: x0, x1 (rows, *event); t (rows,) in [0, 1]."""
        t = _per_row(t, x0)
        return (1 - t) * x0 + t * x1

    def velocity(self, x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
        """Return x1 - x0, the same at every t."""
        return x1 - x0


def optimal_coupling(
    x0: NDArray[np.float32], x1: NDArray[np.float32], conditions: NDArray[Any] | None = None
) -> NDArray[np.int64]:
    """Pair noise and samples so that the sum of squared distances is least, among samples of the same condition.

    This is exact optimal transport in the batch (Pooladian et al., "Multisample flow matching", ICML 2023; Tong et al.,
    "Improving and generalizing flow-based generative models with minibatch optimal transport", TMLR 2024). A batch of
    independent pairs that is paired anew keeps the distribution of x0 and that of x1 (Pooladian et al., section 3): the
    new pairing only permutes rows. Within the samples of one condition c, the same theorem keeps p(x0 | c) standard
    normal, which is where samples with c start. If the whole batch were paired, each class would be given the noise
    nearest to it: p(x0 | c) would not be normal, and the model wrong however long it is trained (Cheng & Schwing, "The
    curse of conditions", ICCV 2025).

    Args:
        x0: noise, (rows, *event), independent of x1 and the conditions.
        x1: samples, (rows, *event).
        conditions: their conditions, (rows,) or (rows, width); only rows of equal conditions exchange noise. A row
            with a condition of its own keeps its noise.

    Returns:
        For each row of x1, the row of x0 that it is paired with, (rows,).
    """
    from scipy.optimize import linear_sum_assignment

    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (x1, x0))
    chosen = np.arange(len(a))
    for rows in _equal(conditions, len(a)):
        # |a - b|^2 = |a|^2 + |b|^2 - 2 a.b, and the first two terms have the same sum for every pairing.
        chosen[rows] = rows[linear_sum_assignment(-(a[rows] @ b[rows].T))[1]]
    return chosen


def _equal(conditions: NDArray[Any] | None, count: int) -> list[NDArray[np.int64]]:
    """Return the rows of each distinct condition; all rows, if there are no conditions."""
    if conditions is None:
        return [np.arange(count)]
    group = np.unique(conditions, axis=0, return_inverse=True)[1].reshape(-1)
    return np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])


def flow_matching_loss(
    network: nn.Module, path: Path, x0: Tensor, x1: Tensor, t: Tensor, condition: Tensor | None = None
) -> Tensor:
    """Return the mean squared error of the network's velocity on a conditional path.

    L = E || v(x_t, t) - dx_t/dt ||^2 / dim (Lipman et al. 2023, eq. 9; averaged over the coordinates, so that losses of
    data sets of different dimension can be compared). Its minimum is not zero but the variance of x1 - x0 given x_t.

    Args:
        network: the velocity v(x, t), called once with x (rows, *event) and t (rows,).
        path: the conditional path.
        x0: noise, (rows, *event).
        x1: data, (rows, *event).
        t: times in [0, 1], (rows,).
        condition: one per row, or None for an unconditional network.

    Returns:
        A scalar with a gradient.
    """
    given = () if condition is None else (condition,)
    predicted: Tensor = network(path.position(x0, x1, t), t, *given)
    return (predicted - path.velocity(x0, x1, t)).square().mean()
