"""Held-out loss by time: shows where along the path the network is weak, and whether it overfits."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training import draws
from training.draws import Purpose

BINS = 10
"""Number of equal parts of [0, 1]."""

_ROWS = 2000


@dataclass(frozen=True)
class Validation:
    """Held-out samples with noise and times that stay the same during a run, so that its losses can be compared.

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
        source = draws.generator(seed, Purpose.VALIDATION)
        x0 = source.standard_normal((_ROWS, *samples.shape[1:]), dtype=np.float32)
        t = (source.permutation(_ROWS) + 0.5).astype(np.float32) / np.float32(_ROWS)
        given = None if conditions is None else torch.from_numpy(conditions[rows]).to(device)
        x1 = torch.from_numpy(samples[rows])
        return cls(torch.from_numpy(x0).to(device), x1.to(device), torch.from_numpy(t).to(device), given)

    @torch.no_grad()
    def losses(self, network: nn.Module, weights: dict[str, Tensor]) -> list[float]:
        """Return the mean loss in each of the `BINS` parts of time, with these weights in the network."""
        total = torch.zeros(BINS, dtype=torch.float64, device=self.t.device)
        count = torch.zeros_like(total)
        for rows in torch.arange(len(self.t), device=self.t.device).split(250):
            x0, x1, t = self.x0[rows], self.x1[rows], self.t[rows]
            at = t.reshape(-1, *([1] * (x0.ndim - 1)))
            given = () if self.conditions is None else (self.conditions[rows],)
            v: Tensor = torch.func.functional_call(network, weights, ((1 - at) * x0 + at * x1, t, *given))
            error = (v - (x1 - x0)).square().flatten(1).mean(1).double()
            bins = (t * BINS).long().clamp(max=BINS - 1)
            total.index_add_(0, bins, error)
            count.index_add_(0, bins, torch.ones_like(error))
        return (total / count).tolist()
