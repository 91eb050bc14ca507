"""Conditions of the samples of a bulk job that are not part of its request: a table, or arrays by name."""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pathline._bulk_spec import digest_of, one_line

_PIECE_BYTES = 16 << 20  # of an array, read at a time

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
"""Names of classes that are whole numbers."""


@dataclass(frozen=True)
class ConditionCounts:
    """Conditions in the order of their samples, and the number of samples to draw for each, at least 1."""

    conditions: Sequence[Any]
    counts: Sequence[int]

    row_bytes = 0
    """One sample has none for itself: equal conditions are stored once."""

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.counts)

    @property
    def total(self) -> int:
        """The number of samples."""
        return int(self._ends[-1])

    @property
    def digest(self) -> str:
        """SHA-256 of the table."""
        return digest_of([list(self.conditions), list(self.counts)])

    def recorded(self, first: int, rows: int, names: Sequence[str], dtype: str) -> NDArray[Any]:
        """Return the conditions of consecutive samples as files hold them: labels (rows,), or vectors (rows, width).

        Args:
            first, rows: Which samples.
            names: Names of the model's classes, if they have names; those that are numbers are recorded as such.
            dtype: Of vectors.
        """
        conditions = self.of(first, rows)["condition"]
        if isinstance(conditions[0], list):
            return np.asarray(conditions, dtype)
        numbers: dict[Any, int] = {name: int(name) for name in names if _WHOLE.fullmatch(name)}
        if len(numbers) < len(names):
            labels = {name: label for label, name in enumerate(names)}
            numbers = {**labels, **{number: labels[name] for name, number in numbers.items()}}
        return np.asarray([numbers.get(condition, condition) for condition in conditions])

    def of(self, first: int, rows: int) -> dict[str, Any]:
        """Return the member of a sample request that holds the conditions of consecutive samples."""
        places = np.searchsorted(self._ends, np.arange(first, first + rows), side="right")
        return {"condition": [self.conditions[place] for place in places.tolist()]}


class StoredArray:
    """An array in a file that a `Folder` wrote; rows are read when they are needed.

    Args:
        opened: Opens the file.
        unchanged: Called after each reading of rows; raises an error if the file is another one by now.

    Raises:
        ValueError: It is not such a file.
    """

    def __init__(self, opened: Callable[[], IO[bytes]], unchanged: Callable[[], None] = lambda: None) -> None:
        self._opened, self._unchanged = opened, unchanged
        with opened() as file:
            try:
                np.lib.format.read_magic(file)
                self.shape, fortran, self.dtype = np.lib.format.read_array_header_1_0(file)
            except Exception as error:  # a damaged header can raise anything
                raise ValueError(f"is no array: {one_line(error)}") from None
            self._begin = file.tell()
            size = file.seek(0, io.SEEK_END) - self._begin
        if fortran or not self.shape or self.dtype.hasobject or min(self.shape) < 0:
            raise ValueError("is not an array of rows")
        if math.prod(self.shape) * self.dtype.itemsize > size:  # before memory is taken for them
            raise ValueError("is shorter than its header says")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        first, end, _ = rows.indices(self.shape[0])
        row_bytes = _row_bytes(self)
        with self._opened() as file:
            file.seek(self._begin + first * row_bytes)
            content = file.read((end - first) * row_bytes)
        self._unchanged()
        return np.frombuffer(content, self.dtype).reshape(end - first, *self.shape[1:])


Source = NDArray[Any] | StoredArray
"""An array in memory or in a file, (rows, *shape); its rows are read by slices."""


@dataclass(frozen=True)
class Arrays:
    """Named conditions of the samples of a job, by ``conditions.NAME`` and ``negative.NAME``.

    Attributes:
        sources: Shape (1, *shape) for all samples, or (samples, *shape).
        total: Number of samples.
    """

    sources: Mapping[str, Source]
    total: int

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each array: of its dtype, shape and values."""
        return {name: digest_of_array(source) for name, source in self.sources.items()}

    @property
    def row_bytes(self) -> int:
        """Bytes of the values that differ from sample to sample, for one of them."""
        return sum(_row_bytes(source) for source in self.sources.values() if source.shape[0] > 1)

    def recorded(self, first: int, rows: int, names: Sequence[str], dtype: str) -> None:
        """Return nothing: files of samples do not hold named conditions."""

    def of(self, first: int, rows: int) -> dict[str, Any]:
        """Return the members of a sample request that hold the conditions of consecutive samples."""
        members: dict[str, Any] = {}
        for key, source in self.sources.items():
            member, _, name = key.partition(".")
            shared = source.shape[0] == 1
            part = source[0:1].reshape(source.shape[1:]) if shared else source[first : first + rows]
            members.setdefault(member, {})[name] = np.asarray(part)
        return members

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of samples, first and number, that together cover all differing values, a little at a time."""
        if not self.row_bytes:
            return
        rows = max(1, _PIECE_BYTES // self.row_bytes)
        for first in range(0, self.total, rows):
            yield first, min(rows, self.total - first)


RowConditions = ConditionCounts | Arrays
"""Conditions of the samples of a job that are not part of its request: a table, or any number of arrays."""


def merged(request: Mapping[str, Any], conditions: RowConditions, first: int, rows: int) -> dict[str, Any]:
    """Return the members of a sample request for consecutive samples, with their conditions."""
    members = dict(request)
    for name, value in conditions.of(first, rows).items():
        members[name] = {**members.get(name, {}), **value} if isinstance(value, dict) else value
    return members


def digest_of_array(source: Source) -> str:
    """Return the SHA-256 of the dtype, the shape and the values of an array."""
    digest = hashlib.sha256(json.dumps([_little(source).str, list(source.shape)]).encode())
    for part in _parts(source):
        digest.update(part.tobytes())
    return digest.hexdigest()


def write_array(source: Source, file: IO[bytes]) -> None:
    """Write an array as .npy, little-endian and in C order."""
    header = {"descr": _little(source).str, "fortran_order": False, "shape": tuple(source.shape)}
    np.lib.format.write_array_header_1_0(file, header)
    for part in _parts(source):
        file.write(part.tobytes())


def _parts(source: Source) -> Iterator[NDArray[Any]]:
    rows = max(1, _PIECE_BYTES // max(1, _row_bytes(source)))
    for first in range(0, source.shape[0], rows):
        yield np.ascontiguousarray(source[first : first + rows], _little(source))


def _little(source: Source) -> np.dtype[Any]:
    return source.dtype.newbyteorder("<")


def _row_bytes(source: Source) -> int:
    return int(np.prod(source.shape[1:], dtype=np.int64)) * source.dtype.itemsize
