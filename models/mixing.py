"""Networks whose rows depend on each other: how they are told from rounding, and how they can be asked all the same.

A velocity gives row i from row i alone. One that looks at its whole batch (a mean over rows, batch normalization in
training mode) gives a sample other values in other company, so that no sample could be had twice.

Kernels make last bits depend on the company as well, so a difference means nothing until it is held against rounding.
That is measured: how far the answer moves when the numbers that are asked about move by one unit in the last place.
Kernels round otherwise inside of the network, not before it, which moves answers by a few times as much at most (see
docs/models.md); what is called mixing is `_BEYOND` times as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from models.noise import noise
from models.row_padding import aligned

if TYPE_CHECKING:
    from models.conditions import LabelCondition, VectorCondition
    from models.velocity import VelocityField

_ROWS = 32
_SUBJECTS = 6
_COPIES = 4  # a row alone comes with copies of itself, as in a padded call
_NUDGES = 3
_BEYOND = 256.0
_AT_LEAST = 2  # rows must differ: a single one may stand where rounding decides between two branches


@dataclass(frozen=True)
class Mixing:
    """What was found of a network that mixes rows.

    Attributes:
        difference: by how much a row's velocity changes with the rows beside it, at most.
        rounding: by how much rounding changes it.
        size: the largest velocity of a row alone.
    """

    difference: float
    rounding: float
    size: float

    def __str__(self) -> str:
        return (
            f"the network mixes rows: a sample's velocity (up to {self.size:.2g}) changes by {self.difference:.2g} "
            f"with the samples beside it, and rounding explains {self.rounding:.1g}; something in it looks at the "
            "whole batch, such as a mean over the first dimension or batch normalization in training mode: call eval() "
            "or remove it, or import it with --row-by-row, which gives each row its own network call"
        )


@torch.no_grad()
def find_mixing(
    velocity: VelocityField,
    event_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    condition: LabelCondition | VectorCondition | None = None,
) -> Mixing | None:
    """Ask for a few rows alone and in different company; None if they differ by no more than rounding can explain.

    The company has other states, times and conditions, comes in other orders and in other numbers.

    Args:
        velocity: states (rows, *event), times (rows,) and, if the network takes them, conditions -> velocities.
        event_shape: shape of one state.
        dtype: type of the states.
        device: where the network is.
        condition: what it is conditioned on, or None.
    """
    rows = _ROWS + _SUBJECTS
    x = noise(2, 0, rows, event_shape, dtype).to(device)
    x[rows // 2 :] *= 3.0
    t = torch.linspace(0.05, 0.95, rows, dtype=dtype, device=device)
    given = () if condition is None else (condition.examples(rows, dtype, device),)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(device)
    asked = tuple(each[order] for each in (x, t, *given))  # the first rows are the subjects

    alone = torch.cat([_alone(velocity, asked, subject) for subject in range(_SUBJECTS)])
    rounding = torch.zeros(_SUBJECTS, dtype=dtype, device=device)
    for nudge in range(_NUDGES):
        nudged = (_nudged(asked[0], nudge), _nudged(asked[1], nudge), *asked[2:])
        moved = torch.cat([_alone(velocity, nudged, subject) for subject in range(_SUBJECTS)])
        rounding = rounding.maximum(_largest(moved - alone).nan_to_num(0.0))
    size = _largest(alone).nan_to_num(0.0)
    rounding = rounding + torch.finfo(dtype).eps * size.max()

    difference = torch.zeros_like(rounding)
    for count, seed in ((rows, 1), (rows, 2), (_SUBJECTS + 1, 3), (_SUBJECTS + 10, 4)):
        place = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(device)
        company = velocity(*(each[:count][place] for each in asked))
        found = company[place.argsort()[:_SUBJECTS]]
        difference = difference.maximum(_largest(found - alone).nan_to_num(torch.inf))
    beyond = (difference > _BEYOND * rounding).sum()
    if beyond < _AT_LEAST:
        return None
    return Mixing(float(difference.max()), float(rounding.max()), float(size.max()))


def _alone(velocity: VelocityField, asked: tuple[Tensor, ...], subject: int) -> Tensor:
    return velocity(*(each[subject : subject + 1].repeat(_COPIES, *[1] * (each.ndim - 1)) for each in asked))[:1]


def _nudged(values: Tensor, seed: int) -> Tensor:
    """Numbers moved up or down by about one unit in the last place, at random."""
    signs = torch.randint(0, 2, values.shape, generator=torch.Generator().manual_seed(seed)).to(values) * 2 - 1
    return values * (1.0 + signs * torch.finfo(values.dtype).eps)


def _largest(values: Tensor) -> Tensor:
    """The largest magnitude of each row, NaN if it holds one."""
    return values.flatten(1).abs().amax(1)


class RowByRow(nn.Module):
    """A network that is asked for one row at a time, so that no row can see another.

    Attributes:
        network: what is asked.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows,), at least one row; each is a call of its own.

        Rows are copied to where fresh tensors begin, as the last bits of some kernels depend on the address.
        """
        rows = []
        for row in range(len(x)):
            one = slice(row, row + 1)
            given = None if condition is None else aligned(condition[one])
            rows.append(self.network(aligned(x[one]), aligned(t[one]), given))
        return torch.cat(rows)
