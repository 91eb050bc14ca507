"""Calls that give each row the same bits whatever rows stand beside it.

A row-wise function of tensors should give row i from row i alone. Its kernels spoil that in the last bits: they
choose their code by the number of rows (a matrix product of 3 rows runs other instructions than one of 300). So a
call is padded to a number of rows for which the bits were *measured* to agree, on this machine, with these
weights, this dtype and this number of threads.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BUCKETS = (4, 8, 16, 32, 64, 128)
"""Candidates: a call is padded to a multiple of the bucket."""

UNPADDED = (1, *BUCKETS)
"""Candidates for a function that is made so that no number of rows changes a bit."""

_ROWS_TO_COMPARE = 32
_ALIGNMENT = 64  # bytes; what torch gives to fresh tensors

RowFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class Measured:
    """What was found for one function.

    Attributes:
        buckets: the candidates that agree bit for bit, ascending; empty if none does.
        limit: the most rows of one call; larger calls are made in pieces.
    """

    buckets: tuple[int, ...]
    limit: int


def measure(
    function: RowFunction, probe: Sequence[Tensor], limit: int, candidates: Sequence[int] = BUCKETS
) -> Measured:
    """Find the row buckets in which a function's rows do not depend on each other.

    Every number of rows tried is compared with one call of `limit` rows, the rows taken from other places
    and in another order. Where calls of that many rows never agree with small ones, smaller limits are tried.

    Args:
        function: takes as many tensors as the probe has and returns one tensor; all have one row a sample.
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
    """The same for a function that works on each row by itself: its bucket is 1, if it answers a row twice alike."""
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
            # A few rows could agree by chance, so few rows are drawn more often.
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
    """Numbers of rows to try: a few that no bucket divides, small multiples of 4, then ever fewer up to the limit.

    Kernels change their code at small numbers, by the remainder of a block size and where threads begin to share
    the work, so the larger ones come as a power of two and its neighbours on both sides.
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
    """A tensor that starts where fresh ones do: some kernels' last bits depend on the address."""
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class RowCaller:
    """Calls a row-wise function with padding, and counts the rows.

    Attributes:
        function: what is called.
        deterministic: whether the padding makes rows independent, as measured.
        buckets: the candidates that agree, ascending; the smallest is used.
        bucket: calls are padded to a multiple of it; 1 if none agrees.
        limit: the most rows of one call.
        live_rows: rows asked for so far.
        padded_rows: rows added so far.
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
            apart: whether the function works on each row by itself, so that padding would only cost.
        """
        found = measure_apart(function, probe, limit) if apart else measure(function, probe, limit, candidates)
        self.function = function
        self.deterministic = bool(found.buckets)
        self.buckets = found.buckets
        self.bucket = found.buckets[0] if found.buckets else 1
        self.limit = found.limit
        self.live_rows = 0
        self.padded_rows = 0

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Call the function for at least one row; the answer has as many rows as the arguments."""
        rows = len(arguments[0])
        if rows > self.limit:
            pieces = zip(*(tensor.split(self.limit) for tensor in arguments), strict=True)
            return torch.cat([self(*piece) for piece in pieces])
        self.live_rows += rows
        missing = -rows % self.bucket
        if not missing:
            return self.function(*map(aligned, arguments))
        self.padded_rows += missing
        padded = [torch.cat((a, a[:1].expand(missing, *a.shape[1:]))) for a in arguments]
        return self.function(*padded)[:rows]
