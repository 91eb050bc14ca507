"""Row padding: calls in which a row has the same bits whatever rows stand beside it.

A row-wise function of tensors should compute row i from row i alone. Its kernels spoil that in the last bits: they
choose their code by the number of rows (a matrix product of 3 rows runs other instructions than one of 300). So each
call is padded to a multiple of a row bucket for which the bits were *measured* to agree, on this machine, with these
weights, this dtype and this number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from models.conditions import LabelCondition, VectorCondition
from models.noise import noise
from models.velocity import VelocityError, VelocityField, forms, refuse_condition

BUCKETS = (4, 8, 16, 32, 64, 128)
"""The candidates for a row bucket."""

UNPADDED = (1, *BUCKETS)
"""The candidates for a function whose bits should not depend on the number of rows."""

_ROWS_TO_COMPARE = 32
_ALIGNMENT = 64  # bytes; what torch gives to fresh tensors

RowFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class Measured:
    """What was measured of one function.

    Attributes:
        buckets: the candidates that agree bit for bit, ascending; empty if none does.
        limit: the most rows of one call; larger calls are made in pieces.
    """

    buckets: tuple[int, ...]
    limit: int


def measure(
    function: RowFunction, probe: Sequence[Tensor], limit: int, candidates: Sequence[int] = BUCKETS
) -> Measured:
    """Find the row buckets with which a function's rows do not depend on each other.

    Each number of rows that is tried is compared with one call of `limit` rows, with the rows taken from other places
    and in another order. Where calls of `limit` rows never agree with small ones, smaller limits are tried.

    Args:
        function: takes as many tensors as the probe has and returns one; each has one row for each sample.
        probe: arguments of at least `limit` rows, no two alike.
        limit: the most rows of one call, a multiple of the largest bucket.
        candidates: the buckets to try.
    """
    smallest = BUCKETS[-1]
    for tried in sorted({limit, max(limit // 8 // smallest, 1) * smallest, smallest}, reverse=True):
        buckets = _agreeing(function, [tensor[:tried] for tensor in probe], tried, candidates)
        if buckets:
            return Measured(buckets, tried)
    return Measured((), limit)


def measure_apart(function: RowFunction, probe: Sequence[Tensor], limit: int) -> Measured:
    """Do the same for a function that computes each row by itself: its bucket is 1 if a row twice gives equal bits."""
    chosen = torch.randperm(_ROWS_TO_COMPARE, generator=torch.Generator().manual_seed(0)).to(probe[0].device)
    with torch.no_grad():
        reference = function(*(tensor[:_ROWS_TO_COMPARE] for tensor in probe))
        again = function(*(tensor[chosen] for tensor in probe))
    return Measured((1,) if _same_bits(again, reference[chosen]) else (), limit)


def _agreeing(function: RowFunction, probe: Sequence[Tensor], limit: int, candidates: Sequence[int]) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        reference = function(*probe)
        alive = set(candidates)
        for rows in _sizes(limit):
            if not any(rows % bucket == 0 for bucket in alive):
                continue
            # A few rows may agree by chance, so small numbers of rows are drawn several times.
            for _ in range(-(-_ROWS_TO_COMPARE // rows)):
                chosen = torch.randperm(limit, generator=generator)[:rows].to(reference.device)
                found = function(*(tensor[chosen] for tensor in probe))
                if not _same_bits(found, reference[chosen]):
                    alive = {bucket for bucket in alive if rows % bucket}
                    break
    return tuple(sorted(alive))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    integers = torch.int32 if a.dtype == torch.float32 else torch.int64
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def _sizes(limit: int) -> Iterator[int]:
    """The numbers of rows to try: a few that no bucket divides, small multiples of 4, then ever fewer up to the limit.

    Kernels change their code at small numbers, by the remainder of a block size, and where threads begin to share the
    work. So the larger numbers are each power of two and a neighbour on either side.
    """
    yield from (1, 2, 3, 5, 6, 7, 9, 11, 13, 15, 17, 33, 47, 65, 97, 127)
    yield from range(4, 65, 4)
    yield from (72, 76, 80, 92, 96, 100, 112, 124, 128)
    size = 256
    while size <= limit:
        yield from (rows for rows in (size - 4, size, size + 8) if rows <= limit)
        size *= 2
    yield limit


def aligned(tensor: Tensor) -> Tensor:
    """A tensor at an address such as fresh ones have: the last bits of some kernels depend on it."""
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class RowCaller:
    """Calls a row-wise function with padding.

    Attributes:
        function: what is called.
        deterministic: whether the padding makes rows independent, as measured.
        buckets: the candidates that agree, ascending; the smallest is used.
        bucket: calls are padded to a multiple of it; 1 if none agrees.
        limit: the most rows of one call.
    """

    def __init__(
        self,
        function: RowFunction,
        probe: Sequence[Tensor],
        limit: int,
        apart: bool = False,
        candidates: Sequence[int] = BUCKETS,
    ) -> None:
        """Measure the function.

        Args:
            function, probe, limit, candidates: see `measure`.
            apart: whether the function computes each row by itself, so that padding would only cost.
        """
        found = measure_apart(function, probe, limit) if apart else measure(function, probe, limit, candidates)
        self.function = function
        self.deterministic = bool(found.buckets)
        self.buckets = found.buckets
        self.bucket = found.buckets[0] if found.buckets else 1
        self.limit = found.limit

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Call the function for at least one row; the result has as many rows as the arguments."""
        rows = len(arguments[0])
        if rows > self.limit:
            pieces = zip(*(tensor.split(self.limit) for tensor in arguments), strict=True)
            return torch.cat([self(*piece) for piece in pieces])
        missing = -rows % self.bucket
        if not missing:
            return self.function(*map(aligned, arguments))
        padded = [torch.cat((a, a[:1].expand(missing, *a.shape[1:]))) for a in arguments]
        return self.function(*padded)[:rows]


class RowByRow(nn.Module):
    """A network that is called with one row at a time, so that no row can see another.

    Attributes:
        network: what is called.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate at least one state x (rows, *event) at times t (rows,), each row in a call of its own."""
        rows = []
        for row in range(len(x)):
            one = slice(row, row + 1)
            given = None if condition is None else aligned(condition[one])
            rows.append(self.network(aligned(x[one]), aligned(t[one]), given))
        return torch.cat(rows)


class RowStable:
    """A velocity field in which a row has the same bits whatever rows are evaluated with it.

    Calls are padded with copies of a live row, as measured when this is made (well below a second for the paper's
    networks). The measurement holds for the number of torch threads at that time: make this with as many as will be
    used, in the thread that will call it.

    Attributes:
        velocity: what is called: the first form of the field with which rows are independent, or else its first form.
        event_shape: shape of one state.
        dtype: type of states and velocities.
        condition: what the field is conditioned on, or None.
        time_shape: shape of the times of one row: (), or (2,) for a field of average velocity.
    """

    def __init__(
        self,
        velocity: VelocityField,
        event_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        max_rows: int = 1024,
        condition: LabelCondition | VectorCondition | None = None,
        unpadded: bool = False,
        derive: Callable[..., Tensor] | None = None,
        examples: Callable[[Tensor], Tensor] | None = None,
        average: bool = False,
    ) -> None:
        """Measure the field.

        Args:
            velocity: the field.
            event_shape: shape of one state; of a row of the derived field, where there is one.
            dtype: float32 or float64.
            device: where the field lives.
            max_rows: the most rows of one call of the field, rounded up to a multiple of 128; a larger call is made in
                pieces. A smaller number may be used if only that makes rows independent.
            condition: what the field is conditioned on, as its card says; None for an unconditional one.
            unpadded: whether to try without padding, for a field whose bits should not depend on the number of rows.
            derive: (velocity, x, t[, condition]) -> velocities, a field made of the velocity (see `solvers.derived`),
                which is called in its place.
            examples: noise (rows, *event) -> the states to measure with; None takes the noise itself.
            average: whether it is a field of average velocity, which is asked with the ends of steps, too.

        Raises:
            VelocityError: the field returns another shape or type than it was given.
        """
        self.event_shape = tuple(event_shape)
        self.dtype = dtype
        self.condition = condition
        self.time_shape = (2,) if average else ()
        limit = max(1, -(-max_rows // BUCKETS[-1])) * BUCKETS[-1]
        x = noise(0, 0, limit, self.event_shape, dtype)
        x = (x if examples is None else examples(x)).to(device)
        t = torch.linspace(0.0, 1.0, limit, dtype=dtype, device=device)
        if average:
            t = torch.stack((t, 1.0 - (1.0 - t).square()), dim=1)
        given = () if condition is None else (condition.examples(limit, dtype, device),)
        candidates = UNPADDED if unpadded else BUCKETS
        apart = isinstance(velocity, RowByRow)
        for count, form in enumerate(forms(velocity)):
            field = form if derive is None else partial(derive, form)
            # A bound method would make a cycle, and the memory would wait for the garbage collector.
            call = RowCaller(partial(_checked, field), (x, t, *given), limit, apart, candidates)
            if call.deterministic or not count:
                self.velocity, self._call = field, call
            if call.deterministic:
                break

    @property
    def deterministic(self) -> bool:
        """Whether rows are independent bit for bit; False if no padding was found that makes them so."""
        return self._call.deterministic

    @property
    def buckets(self) -> tuple[int, ...]:
        """The row buckets that agree, ascending; the smallest is used."""
        return self._call.buckets

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate states x (rows, *event) at times t (rows, *time_shape); returns (rows, *event).

        Args:
            x: states.
            t: times, in the dtype of x.
            condition: one row for each state; None is the null of a conditional field.

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
        return self._call(x, t, condition)


def _checked(velocity: Callable[..., Tensor], x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
    v = velocity(x, t) if condition is None else velocity(x, t, condition)
    if v.shape != x.shape or v.dtype != x.dtype:
        raise VelocityError(
            f"the velocity field returned {v.dtype} of shape {tuple(v.shape)}; "
            f"it must return {x.dtype} of shape {tuple(x.shape)}, as it was given"
        )
    return v
