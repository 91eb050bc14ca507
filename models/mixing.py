"""Row mixing: detection of networks in which rows depend on each other, as distinct from rounding.

A velocity computes row i from row i alone. A network that looks at its whole batch (a mean over rows, batch
normalization in training mode) gives a sample different values in different batches, so no sample could be reproduced.

Kernels make the last bits depend on the batch as well, so a difference means nothing until it is compared with
rounding. Rounding is measured by how far the result moves when the inputs move by one unit in the last place. Kernels
round differently inside the network, not before it, which moves results by a few times as much at most (see
docs/import.md); more than `_BEYOND` times as much is called mixing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.conditions import NamedConditions
from models.velocity import VelocityField, kind_of

_BEYOND = 256.0
_AT_LEAST = 2  # rows must differ: a single one may be where rounding decides between two branches
_SUBJECTS = 3  # rows that are evaluated alone and in company
_COPIES = 2  # a row alone is called beside a copy of itself, as in a padded call
_NUDGES = 2  # how often rounding is measured
_ROWS = 8
_COMPANIES = ((4, 2, 1, 0), (5, 0, 3, 1, 2), (6, 4, 0, 7, 3, 1, 2, 5))
"""The rows of each company, by number; the subjects are the first numbers. None of them has the first place, or a place
twice, so that what is read from a fixed place or from a neighbour is another row's."""


@torch.no_grad()
def find_mixing(
    velocity: VelocityField,
    event_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    condition: NamedConditions | None = None,
    compute: torch.dtype | None = None,
) -> str | None:
    """Evaluate a few rows alone and in batches; say how they differ, or return None if rounding explains it.

    The other rows vary in states, times, conditions, order and number. This is a look at a few rows, to tell people
    what is wrong with their network; what it misses differs in bits, and is called with one row at a time (see
    `models.forms.rows`).

    Args:
        velocity: states (rows, *event), times (rows,) and, if the network takes them, conditions -> velocities.
        event_shape: shape of one state.
        dtype: dtype of the states.
        device: the device of the network.
        condition: what it is conditioned on, or None.
        compute: dtype of the network's own arithmetic; None for that of the states.
    """
    x = torch.randn((_ROWS, *event_shape), generator=torch.Generator().manual_seed(2), dtype=dtype).to(device)
    x[_ROWS // 2 :] *= 3.0
    order = torch.randperm(_ROWS, generator=torch.Generator().manual_seed(0)).to(device)
    t = kind_of(velocity).times(torch.linspace(0.05, 0.95, _ROWS, dtype=dtype, device=device)[order])
    conditions = () if condition is None else condition.unpack(condition.examples(_ROWS, dtype, device))

    def ask(arguments: Sequence[Tensor]) -> Tensor:
        return velocity(*arguments[:2], *(() if condition is None else (condition.pack(arguments[2:]),)))

    eps = torch.finfo(compute or dtype).eps
    return _compared(ask, (x, t, *conditions), (eps, torch.finfo(dtype).eps), eps, dtype)


@torch.no_grad()
def find_mixing_of(
    program: str, function: Callable[..., Sequence[Tensor]], examples: Callable[[int], Sequence[Tensor]]
) -> str | None:
    """Do the same as `find_mixing` for a prelude or a decoder.

    Args:
        program: its name, `prelude` or `decoder`.
        function: tensors (rows, ...) -> tensors (rows, ...).
        examples: number of rows -> arguments, no two rows alike where they can differ.
    """
    rows = examples(_ROWS)

    def ask(arguments: Sequence[Tensor]) -> Tensor:
        return torch.cat([result.flatten(1).double() for result in function(*arguments)], dim=1)

    kinds = [result.dtype for result in function(*(a[:1] for a in rows)) if result.is_floating_point()]
    eps = max((torch.finfo(kind).eps for kind in kinds), default=torch.finfo(torch.float32).eps)
    nudges = [torch.finfo(result.dtype).eps if result.is_floating_point() else 0.0 for result in rows]
    return _compared(ask, rows, nudges, eps, torch.float64, program)


def _compared(
    ask: Callable[[Sequence[Tensor]], Tensor],
    rows: Sequence[Tensor],
    nudges: Sequence[float],
    eps: float,
    dtype: torch.dtype,
    program: str = "",
) -> str | None:
    """Evaluate a few rows alone and in batches; say how they differ, or return None if rounding explains it.

    Args:
        ask: arguments (rows, ...) -> results (rows, ...).
        rows: the arguments of all rows.
        nudges: the relative size of one unit in the last place for each of the first arguments; 0 leaves one unchanged.
        eps: the same for the results.
        dtype: dtype of the results.
        program: the program, `prelude` or `decoder`; empty for the network.
    """
    device = rows[0].device

    def alone_of(arguments: Sequence[Tensor], subject: int) -> Tensor:
        return ask([a[subject : subject + 1].repeat(_COPIES, *[1] * (a.ndim - 1)) for a in arguments])[:1]

    alone = torch.cat([alone_of(rows, subject) for subject in range(_SUBJECTS)])
    rounding = torch.zeros(_SUBJECTS, dtype=dtype, device=device)
    for nudge in range(_NUDGES):
        moving = [_nudged(tensor, nudge, unit) if unit else tensor for tensor, unit in zip(rows, nudges, strict=False)]
        nudged = (*moving, *rows[len(nudges) :])
        moved = torch.cat([alone_of(nudged, subject) for subject in range(_SUBJECTS)])
        rounding = rounding.maximum(_largest(moved - alone).nan_to_num(0.0))
    size = _largest(alone).nan_to_num(0.0)
    rounding = rounding + eps * size.max()

    difference = torch.zeros_like(rounding)
    for company in _COMPANIES:
        place = [company.index(subject) for subject in range(_SUBJECTS)]
        together = ask([a[list(company)] for a in rows])[place]
        difference = difference.maximum(_largest(together - alone).nan_to_num(torch.inf))
    beyond = (difference > _BEYOND * rounding).sum()
    if beyond < _AT_LEAST:
        return None
    row, beside = ("the result of a row", "rows") if program else ("a sample's velocity", "samples")
    unmixed = " or remove it, or import it with --row-by-row, which gives each row its own network call"
    return (
        f"the {program or 'network'} mixes rows: {row} (up to {float(size.max()):.2g}) changes by "
        f"{float(difference.max()):.2g} with the {beside} beside it, but rounding explains only "
        f"{float(rounding.max()):.1g}; something in it looks at the whole batch, such as a mean over the first "
        "dimension or batch normalization in training mode: call eval()"
        f"{' before the export, or remove it' if program else unmixed}"
    )


def _nudged(values: Tensor, seed: int, eps: float) -> Tensor:
    """Move numbers up or down at random by about one unit in the last place of an arithmetic."""
    signs = torch.randint(0, 2, values.shape, generator=torch.Generator().manual_seed(seed)).to(values) * 2 - 1
    return values * (1.0 + signs * eps)


def _largest(values: Tensor) -> Tensor:
    """Return the largest magnitude in each row, NaN if the row contains one."""
    return values.flatten(1).abs().amax(1)
