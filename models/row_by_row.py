"""Networks that are called with one row at a time, so that no row can see another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.velocity import each

_ALIGNMENT = 64  # bytes; the alignment of fresh tensors in torch


def aligned(tensor: Tensor) -> Tensor:
    """Return a tensor aligned like a fresh one: the last bits of some kernels depend on the alignment."""
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class RowByRow(nn.Module):
    """A network that is called with one row at a time.

    Attributes:
        network: the network it calls.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        """Evaluate at least one state x (rows, *event) at times t (rows,), one call for each row."""
        rows = []
        for row in range(len(x)):
            one = slice(row, row + 1)
            given = None if condition is None else each(condition, lambda tensor, one=one: aligned(tensor[one]))
            rows.append(self.network(aligned(x[one]), aligned(t[one]), given))
        return torch.cat(rows)
