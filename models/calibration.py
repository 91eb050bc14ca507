"""Calibration: the numbers of rows at which a function gives a row the same bits, measured within an allowance.

A row-wise function of tensors should compute row i from row i alone. Its kernels violate that in the last bits: they
choose their code by the number of rows (a matrix product of 3 rows runs different instructions from one of 300). So the
numbers of rows that agree are *measured*, on this machine, with these weights, this dtype and this number of threads,
against one call with the most rows.

The most rows of a call follow from the work per row, counted in floating-point operations, and from its memory, not
from time, so that a machine gives the same bits at every start. Time only limits how much is measured. Numbers of rows
are tried in order of usefulness; one that has not been tried is not used, and the rest can be tried later.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

BUCKETS = (4, 8, 16, 32, 64, 128)
"""The candidates for a row bucket: calls may have any multiple of one that agrees."""

UNPADDED = (1, *BUCKETS)
"""The candidates for a function that should give the same bits at any number of rows."""

EACH_UP_TO = 32
"""If calls have at most this many rows, each number of rows is tried; nothing is inferred from buckets."""

CALL_NUMBERS = 1 << 24
"""The most numbers in the arguments of a call: 64 MiB in float32."""

CALL_FLOPS = {"cpu": 4e9}
"""The most floating-point operations of a call, by kind of device: about 0.1 s of one core."""

_OTHER_FLOPS = 4e12
_ROWS_TO_COMPARE = 32
_SHARE = 32
"""One call may take up to one part in this many of the allowance, unless `Allowance.longest` is given."""

RowFunction = Callable[..., Tensor]


class Allowance:
    """A budget of seconds, running from its creation.

    Attributes:
        seconds: the budget.
        longest: the most seconds that one call may take.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        clock: Callable[[], float] = time.perf_counter,
        longest: float | None = None,
    ) -> None:
        self.seconds, self._clock, self._begun = seconds, clock, clock()
        self.longest = seconds / _SHARE if longest is None else longest

    def restarted(self) -> Allowance:
        """Return a new allowance of the same number of seconds, running from now."""
        return Allowance(self.seconds, self._clock)

    @property
    def spent(self) -> bool:
        """Whether it is used up."""
        return self._clock() - self._begun >= self.seconds

    def timed(self, call: Callable[[], object]) -> float:
        """Return the seconds that one call takes."""
        begun = self._clock()
        call()
        return self._clock() - begun


@dataclass(frozen=True)
class Agreement:
    """The numbers of rows at which a function's rows agree bit for bit.

    Attributes:
        counts: numbers of rows that were tried and agree, ascending; empty if none does.
        buckets: candidates for which all multiples tried agree, ascending; empty until all have been tried.
        limit: the most rows of one call; larger calls are made in pieces.
        complete: whether all numbers of rows have been tried.
    """

    counts: tuple[int, ...]
    buckets: tuple[int, ...]
    limit: int
    complete: bool

    def padded_count(self, rows: int) -> int:
        """Return the number of rows to pad a call of `rows` to, `limit` at most: the next one that agrees."""
        if self.buckets:
            return min(rows + -rows % self.buckets[0], self.limit)
        return next((count for count in self.counts if count >= rows), rows)


class Calibration:
    """A measurement of one function that can be interrupted and resumed.

    Attributes:
        found: the agreement so far.
        tried, total: how many numbers of rows have been tried, and how many there are.
    """

    def __init__(
        self, function: RowFunction, trial: Sequence[Tensor], limit: int, candidates: Sequence[int], least: int
    ) -> None:
        """Begin with one call of `limit` rows, with which others are compared.

        Args:
            function: takes as many tensors as the trial has and returns one; each has one row for each sample.
            trial: arguments of at least `limit` rows, no two alike.
            limit: the most rows of one call.
            candidates: the buckets to try.
            least: the fewest rows of one call.
        """
        self._function, self._trial, self._limit = function, [tensor[:limit] for tensor in trial], limit
        self._candidates = [bucket for bucket in candidates if bucket <= limit]
        self._each = limit <= EACH_UP_TO
        self._generator = torch.Generator().manual_seed(0)
        sizes = _each(limit, least) if self._each else _sizes(limit, least)
        self._left = iter(list(dict.fromkeys(sizes)))
        self.total, self.tried = len(set(sizes)), 0
        self._alive, self._agreeing = set(self._candidates), set[int]()
        with torch.no_grad():
            self._reference = function(*self._trial)
        self.found = Agreement((), (), limit, complete=False)

    def step(self) -> bool:
        """Try the next number of rows; return False once none is left, or if calls of `limit` rows do not agree."""
        rows = next(self._left, None)
        if rows is None or (self.tried and self._limit not in self._agreeing):
            self._end()
            return False
        self.tried += 1
        wanted = self._each or rows == self._limit or any(rows % bucket == 0 for bucket in self._alive)
        if wanted and self._agrees(rows):
            self._agreeing.add(rows)
        elif wanted:
            self._alive = {bucket for bucket in self._alive if rows % bucket}
        usable = self._agreeing if self._each else {self._limit, *self._multiples()} & self._agreeing
        self.found = Agreement(tuple(sorted(usable)), (), self._limit, complete=False)
        return True

    def _multiples(self) -> set[int]:
        """The numbers of rows that agree and are multiples of a bucket that has not been ruled out."""
        return {rows for rows in self._agreeing if any(rows % bucket == 0 for bucket in self._alive)}

    def _end(self) -> None:
        agree = self._limit in self._agreeing
        if self._each:
            buckets = tuple(b for b in self._candidates if all(m in self._agreeing for m in self._up_to(b)))
        else:
            buckets = tuple(sorted(self._alive))
        counts = tuple(sorted(self._agreeing)) if agree else ()
        self.found = Agreement(counts, buckets if agree else (), self._limit, complete=True)

    def _up_to(self, bucket: int) -> range:
        return range(bucket, self._limit + 1, bucket)

    def _agrees(self, rows: int) -> bool:
        # A few rows may agree by chance, so small numbers of rows are tried several times.
        with torch.no_grad():
            for _ in range(-(-min(_ROWS_TO_COMPARE, self._limit) // rows)):
                order = torch.randperm(self._limit, generator=self._generator)[:rows].to(self._reference.device)
                found = self._function(*(tensor[order] for tensor in self._trial))
                if not same_bits(found, self._reference[order]):
                    return False
        return True


def find_max_rows(
    function: RowFunction, trial: Callable[[int], Sequence[Tensor]], wanted: int, least: int, allowance: Allowance
) -> int:
    """Return the most rows of one call: `wanted`, or fewer to bound its work, its memory or the measuring time.

    Args:
        function: the function to call.
        trial: number of rows -> arguments.
        wanted: upper bound.
        least: lower bound, set by the function.
        allowance: one call may take only a small part of it.
    """
    first = trial(least)
    numbers = sum(tensor.numel() for tensor in first) // least
    limit = min(wanted, max(least, CALL_NUMBERS // max(1, numbers)))
    work = flops(function, first) / least
    if work:
        limit = min(limit, max(least, int(CALL_FLOPS.get(first[0].device.type, _OTHER_FLOPS) / work)))
    return max(least, rounded(_in_time(function, trial, limit, least, allowance)))


def _in_time(
    function: RowFunction, trial: Callable[[int], Sequence[Tensor]], limit: int, least: int, allowance: Allowance
) -> int:
    longest = allowance.longest
    if math.isinf(longest):
        return limit
    rows = least
    with torch.no_grad():
        while True:
            given = trial(rows)
            took = allowance.timed(lambda given=given: function(*given))
            if took > longest / 4:  # a first call also prepares kernels
                took = min(took, allowance.timed(lambda given=given: function(*given)))
            more = min(limit, 4 * rows, int(rows * longest / max(took, 1e-9)))
            if more <= rows:
                return rows
            rows = more


def rounded(rows: int) -> int:
    """Round a number of rows down to a multiple of the largest bucket or, if it is smaller, to a power of two."""
    if rows >= BUCKETS[-1]:
        return rows // BUCKETS[-1] * BUCKETS[-1]
    return 1 << rows.bit_length() - 1


def flops(function: RowFunction, arguments: Sequence[Tensor]) -> float:
    """Return the floating-point operations of one call, as far as torch knows them; 0 if they cannot be counted."""
    counter = _Flops()
    try:
        with torch.no_grad(), counter:
            function(*arguments)
    except Exception:  # a call that cannot be counted is repeated without counting, so that its own error is raised
        return 0.0
    return counter.total


class _Flops(TorchDispatchMode):
    """Counts the operations of products and convolutions in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


def measure(
    function: RowFunction,
    trial: Sequence[Tensor],
    limit: int,
    candidates: Sequence[int] = BUCKETS,
    least: int = 1,
    allowance: Allowance | None = None,
) -> Calibration:
    """Find the numbers of rows at which a function's rows do not depend on each other.

    If calls of `limit` rows never agree with small ones, or not even with each other, smaller limits are tried.

    Args:
        function, trial, limit, candidates, least: see `Calibration`.
        allowance: budget of seconds; calls of `limit` rows are tried however long they take.

    Returns:
        The measurement, complete unless the allowance ran out.
    """
    allowance = allowance or Allowance()
    first = None
    for tried in _limits(limit, least):
        found = Calibration(function, trial, tried, candidates, least)
        first = first or found
        while found.step() and not allowance.spent:
            pass
        if found.found.buckets or (found.found.counts and (found._each or not found.found.complete)):
            return found
        if allowance.spent:
            break
    assert first is not None  # noqa: S101  (there is at least one limit)
    first.found = Agreement((), (), limit, complete=True)
    return first


def _limits(limit: int, least: int) -> list[int]:
    smallest = BUCKETS[-1]
    if limit <= smallest:
        return sorted({limit, max(least, limit // 4)}, reverse=True) if limit <= EACH_UP_TO else [limit]
    return sorted({limit, max(limit // 8 // smallest, 1) * smallest, smallest}, reverse=True)


def measure_apart(function: RowFunction, trial: Sequence[Tensor], limit: int) -> Agreement:
    """Measure a function that computes each row by itself: all numbers of rows agree if a repeated call does."""
    rows = min(_ROWS_TO_COMPARE, len(trial[0]), limit)
    chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(trial[0].device)
    with torch.no_grad():
        reference = function(*(tensor[:rows] for tensor in trial))
        again = function(*(tensor[chosen] for tensor in trial))
    agree = same_bits(again, reference[chosen])
    return Agreement((1, limit) if agree else (), (1,) if agree else (), limit, complete=True)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype have the same bits."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(integers), b.contiguous().view(integers))


def _each(limit: int, least: int) -> list[int]:
    """Return every number of rows: the most, powers of two, then the rest."""
    powers = [1 << power for power in range(limit.bit_length())]
    return [rows for rows in (limit, *powers, *range(1, limit + 1)) if least <= rows <= limit]


def _sizes(limit: int, least: int) -> list[int]:
    """Return the numbers of rows to try: the most, a few that no bucket divides, small multiples of 4, then larger.

    Kernels change their code at small numbers, by the remainder of a block size, and where threads begin to share the
    work. So the larger numbers are the powers of two, each with a neighbour on either side.
    """
    small = (1, 2, 3, 5, 6, 7, 9, 11, 13, 15, 17, 33, 47, 65, 97, 127)
    sizes = [limit, *small, *range(4, 65, 4), 72, 76, 80, 92, 96, 100, 112, 124, 128]
    sizes += [rows for size in _powers(limit) for rows in (size - 4, size, size + 8)]
    return [rows for rows in sizes if least <= rows <= limit]


def _powers(limit: int) -> Iterator[int]:
    size = 256
    while size <= limit:
        yield size
        size *= 2
