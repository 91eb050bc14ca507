"""Calls of a row-wise function in which a row has the same bits in any company (see `models.forms.counts`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.forms.counts import ONE_AT_A_TIME, RowCounts, RowFunction, Trial, find_counts, most_rows, repeated
from models.named_conditions import NamedConditions
from models.noise import noise
from models.row_by_row import RowByRow, aligned
from models.velocity import VelocityError, VelocityField, forms, kind_of, rows_of

MOST_ROWS = 1024
"""The most rows of one call, however cheap they are."""


class Store(Protocol):
    """Rows addressed by their place."""

    def take(self, places: NDArray[np.int64]) -> Tensor:
        """Return a copy of the rows at these places, valid until the next call."""
        ...


@dataclass(frozen=True)
class Chosen:
    """Rows of a store, copied only when they are needed.

    Attributes:
        store: the store.
        places: (rows,) the place of each row.
    """

    store: Store
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, part: slice) -> Chosen:
        return Chosen(self.store, self.places[part])

    def split(self, rows: int) -> list[Chosen]:
        """Split into pieces of this many rows."""
        return [self[begin : begin + rows] for begin in range(0, len(self), rows)]

    def rows(self, more: int = 0) -> Tensor:
        """Return the rows, with `more` copies of the first at the end."""
        return self.store.take(np.append(self.places, self.places[:1].repeat(more)) if more else self.places)


class RowCaller:
    """Calls a row-wise function with the numbers of rows that it may have.

    Attributes:
        function: the function.
        counts: those numbers.
    """

    def __init__(self, function: RowFunction, counts: RowCounts) -> None:
        self.function, self.counts = function, counts

    def __call__(self, *arguments: Tensor | Chosen) -> Tensor:
        """Call the function for at least one row; the result has as many rows as the arguments.

        Each argument has one row for each row of the result; those of a store are copied only for their own call.
        """
        rows, limit = len(arguments[0]), self.counts.limit
        if rows > limit:
            return torch.cat([self(*piece) for piece in zip(*(a.split(limit) for a in arguments), strict=True)])
        missing = self.counts.padded(rows) - rows
        if not missing:
            return self.function(*(aligned(a) if isinstance(a, Tensor) else a.rows() for a in arguments))
        return self.function(*(_padded(a, missing) for a in arguments))[:rows]


def _padded(argument: Tensor | Chosen, missing: int) -> Tensor:
    """Add copies of the first row."""
    if isinstance(argument, Tensor):
        return torch.cat((argument, argument[:1].expand(missing, *argument.shape[1:])))
    return argument.rows(missing)


def independent_rows(
    functions: Sequence[RowFunction],
    trial: Trial,
    wanted: int = MOST_ROWS,
    least: int = 1,
    counted: RowFunction | None = None,
) -> RowCaller:
    """Return calls of a function in which rows have the same bits in any company.

    If no number of rows agrees, a CPU calls it with one row at a time. On other devices that would take hundreds of
    times as long, so calls are as they come, and not deterministic.

    Args:
        functions: ways to compute it, which round differently; the first in which rows agree is taken.
        trial: see `models.forms.counts`.
        wanted: the most rows of one call, unless that is too much work.
        least: the fewest rows of one call.
        counted: a function of the same work whose operations torch can count; None for the first.
    """
    limit = most_rows(counted or functions[0], trial, wanted, least)
    for function in functions:
        if counts := find_counts(function, trial, limit, least):
            return RowCaller(function, repeated(function, trial, counts))
    alone = limit == 1 or trial(1)[0].device.type == "cpu"
    counts = ONE_AT_A_TIME if alone else RowCounts(limit, deterministic=False)
    return RowCaller(functions[0], repeated(functions[0], trial, counts))


def field_rows(
    velocity: VelocityField,
    event_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    max_rows: int = MOST_ROWS,
    condition: NamedConditions | None = None,
    *,
    derive: Callable[..., Tensor] | None = None,
    examples: Callable[[Tensor], Tensor] | None = None,
    independent: bool = False,
    counted: VelocityField | None = None,
) -> RowCaller:
    """Return calls of a velocity field in which rows have the same bits in any company.

    They take states (rows, *event), times as the field takes them (see `FieldKind`), and the conditions in the order of
    `condition.inputs`. What was tested is valid for the number of torch threads now: call this in the thread that will
    evaluate the field, with as many.

    Args:
        velocity: the field. Of its forms, the first with independent rows is called.
        event_shape: shape of one state; of a row of the derived field, if there is one.
        dtype: float32 or float64.
        device: the device of the field.
        max_rows: the most rows of one call.
        condition: what the field is conditioned on, with sizes for its free axes; None for an unconditional one.
        derive: (velocity, x, t[, condition]) -> velocities, a field made of the velocity (see `solvers.derived`),
            which is called in its place.
        examples: noise (rows, *event) -> the states to test with; None for the noise itself.
        independent: whether the field computes each row by itself, so that nothing need be tested or padded.
        counted: a field of the same work whose operations torch can count; None for this one.

    Raises:
        VelocityError: the field returns another shape or type than that of its states.
    """

    def trial(rows: int) -> tuple[Tensor, ...]:
        x = noise(0, 0, rows, event_shape, dtype)
        x = (x if examples is None else examples(x)).to(device)
        t = kind_of(velocity).times(torch.linspace(0.0, 1.0, rows, dtype=dtype, device=device))
        return (x, t, *(() if condition is None else condition.unpack(condition.examples(rows, dtype, device))))

    def function_of(field: VelocityField) -> RowFunction:
        # A bound method would make a cycle, and the memory would wait for the garbage collector.
        return partial(_checked, field if derive is None else partial(derive, field), condition)

    one_by_one = isinstance(velocity, RowByRow)
    functions = [function_of(form) for form in forms(velocity.network if isinstance(velocity, RowByRow) else velocity)]
    least, most = rows_of(velocity)
    limit = max_rows if most is None else min(max_rows, most)
    if one_by_one or independent:
        counts = ONE_AT_A_TIME if one_by_one else RowCounts(limit)
        return RowCaller(functions[0], repeated(functions[0], trial, counts))
    return independent_rows(functions, trial, limit, least, None if counted is None else function_of(counted))


def _checked(
    velocity: Callable[..., Tensor], takes: NamedConditions | None, x: Tensor, t: Tensor, *conditions: Tensor
) -> Tensor:
    v = velocity(x, t) if takes is None else velocity(x, t, takes.pack(conditions))
    if v.shape != x.shape or v.dtype != x.dtype:
        raise VelocityError(
            f"the velocity field returned {v.dtype} of shape {tuple(v.shape)}; "
            f"it must return {x.dtype} of shape {tuple(x.shape)}, like the states it was given"
        )
    if any(_shares(v, tensor) for tensor in conditions):  # and a store reuses the memory of its copies
        return v.clone()
    return v


def _shares(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same memory."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
