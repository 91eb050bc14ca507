"""Named conditions of a bulk job as arrays: one row for all samples, or one for each, in files of the target.

arrays/conditions.text.npy     (1 or samples, *shape); also negative.NAME.npy
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.errors import UsageError
from models.checkpoint.card import DTYPES, Card
from models.condition_values import Values
from models.conditions import ConditionError

FIELDS = ("conditions", "negative")
"""Fields of a sample request that hold named conditions; an array is called FIELD.NAME."""

_PIECE_BYTES = 16 << 20  # read at a time


class Source(Protocol):
    """An array in memory or in a file, (rows, *shape); its rows are read by slices."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its values."""
        ...

    def __getitem__(self, rows: slice, /) -> NDArray[Any]: ...


class StoredArray:
    """An array that `write` stored; rows are read when they are needed."""

    def __init__(self, opened: Callable[[], BinaryIO]) -> None:
        """Read the header.

        Args:
            opened: opens the file.

        Raises:
            ValueError: it is not a file that `write` stored.
        """
        self._opened = opened
        with opened() as file:
            np.lib.format.read_magic(file)
            self.shape, fortran, self.dtype = np.lib.format.read_array_header_1_0(file)
            self._begin = file.tell()
        if fortran or not self.shape or self.dtype.hasobject:
            raise ValueError("is not an array of rows")

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        first, end, _ = rows.indices(self.shape[0])
        row_bytes = _row_bytes(self)
        with self._opened() as file:
            file.seek(self._begin + first * row_bytes)
            content = file.read((end - first) * row_bytes)
        if len(content) < (end - first) * row_bytes:
            raise ValueError("is shorter than its header says")
        return np.frombuffer(content, self.dtype).reshape(end - first, *self.shape[1:])


@dataclass(frozen=True)
class Arrays:
    """Named conditions of the samples of a job.

    Attributes:
        sources: arrays by FIELD.NAME; one has a single row for all samples, or one row for each.
        total: number of samples.
    """

    sources: Mapping[str, Source]
    total: int

    @classmethod
    def fitting(cls, given: Mapping[str, NDArray[Any]], total: int, card: Card) -> Arrays:
        """Return the arrays of a job, each with a first axis of 1 or `total` rows.

        Args:
            given: arrays by FIELD.NAME; one of the shape of a single value is for all samples.
            total: number of samples.
            card: of the model.

        Raises:
            UsageError: the model has no such condition, or the shape of an array does not fit.
        """
        takes, fitted = card.request_conditions, {}
        if takes is None and given:
            raise UsageError(f"model {card.name!r} is unconditional; leave out {_option(next(iter(given)))}")
        for key, array in given.items():
            name = key.partition(".")[2]
            assert takes is not None  # noqa: S101  (or nothing is given)
            try:
                Values(takes, {name: array}, total, DTYPES[card.dtype], partial=True)
            except ConditionError as error:
                raise UsageError(f"{_option(key)}: {error}") from None
            axes = array.ndim - len(takes.entries[name].shape)
            fitted[key] = array if axes else array[None]
        return cls(fitted, total)

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each array: of its dtype, shape and values."""
        return {name: digest_of_array(source) for name, source in self.sources.items()}

    @property
    def row_bytes(self) -> int:
        """Bytes of the values that differ from sample to sample, for one of them."""
        return sum(_row_bytes(source) for source in self.sources.values() if source.shape[0] > 1)

    def of(self, first: int, rows: int) -> dict[str, Any]:
        """Return the members of a sample request that hold the conditions of consecutive samples."""
        found: dict[str, Any] = {}
        for name, source in self.sources.items():
            field, _, condition = name.partition(".")
            shared = source.shape[0] == 1
            part = source[0:1].reshape(source.shape[1:]) if shared else source[first : first + rows]
            found.setdefault(field, {})[condition] = part
        return found

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of samples, first and number, that together cover all differing values, a little at a time."""
        if not self.row_bytes:
            return
        rows = max(1, _PIECE_BYTES // self.row_bytes)
        for first in range(0, self.total, rows):
            yield first, min(rows, self.total - first)


def _option(key: str) -> str:
    """Return the option that gave an array."""
    field, _, name = key.partition(".")
    return f"--{'negative' if field == 'negative' else 'condition'} {name}"


def read(path: Path) -> NDArray[Any]:
    """Open a user's .npy file; its values are read when they are needed.

    Raises:
        UsageError: it cannot be read, or does not hold numbers.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        kind = found.dtype if isinstance(found, np.ndarray) else "an archive"
        raise UsageError(f"{path}: is {kind}; a condition is an array of numbers")
    return found


def write(source: Source, file: BinaryIO) -> None:
    """Write an array as .npy, little-endian and in C order."""
    header = {"descr": _little(source).str, "fortran_order": False, "shape": tuple(source.shape)}
    np.lib.format.write_array_header_1_0(file, header)
    for part in _parts(source):
        file.write(part.tobytes())


def digest_of_array(source: Source) -> str:
    """Return the SHA-256 of the dtype, the shape and the values of an array."""
    found = hashlib.sha256(json.dumps([_little(source).str, list(source.shape)]).encode())
    for part in _parts(source):
        found.update(part.tobytes())
    return found.hexdigest()


def _parts(source: Source) -> Iterator[NDArray[Any]]:
    rows = max(1, _PIECE_BYTES // max(1, _row_bytes(source)))
    for first in range(0, source.shape[0], rows):
        yield np.ascontiguousarray(source[first : first + rows], _little(source))


def _little(source: Source) -> np.dtype[Any]:
    return source.dtype.newbyteorder("<")


def _row_bytes(source: Source) -> int:
    return int(np.prod(source.shape[1:], dtype=np.int64)) * source.dtype.itemsize
