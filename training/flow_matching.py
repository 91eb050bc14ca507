"""Conditional flow matching: the path from noise to data, the coupling of the two, the loss, and the loss by time.

The path is the straight line x_t = (1 - t) x0 + t x1, followed at the constant velocity x1 - x0: Lipman et al., "Flow
Matching for Generative Modeling", ICLR 2023, with sigma_min = 0; Liu et al., "Flow Straight and Fast", ICLR 2023.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training import draws
from training.draws import DrawPurpose

BINS = 10
"""Number of equal parts of [0, 1] for the loss by time."""

_ROWS = 2000


def position(x0: Tensor, x1: Tensor, t: Tensor) -> Tensor:
    """Return (1 - t) x0 + t x1. Shapes: x0, x1 (rows, *event); t (rows,) in [0, 1]."""
    t = t.reshape(-1, *([1] * (x0.ndim - 1)))
    return (1 - t) * x0 + t * x1


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
    partner, groups = np.arange(len(a)), [np.arange(len(a))]
    if conditions is not None:  # the rows of each one
        group = np.unique(conditions, axis=0, return_inverse=True)[1].reshape(-1)
        groups = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    for rows in groups:
        # |a - b|^2 = |a|^2 + |b|^2 - 2 a.b, and the first two terms have the same sum for every pairing.
        partner[rows] = rows[linear_sum_assignment(-(a[rows] @ b[rows].T))[1]]
    return partner


def flow_matching_loss(network: nn.Module, x0: Tensor, x1: Tensor, t: Tensor, *condition: Tensor) -> Tensor:
    """Return the mean squared error of the network's velocity on the straight path.

    L = E || v(x_t, t) - (x1 - x0) ||^2 / dim (Lipman et al. 2023, eq. 9; averaged over the coordinates, so that losses
    of data sets of different dimension can be compared). Its minimum is not zero but the variance of x1 - x0 given x_t.

    Args:
        network: the velocity v(x, t), called once with x (rows, *event) and t (rows,).
        x0: noise, (rows, *event).
        x1: data, (rows, *event).
        t: times in [0, 1], (rows,).
        condition: one per row, for a conditional network.

    Returns:
        A scalar with a gradient.
    """
    predicted: Tensor = network(position(x0, x1, t), t, *condition)
    return (predicted - (x1 - x0)).square().mean()


@dataclass(frozen=True)
class Validation:
    """Held-out samples with noise and times that stay the same during a run, so that its losses can be compared.

    Losses by time show where along the path the network is weak, and whether it overfits.

    Attributes:
        x0, x1: noise and samples, (rows, *event).
        t: times, evenly spread over [0, 1] in random order, (rows,).
        conditions: one per row, or None.
    """

    x0: Tensor
    x1: Tensor
    t: Tensor
    conditions: Tensor | None

    @classmethod
    def of(
        cls, seed: int, samples: NDArray[np.float32], conditions: NDArray[Any] | None, device: torch.device
    ) -> "Validation":
        """Repeat or cut held-out samples (n, *event) and their conditions to 2,000 rows."""
        rows = np.resize(np.arange(len(samples)), _ROWS)
        source = draws.generator(seed, DrawPurpose.VALIDATION)
        x0 = source.standard_normal((_ROWS, *samples.shape[1:]), dtype=np.float32)
        t = (source.permutation(_ROWS) + 0.5).astype(np.float32) / np.float32(_ROWS)
        own = None if conditions is None else torch.from_numpy(conditions[rows]).to(device)
        x1 = torch.from_numpy(samples[rows])
        return cls(torch.from_numpy(x0).to(device), x1.to(device), torch.from_numpy(t).to(device), own)

    @torch.no_grad()
    def losses(self, network: nn.Module, weights: dict[str, Tensor]) -> list[float]:
        """Return the mean loss in each of the `BINS` parts of time, with these weights in the network."""
        total = torch.zeros(BINS, dtype=torch.float64, device=self.t.device)
        count = torch.zeros_like(total)
        for rows in torch.arange(len(self.t), device=self.t.device).split(250):
            x0, x1, t = self.x0[rows], self.x1[rows], self.t[rows]
            condition = () if self.conditions is None else (self.conditions[rows],)
            v: Tensor = torch.func.functional_call(network, weights, (position(x0, x1, t), t, *condition))
            error = (v - (x1 - x0)).square().flatten(1).mean(1).double()
            bins = (t * BINS).long().clamp(max=BINS - 1)
            total.index_add_(0, bins, error)
            count.index_add_(0, bins, torch.ones_like(error))
        return (total / count).tolist()
