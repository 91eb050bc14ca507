"""Row counts: the numbers of rows of a call at which a row has the same bits, as tested.

A row-wise function of tensors should compute row i from row i alone. Its kernels violate that in the last bits: they
choose their code by the number of rows and by the place of a row (a product of 3 rows runs different instructions from
one of 300). So calls have only as many rows as were *tested* on this machine, with these weights, this dtype and this
number of threads, and where no such number is found, one row at a time, which needs no test.

What is tested follows from the work and the memory of a row alone, never from a clock, so that a machine gives the same
bits at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

CALL_NUMBERS = 1 << 24
"""The most numbers in the arguments of a call: 64 MiB in float32."""

CALL_WORK = {"cpu": 4e9}
"""The most floating-point operations of a call, by kind of device: about 0.1 s of one core."""

_OTHER_WORK = 4e12
_NUMBER_WORK = 8.0  # floating-point operations that take as long as writing a number
_ROUND = 128  # larger limits are multiples of this
_PADDING = 32  # a lone row may be padded to this many, or a quarter of the limit
_SMALL = 4  # calls of fewer rows take other instructions most often, and are tested only if that means something
_ENOUGH = 4096  # numbers to compare that mean something
_FEWEST = 8  # different rows to try
_COMPARED = 128  # rows compared at each number of rows, at least, unless they hold enough numbers
_TRIALS = ((4, 8), (32, 4), (128, 2))
"""Up to how many rows -> calls that are compared, at least; larger calls are compared once."""

RowFunction = Callable[..., Tensor]
"""Tensors (rows, ...) -> a tensor (rows, ...), each row computed from its own inputs alone, but for rounding."""

Trial = Callable[[int], Sequence[Tensor]]
"""Number of rows -> arguments, no two rows alike where they can differ."""


@dataclass(frozen=True)
class RowCounts:
    """The numbers of rows that calls may have.

    Attributes:
        limit: the most rows of one call; larger calls are made in pieces.
        counts: the numbers of rows that agree, ascending, to which calls are padded; empty if calls are not padded,
            because all numbers agree or none does.
        deterministic: whether a row has the same bits in all calls.
    """

    limit: int
    counts: tuple[int, ...] = ()
    deterministic: bool = True

    def padded(self, rows: int) -> int:
        """Return the number of rows to pad a call of `rows` to, `limit` at most."""
        return next((count for count in self.counts if count >= rows), rows)


ONE_AT_A_TIME = RowCounts(1)
"""Each row has a call of its own, so its bits cannot depend on others."""


@torch.no_grad()
def find_counts(function: RowFunction, trial: Trial, limit: int, least: int = 1) -> RowCounts | None:
    """Test at which numbers of rows a row has the same bits; return None if calls should have one row each.

    If calls of `limit` rows do not agree with small ones, or not even with each other, smaller limits are tried.

    Args:
        function: the function.
        trial: makes its arguments.
        limit: the most rows of one call.
        least: the fewest rows of one call.
    """
    while limit > 1:
        lone = max(least, min(_PADDING, limit // 4))
        counts = _Test(function, trial, limit).counts(least, lone)
        if counts:
            return RowCounts(limit, counts)
        if limit == least:
            return None
        limit = max(least, rounded(limit // 8))
    return None


class _Test:
    """Calls of some numbers of rows, compared with calls of the most rows."""

    def __init__(self, function: RowFunction, trial: Trial, limit: int) -> None:
        self._function, self._limit = function, limit
        self._rows = limit if limit > _ROUND else max(2 * limit, _FEWEST)
        self._trial = trial(self._rows)
        self._generator = torch.Generator().manual_seed(0)
        self._reference = torch.cat(
            [function(*(a[begin : begin + limit] for a in self._trial)) for begin in range(0, self._rows, limit)]
        )
        self._numbers = self._reference[0].numel()
        self._compared = min(_COMPARED, limit, -(-_ENOUGH // max(1, self._numbers)))

    def counts(self, least: int, lone: int) -> tuple[int, ...]:
        """The numbers of rows that agree, ascending; empty if the limit does not, or none up to `lone` does."""
        if not self._agrees(self._limit):
            return ()
        agreeing: list[int] = []
        for rows in self._candidates(least):
            if rows > lone and not agreeing:
                return ()
            if self._agrees(rows):
                agreeing.append(rows)
        return tuple(agreeing)

    def _candidates(self, least: int) -> Iterator[int]:
        """Numbers of rows, ascending: padding to the next wastes a quarter at most, but for a few rows."""
        small = self._limit <= _PADDING or self._compared * self._numbers >= _ENOUGH
        rows = 1 if small else _SMALL
        while rows < self._limit:
            if rows >= least:
                yield rows
            rows += rows if rows < _SMALL else 4 if rows < 32 else 1 << rows.bit_length() - 3
        yield self._limit

    def _agrees(self, rows: int) -> bool:
        # A few rows may agree by chance, so small numbers of rows are tried more often.
        trials = next((trials for most, trials in _TRIALS if rows <= most), 1)
        trials = max(trials, -(-self._compared // rows))
        crowds = _FEWEST if 1 < rows <= _PADDING else 0
        return all(self._same(self._draw(rows)) for _ in range(trials)) and all(
            self._same(self._draw(1).expand(rows)) for _ in range(crowds)
        )

    def _draw(self, rows: int) -> Tensor:
        """Choose rows at random, none of them at the place that it had in the call that it is compared with.

        A lone row is padded with copies of itself, so crowds of copies of one row are tried, too.
        """
        place = torch.arange(rows)
        while True:
            order = torch.randperm(self._rows, generator=self._generator)[:rows]
            if not (order % self._limit == place).any():
                return order.to(self._reference.device)

    def _same(self, order: Tensor) -> bool:
        return same_bits(self._function(*(a[order] for a in self._trial)), self._reference[order])


@torch.no_grad()
def repeated(function: RowFunction, trial: Trial, counts: RowCounts) -> RowCounts:
    """Return these counts, not deterministic if not even a repeated call of a row has the same bits."""
    first, other = ([a[part] for a in trial(2)] for part in (slice(0, 1), slice(1, 2)))
    once = function(*first)
    function(*other)
    return counts if same_bits(once, function(*first)) else RowCounts(counts.limit, deterministic=False)


def most_rows(function: RowFunction, trial: Trial, wanted: int, least: int = 1) -> int:
    """Return the most rows of one call: `wanted`, or fewer to bound its work and its memory.

    Args:
        function, trial: see `find_counts`.
        wanted: upper bound.
        least: lower bound, set by the function.
    """
    first = trial(least)
    numbers = sum(tensor.numel() for tensor in first) // least
    limit = min(wanted, max(least, CALL_NUMBERS // max(1, numbers)))
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
    counter = _Work()
    try:
        with torch.no_grad(), counter:
            function(*arguments)
    except Exception:  # a call that cannot be counted is repeated without counting, so that its own error is raised
        return 0.0
    return max(counter.flops, _NUMBER_WORK * counter.numbers)


class _Work(TorchDispatchMode):
    """Counts the operations of products and convolutions, and the numbers written, in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.numbers = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        if isinstance(out, Tensor) and not func.is_view:
            self.numbers += out.numel()
        return out


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype have the same bits."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))
