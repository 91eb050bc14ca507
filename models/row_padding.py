"""Row padding: calls in which the bits of a row do not depend on the other rows.

Each call is padded to a number of rows at which the bits were measured to agree (see `models.calibration`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.calibration import (
    BUCKETS,
    EACH_UP_TO,
    UNPADDED,
    Agreement,
    Allowance,
    Calibration,
    RowFunction,
    find_max_rows,
    measure,
    measure_apart,
)
from models.named_conditions import NamedConditions
from models.noise import noise
from models.velocity import Condition, VelocityError, VelocityField, each, forms, refuse_condition, rows_of

_ALIGNMENT = 64  # bytes; the alignment of fresh tensors in torch


def aligned(tensor: Tensor) -> Tensor:
    """Return a tensor aligned like a fresh one: the last bits of some kernels depend on the alignment."""
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


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
    """Calls a row-wise function with padding.

    Attributes:
        function: the function it calls.
        agreement: the numbers of rows that agree, as measured so far.
    """

    def __init__(
        self,
        function: RowFunction,
        trial: Sequence[Tensor],
        limit: int,
        apart: bool = False,
        candidates: Sequence[int] = BUCKETS,
        least: int = 1,
        allowance: Allowance | None = None,
        known: Agreement | None = None,
    ) -> None:
        """Measure the function.

        Args:
            function, trial, limit, candidates, least, allowance: see `models.calibration.measure`.
            apart: whether the function computes each row by itself, so that padding would only cost time.
            known: an earlier measurement, which is used instead of measuring.
        """
        self.function = function
        self._calibration: Calibration | None = None
        if known is not None:
            self.agreement = known
        elif apart:
            self.agreement = measure_apart(function, trial, limit)
        else:
            found = measure(function, trial, limit, candidates, least, allowance)
            self.agreement = found.found
            self._calibration = None if found.found.complete else found

    @property
    def deterministic(self) -> bool:
        """Whether the padding makes rows independent, as measured."""
        return bool(self.agreement.counts)

    @property
    def buckets(self) -> tuple[int, ...]:
        """The row buckets that agree, ascending; empty until all have been tried."""
        return self.agreement.buckets

    @property
    def limit(self) -> int:
        """The most rows of one call."""
        return self.agreement.limit

    @property
    def progress(self) -> tuple[int, int]:
        """How many numbers of rows have been tried, and how many there are; (0, 0) once all have been."""
        left = self._calibration
        return (0, 0) if left is None else (left.tried, left.total)

    def refine(self) -> bool:
        """Try one more number of rows; return False once all have been tried. Other threads may call meanwhile."""
        left = self._calibration
        if left is None:
            return False
        if not left.step():
            self._calibration = None
        self.agreement = left.found
        return self._calibration is not None

    def __call__(self, *arguments: Tensor | Chosen) -> Tensor:
        """Call the function for at least one row; the result has as many rows as the arguments."""
        rows, agreement = len(arguments[0]), self.agreement
        if rows > agreement.limit:
            pieces = zip(*(argument.split(agreement.limit) for argument in arguments), strict=True)
            return torch.cat([self(*piece) for piece in pieces])
        missing = agreement.padded_count(rows) - rows
        if not missing:
            return self.function(*(aligned(a) if isinstance(a, Tensor) else a.rows() for a in arguments))
        return self.function(*(_padded(a, missing) for a in arguments))[:rows]


def _padded(argument: Tensor | Chosen, missing: int) -> Tensor:
    if isinstance(argument, Tensor):
        return torch.cat((argument, argument[:1].expand(missing, *argument.shape[1:])))
    return argument.rows(missing)


class RowByRow(nn.Module):
    """A network that is called with one row at a time, so that no row can see another.

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


class RowStable:
    """A velocity field in which the bits of a row do not depend on the other rows of the call.

    Calls are padded with copies of a live row, as measured at construction (well below a second for the paper's
    networks). The measurement is valid for the number of torch threads at that time: construct this with as many as
    will be used, in the thread that will call it.

    Attributes:
        velocity: the first form of the field with independent rows, or else its first form.
        form: its number among the forms.
        known: whether it was measured before.
        event_shape: shape of one state.
        dtype: type of states and velocities.
        condition: its conditioning, or None.
        time_shape: shape of the times of one row: (), or (2,) for a field of average velocity.
    """

    def __init__(
        self,
        velocity: VelocityField,
        event_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        max_rows: int = 1024,
        condition: NamedConditions | None = None,
        unpadded: bool = False,
        derive: Callable[..., Tensor] | None = None,
        examples: Callable[[Tensor], Tensor] | None = None,
        average: bool = False,
        allowance: Allowance | None = None,
        known: tuple[int, Agreement] | None = None,
    ) -> None:
        """Measure the field.

        Args:
            velocity: the field.
            event_shape: shape of one state; of a row of the derived field, if there is one.
            dtype: float32 or float64.
            device: the device of the field.
            max_rows: the most rows of one call of the field, rounded up to a multiple of 128; a larger call is made in
                pieces. The limit is lower if the field takes fewer rows, if a row is expensive, or if only that makes
                rows independent (see `models.calibration`).
            condition: what the field is conditioned on, with sizes for its free axes; None for an unconditional one.
            unpadded: whether to try without padding, for a field that should not depend on the number of rows.
            derive: (velocity, x, t[, condition]) -> velocities, a field made of the velocity (see `solvers.derived`),
                which is called in its place.
            examples: noise (rows, *event) -> the states to measure with; None for the noise itself.
            average: whether it is a field of average velocity, which takes the ends of steps, too.
            allowance: seconds of measuring; None for no bound.
            known: the form and the agreement of an earlier measurement, which are used instead of measuring.

        Raises:
            VelocityError: the field returns another shape or type than that of its states.
        """
        self.event_shape = tuple(event_shape)
        self.dtype = dtype
        self.condition = condition
        self.time_shape = (2,) if average else ()
        self.known = known is not None
        allowance = allowance or Allowance()
        least, most = rows_of(velocity)
        wanted = max(1, -(-max_rows // BUCKETS[-1])) * BUCKETS[-1]
        wanted = wanted if most is None else min(wanted, most)

        def trial(rows: int) -> tuple[Tensor, ...]:
            x = noise(0, 0, rows, self.event_shape, dtype)
            x = (x if examples is None else examples(x)).to(device)
            t = torch.linspace(0.0, 1.0, rows, dtype=dtype, device=device)
            if average:
                t = torch.stack((t, 1.0 - (1.0 - t).square()), dim=1)
            return (x, t, *(() if condition is None else condition.unpack(condition.examples(rows, dtype, device))))

        apart = isinstance(velocity, RowByRow)
        for count, form in enumerate(forms(velocity)):
            if known is not None and known[0] != count:
                continue
            field = form if derive is None else partial(derive, form)
            # A bound method would make a cycle, and the memory would wait for the garbage collector.
            function = partial(_checked, field, condition)
            if known is not None:
                self.velocity, self.form, self._call = field, count, RowCaller(function, (), 0, known=known[1])
                break
            limit = find_max_rows(function, trial, wanted, least, allowance)
            # If a call has few rows anyway, each number of rows is tried separately.
            candidates = UNPADDED if unpadded else (1, 2, *BUCKETS) if limit <= EACH_UP_TO else BUCKETS
            call = RowCaller(function, trial(limit), limit, apart, candidates, least, allowance)
            if call.deterministic or not count:
                self.velocity, self.form, self._call = field, count, call
            if call.deterministic:
                break

    @property
    def deterministic(self) -> bool:
        """Whether rows are independent bit for bit; False if no padding was found that makes them so."""
        return self._call.deterministic

    @property
    def buckets(self) -> tuple[int, ...]:
        """The row buckets that agree, ascending; empty until all have been tried."""
        return self._call.buckets

    @property
    def agreement(self) -> Agreement:
        """The numbers of rows that agree, as far as measured."""
        return self._call.agreement

    @property
    def progress(self) -> tuple[int, int]:
        """How many numbers of rows have been tried, and how many there are; (0, 0) once all have been."""
        return self._call.progress

    def refine(self) -> bool:
        """Measure one more number of rows; return False once all have been tried."""
        return self._call.refine()

    def __call__(self, x: Tensor, t: Tensor, condition: Condition | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows, *time_shape); returns (rows, *event).

        Args:
            x: states.
            t: times, in the dtype of x.
            condition: one row for each state; None for the null of a conditional field.

        Raises:
            VelocityError: an argument or the result has the wrong shape or type.
        """
        times = (len(x), *self.time_shape)
        if x.shape[1:] != self.event_shape or x.dtype != self.dtype or t.shape != times:
            raise VelocityError(
                f"states are {x.dtype} of shape {tuple(x.shape)} with times of shape {tuple(t.shape)}; this field "
                f"takes {self.dtype} of shape (rows, {', '.join(map(str, self.event_shape))}) and "
                f"{'(rows, 2)' if self.time_shape else '(rows,)'}"
            )
        if not len(x):
            return torch.empty_like(x)
        if self.condition is None:
            refuse_condition(condition)
            return self._call(x, t)
        if condition is None:
            condition = self.condition.nulls(len(x), x.dtype, x.device)
        self.condition.check(condition, len(x), x.dtype)
        return self._call(x, t, *self.condition.unpack(condition))

    def chosen(self, x: Tensor, t: Tensor, conditions: Sequence[Chosen]) -> Tensor:
        """Evaluate with conditions from a store; each row is copied only for the call in which it takes part.

        Args:
            x, t: as above.
            conditions: by name, in the order of `condition.inputs`.
        """
        return self._call(x, t, *conditions)


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
