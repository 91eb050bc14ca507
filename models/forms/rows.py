"""Calls of a row-wise function in which a row has the same bits in any company.

A row-wise function of tensors should compute row i from row i alone. Its kernels violate that in the last bits: they
choose their code by the number of rows and by the place of a row (a product of 3 rows runs different instructions from
one of 300). So a call has one row, which needs no test and is right for any function, or as many rows as were *tested*
on this machine, with these weights, this dtype and this number of threads.

What is tested follows from the work and the memory of a row, never from a clock, so that a machine gives the same bits
at every start. So does the choice of one row a call for networks whose rows cost hardly less in a batch: see
`best_rows`, which an import asks and the card answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from models.conditions import NamedConditions
from models.noise import noise
from models.program.steps import Stepwise
from models.shapes import FreeAxis, Shape, free_axes, sized
from models.velocity import VelocityError, VelocityField, forms, kind_of, rows_of

MOST_ROWS = 1024
"""The most rows of one call, however cheap they are."""

CALL_NUMBERS = 1 << 24
"""The most numbers in the arguments of a call: 64 MiB in float32."""

CALL_WORK = {"cpu": 4e9}
"""The most floating-point operations of a call, by kind of device: about 0.1 s of one core."""

_OTHER_WORK = 4e12
_NUMBER_WORK = 8.0  # floating-point operations that take as long as writing a number
_START_WORK = 2e5  # ... as starting an operation of torch
_BYTE_WORK = 4.0  # ... as moving a byte to or from memory
_BATCH = 8  # rows of the batch that is compared with one row
_WORTHWHILE = {False: 1.25, True: 2.5}  # how many times less work a row must be in it, by whether it has free axes
_SAVED = 0.05  # share of the work of a row that twice the rows must save
_LARGEST = 256  # rows; who saves that much even here has no limit
_ROUND = 128  # larger limits are multiples of this
_PADDING = 32  # a lone row may be padded to this many, or a quarter of the limit
_SMALL = 4  # calls of fewer rows take other instructions most often, and are tested only if that means something
_ENOUGH = 4096  # numbers to compare that mean something
_FEWEST = 8  # different rows to try
_COMPARED = 128  # rows compared at each number of rows, at least, unless they hold enough numbers
_TRIALS = ((4, 8), (32, 4), (128, 2))
"""Up to how many rows -> calls that are compared, at least; larger calls are compared once."""
_ALIGNMENT = 64  # bytes; the alignment of fresh tensors in torch

RowFunction = Callable[..., Tensor]
"""Tensors (rows, ...) -> a tensor (rows, ...), each row computed from its own inputs alone, but for rounding."""

Trial = Callable[[int], Sequence[Tensor]]
"""Number of rows -> arguments, no two rows alike where they can differ."""


@dataclass(frozen=True)
class StoredRows:
    """Rows of a store, copied only when they are needed.

    Attributes:
        take: (rows,) places -> a copy of the rows there, valid until the next call.
        places: (rows,) the place of each row.
    """

    take: Callable[[NDArray[np.int64]], Tensor]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, part: slice) -> StoredRows:
        return StoredRows(self.take, self.places[part])

    def split(self, rows: int) -> list[StoredRows]:
        """Split into pieces of this many rows."""
        return [self[begin : begin + rows] for begin in range(0, len(self), rows)]

    def rows(self, more: int = 0) -> Tensor:
        """Return the rows, with `more` copies of the first at the end."""
        return self.take(np.append(self.places, self.places[:1].repeat(more)) if more else self.places)


@dataclass(frozen=True)
class RowCaller:
    """Calls a row-wise function with the numbers of rows that it may have.

    Attributes:
        function: the function.
        limit: the most rows of one call; larger calls are made in pieces.
        counts: the numbers of rows that agree, ascending, to which calls are padded; empty if calls are not padded,
            because all numbers agree or none does.
        deterministic: whether a row has the same bits in all calls.
    """

    function: RowFunction
    limit: int
    counts: tuple[int, ...] = ()
    deterministic: bool = True

    def padded(self, rows: int) -> int:
        """Return the number of rows to pad a call of `rows` to, `limit` at most."""
        return next((count for count in self.counts if count >= rows), rows)

    def __call__(self, *arguments: Tensor | StoredRows) -> Tensor:
        """Call the function for at least one row; the result has as many rows as the arguments.

        Each argument has one row for each row of the result; those of a store are copied only for their own call.
        """
        rows = len(arguments[0])
        if rows > self.limit:
            return torch.cat([self(*piece) for piece in zip(*(a.split(self.limit) for a in arguments), strict=True)])
        missing = self.padded(rows) - rows
        v = self.function(*(a.rows(missing) if isinstance(a, StoredRows) else _filled(a, missing) for a in arguments))
        return v[:rows] if missing else v


def _filled(tensor: Tensor, missing: int) -> Tensor:
    """Add copies of the first row; the result is aligned like a fresh tensor, as the last bits depend on that."""
    if missing:
        return torch.cat((tensor, tensor[:1].expand(missing, *tensor.shape[1:])))
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def independent_rows(
    functions: Sequence[RowFunction],
    trial: Trial,
    most: int = MOST_ROWS,
    least: int = 1,
    counted: RowFunction | None = None,
) -> RowCaller:
    """Return calls of a function in which rows have the same bits in any company.

    If no number of rows agrees, a CPU calls it with one row at a time. On other devices that would take hundreds of
    times as long, so calls are as they come, and not deterministic.

    Args:
        functions: ways to compute it, which round differently; the first in which rows agree is taken.
        trial: makes arguments.
        most: the most rows of one call, unless that is too much work; with 1 nothing is tested.
        least: the fewest rows of one call.
        counted: a function of the same work whose operations torch can count; None for the first.
    """
    limit = most if most == 1 else most_rows(counted or functions[0], trial, most, least)
    for function in functions:
        if call := find_counts(function, trial, limit, least):
            return _repeated(call, trial)
    alone = limit == 1 or trial(1)[0].device.type == "cpu"
    call = RowCaller(functions[0], 1) if alone else RowCaller(functions[0], limit, deterministic=False)
    return _repeated(call, trial)


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
    its entries. What was tested is valid for the number of torch threads now: call this in the thread that will
    evaluate the field, with as many.

    Args:
        velocity: the field. Of its forms, the first with independent rows is called.
        event_shape: shape of one state; of a row of the derived field, if there is one.
        dtype: float32 or float64.
        device: the device of the field.
        max_rows: the most rows of one call.
        condition: what the field is conditioned on, with sizes for its free axes; None for an unconditional one.
        derive: (velocity, x, t, *conditions) -> velocities, a field made of the velocity (see `solvers.derived`),
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
        called = partial(_checked, field, condition)
        return called if derive is None else partial(derive, called)

    functions = [function_of(form) for form in forms(velocity)]
    least, most = rows_of(velocity, device)
    limit = max_rows if most is None else min(max_rows, most)
    if independent:
        return _repeated(RowCaller(functions[0], limit), trial)
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
    if any(v.untyped_storage().data_ptr() == c.untyped_storage().data_ptr() for c in conditions):
        return v.clone()  # as a store reuses the memory of its copies
    return v


@torch.no_grad()
def find_counts(function: RowFunction, trial: Trial, limit: int, least: int = 1) -> RowCaller | None:
    """Test at which numbers of rows a row has the same bits; return None if calls should have one row each.

    If calls of `limit` rows do not agree with small ones, or not even with each other, smaller limits are tried.

    Args:
        function: the function.
        trial: makes its arguments.
        limit: the most rows of one call.
        least: the fewest rows of one call.
    """
    first = limit
    while limit > 1:
        if counts := _agreeing(function, trial, limit, least, first):
            return RowCaller(function, limit, counts)
        if limit == least:
            return None
        limit = max(least, rounded(limit // 8))
    return None


def _agreeing(function: RowFunction, trial: Trial, limit: int, least: int, first: int) -> tuple[int, ...]:
    """Return the numbers of rows whose calls agree with calls of `limit` rows, ascending.

    There are none if not even these agree, or if no call of so few rows agrees that a lone row may be padded to them.
    A smaller limit than the first is tested with as many different rows: where only one row in ten has other bits at
    another place, a few rows would agree by chance.
    """
    most = limit if limit > _ROUND else max(2 * limit, _FEWEST, min(first, _COMPARED) // limit * limit)
    arguments, generator = trial(most), torch.Generator().manual_seed(0)
    reference = torch.cat([function(*(a[begin : begin + limit] for a in arguments)) for begin in range(0, most, limit)])
    numbers = reference[0].numel()
    compared = min(_COMPARED, most, -(-_ENOUGH // max(1, numbers)))

    def drawn(rows: int) -> Tensor:
        """Choose rows at random, none of them at the place that it had in the call that it is compared with."""
        place = torch.arange(rows)
        while True:
            order = torch.randperm(most, generator=generator)[:rows]
            if not (order % limit == place).any():
                return order.to(reference.device)

    def same(order: Tensor) -> bool:
        return same_bits(function(*(a[order] for a in arguments)), reference[order])

    def agrees(rows: int) -> bool:
        # A few rows may agree by chance, so small numbers of rows are tried more often. A lone row is padded with
        # copies of itself, so crowds of copies of one row are tried, too.
        trials = max(next((trials for bound, trials in _TRIALS if rows <= bound), 1), -(-compared // rows))
        crowds = _FEWEST if 1 < rows <= _PADDING else 0
        return all(same(drawn(rows)) for _ in range(trials)) and all(same(drawn(1).expand(rows)) for _ in range(crowds))

    if not agrees(limit):
        return ()
    agreeing: list[int] = []
    for rows in _candidates(least, limit, limit <= _PADDING or compared * numbers >= _ENOUGH):
        if rows > max(least, min(_PADDING, limit // 4)) and not agreeing:
            return ()
        if agrees(rows):
            agreeing.append(rows)
    return tuple(agreeing)


def _candidates(least: int, limit: int, small: bool) -> Iterator[int]:
    """Numbers of rows, ascending: padding to the next wastes a quarter at most, but for a few rows."""
    rows = 1 if small else _SMALL
    while rows < limit:
        if rows >= least:
            yield rows
        rows += rows if rows < _SMALL else 4 if rows < 32 else 1 << rows.bit_length() - 3
    yield limit


@torch.no_grad()
def _repeated(call: RowCaller, trial: Trial) -> RowCaller:
    """Return these calls, not deterministic if not even a repeated call of a row has the same bits."""
    first, other = ([a[part] for a in trial(2)] for part in (slice(0, 1), slice(1, 2)))
    once = call.function(*first)
    call.function(*other)
    return call if same_bits(once, call.function(*first)) else replace(call, counts=(), deterministic=False)


def most_rows(function: RowFunction, trial: Trial, most: int, least: int = 1) -> int:
    """Return the most rows of one call: `most`, or fewer to bound its work and its memory.

    Args:
        function, trial: see `find_counts`.
        most: upper bound.
        least: lower bound, set by the function.
    """
    first = trial(least)
    numbers = sum(tensor.numel() for tensor in first) // least
    limit = min(most, max(least, CALL_NUMBERS // max(1, numbers)))
    if row := work(function, first) / least:
        limit = min(limit, max(least, int(CALL_WORK.get(first[0].device.type, _OTHER_WORK) / row)))
    return max(least, rounded(limit))


def rounded(rows: int) -> int:
    """Round a number of rows, at least 1, down to a multiple of 128 or, if it is smaller, to a power of two."""
    return rows // _ROUND * _ROUND if rows >= _ROUND else 1 << max(1, rows).bit_length() - 1


def work(function: RowFunction, arguments: Sequence[Tensor]) -> float:
    """Return the floating-point operations of one call, as far as torch knows them; 0 if they cannot be counted.

    Where products are few, the numbers that are written take the time, and count instead.
    """
    counter = _counted(function, arguments)
    return max(counter.flops, _NUMBER_WORK * counter.numbers)


def best_rows(
    function: RowFunction, inputs: Sequence[tuple[Shape, torch.dtype]], axes: Mapping[str, FreeAxis]
) -> int | None:
    """Return how many rows a CPU should call a function with at most, by the work of a row in a batch and alone.

    None stands for no limit.

    An operation takes as long as its products or the memory that it moves, whichever is more, and its start. A batch
    shares the starts and the reading of weights; it saves nothing of the products. Larger calls than necessary would
    delay others, and have to be tested. Rows with free axes seldom have the same size, which is tested when it first
    comes: a batch must save more, and is small.

    Args:
        function: any function of rows, which is called on tensors of the meta device.
        inputs: the shape of a row and the dtype of each argument.
        axes: the allowed sizes of free axes.
    """
    free, sizes = any(free_axes(shape) for shape, _ in inputs), {name: axis.middle for name, axis in axes.items()}

    def work_of_a_row(rows: int) -> float:
        arguments = [torch.empty((rows, *sized(shape, sizes)), dtype=dtype, device="meta") for shape, dtype in inputs]
        return _counted(function, arguments).total / rows

    rows, now = _BATCH, work_of_a_row(_BATCH)
    if work_of_a_row(1) <= _WORTHWHILE[free] * now:
        return 1
    while not free and rows < _LARGEST and (larger := work_of_a_row(2 * rows)) < (1 - _SAVED) * now:
        rows, now = 2 * rows, larger
    return rows if rows < _LARGEST else None


def limit_rows(
    program: Stepwise,
    function: RowFunction,
    inputs: Sequence[tuple[Shape, torch.dtype]],
    axes: Mapping[str, FreeAxis],
) -> None:
    """Write into the config of a program how many rows a CPU calls it with, unless its export fixed the rows.

    Args:
        program: the program.
        function, inputs, axes: see `best_rows`.
    """
    if program.rows[0] == 1 and program.rows != (1, 1):
        rows = best_rows(function, inputs, axes)
        program.config = program.config.model_copy(update={"cpu_rows": rows})


def _counted(function: RowFunction, arguments: Sequence[Tensor]) -> _Work:
    counter = _Work()
    try:
        with torch.no_grad(), counter:
            function(*arguments)
    except Exception:  # a call that cannot be counted is repeated without counting, so that its own error is raised
        return _Work()
    return counter


class _Work(TorchDispatchMode):
    """Counts the work of a call, in this thread.

    Attributes:
        flops: floating-point operations of products and convolutions.
        numbers: numbers written.
        total: all work, in floating-point operations that take as long.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.numbers = self.total = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and to skip the compiler torch first imports it: a second of a start

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        flops = 0.0 if count is None else float(count(*args, **(kwargs or {}), out_val=out))
        self.flops += flops
        if func.is_view:
            return out
        if isinstance(out, Tensor):
            self.numbers += out.numel()
        moved = sum(tensor.nbytes for tensor in (*args, out) if isinstance(tensor, Tensor))
        self.total += _START_WORK + max(flops, _BYTE_WORK * moved)
        return out


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype have the same bits."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))
