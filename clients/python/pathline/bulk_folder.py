"""The folder of a bulk job: the one definition of its format, for this SDK and for the server's `python -m fleet`.

job.json, conditions.json      the spec, and its table of conditions
arrays/conditions.text.npy     an array of named conditions
shards/00000.parquet           the rows of a shard
receipts/00000.json            the shard is done: its rows, NFE and fingerprint
failed/00000.json              the shard was given up, and why

`Folder` reads and writes it through a `JobStore`: a folder of this machine, or what overrides it for other places.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pathline._fields import FIELDS as REQUEST_FIELDS
from pathline._files import replacing
from pathline._plot import needed
from pathline._response import printable
from pathline._typed import parsed, typed
from pathline.errors import BulkConflict, InvalidValue, ProtocolError

D = TypeVar("D", "JobSpec", "Receipt")

BLOCK = 64
"""ShardRows hashed together; shards start at multiples of it."""

FIELDS = tuple(name for name, field in REQUEST_FIELDS.items() if field.bulk)
"""Fields of a sample request that a job may set; the others belong to the job itself or do not apply."""

_MODULUS = 1 << 256
_SHARD_S = 120.0  # a crash loses no more of a worker's time
_MAX_BYTES = 512 << 20  # of a shard's samples; writing them takes a few copies in memory
_FOR_EACH_WORKER = 4  # least number of shards, so that workers finish at about the same time
_PIECE_BYTES = 16 << 20  # of an array, read at a time
_AT_ONCE = 1000  # receipts read at a time
_LONGEST = 500  # characters of a message about a damaged file
_MAX_SHARDS = 1 << 22  # their numbers are held in memory

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
"""Names of classes that are whole numbers."""

_JOB, _CONDITIONS, _ARRAYS = "job.json", "conditions.json", "arrays"
_BEFORE_JOB = {_CONDITIONS, _ARRAYS, "shards", "receipts", "tmp"}
"""What a job that was stopped before it began may leave behind."""

_CHANGED = "was changed after the job began; restore it"


def digest_of(content: Any) -> str:
    """Return the SHA-256 of plain data, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _said(error: Exception) -> str:
    """Return an error about the content of a file, which it may quote, on one line of bounded length."""
    return printable(" ".join(str(error).split()))[:_LONGEST]


def fingerprint(first: int, samples: NDArray[Any]) -> str:
    """Return the fingerprint of consecutive rows, 64 hexadecimal digits.

    It does not depend on how rows are split into shards: each block of `BLOCK` rows is hashed with the number of its
    first row, and the hashes are added modulo 2^256 (Bellare & Micciancio, "A New Paradigm for Collision-Free Hashing:
    Incrementality at Reduced Cost", EUROCRYPT 1997). It detects accidents: rows lost, duplicated, swapped or damaged.
    It does not protect against forgery.

    Args:
        first: Number of the first row in the job, a multiple of `BLOCK`.
        samples: Shape (rows, *shape).
    """
    rows, total = np.ascontiguousarray(samples, samples.dtype.newbyteorder("<")), 0
    for begin in range(0, len(rows), BLOCK):
        block = hashlib.sha256((first + begin).to_bytes(8, "little"))
        block.update(rows[begin : begin + BLOCK].tobytes())
        total += int.from_bytes(block.digest(), "little")
    return f"{total % _MODULUS:064x}"


def shard_rows(rate: float, total: int, workers: int, row_bytes: int) -> int:
    """Return the number of rows of a shard, a multiple of `BLOCK`.

    Args:
        rate: ShardRows per second of one worker.
        total: ShardRows of the job.
        workers: Number of workers.
        row_bytes: Bytes of one sample and its conditions.
    """
    rows = min(rate * _SHARD_S, total / (_FOR_EACH_WORKER * workers), _MAX_BYTES / row_bytes)
    rows = max(rows, total / _MAX_SHARDS)
    return max(1, math.ceil(rows / BLOCK)) * BLOCK


@dataclass(frozen=True)
class JobSpec:
    """Everything that determines the rows of a job and their layout in files.

    Attributes:
        bulk: Version of this layout.
        model, version, checkpoint: The model; the checkpoint is its digest, as `/v1/models` shows it.
        path: How its network is evaluated, as `/v1/models` shows it.
        threads: CPU threads of the network in each worker; they may affect the bits of an eager network. 0 in the job
            of a client, where a service makes the rows with its own threads.
        noise: Scheme that generates the starting noise.
        request: Fields of a sample request, as the service defines them.
        plan: SHA-256 of the compiled solver's numbers; empty in the job of a client.
        seed, first_index, total: Which samples; row k of the job is sample `first_index` + k of the seed.
        table: SHA-256 of the table of conditions; empty without one.
        arrays: SHA-256 of each array of named conditions, by field and name.
        shape, dtype: Of one row's sample.
        columns: Name, kind, unit and decimals of the numbers of a row's sample, where it has them, as in a sample's
            response; a Parquet shard has them in its metadata.
        format: Of the shards.
        shard_rows: ShardRows of each shard but the last, a multiple of `BLOCK`.
    """

    model: str
    version: int
    checkpoint: str
    path: str
    threads: int
    noise: str
    request: Mapping[str, Any]
    plan: str
    seed: int
    first_index: int
    total: int
    table: str
    arrays: Mapping[str, str]
    shape: tuple[int, ...]
    dtype: str
    format: str
    shard_rows: int
    columns: tuple[Mapping[str, Any], ...] = ()
    bulk: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise ValueError("the dtype is not float32 or float64")
        numbers = (self.version, self.threads, self.seed, self.first_index, self.total, self.shard_rows, *self.shape)
        if not all(0 <= number < 1 << 63 for number in numbers) or self.total < 1:
            raise ValueError("a number is out of range")
        if self.bulk != 1 or self.shard_rows < BLOCK or self.shard_rows % BLOCK:
            raise ValueError(f"bulk is {self.bulk!r} and shard_rows {self.shard_rows}; 1 and a multiple of {BLOCK}")
        if self.shards > _MAX_SHARDS:
            raise InvalidValue(
                f"{self.total} rows in shards of {self.shard_rows} are {self.shards} shards; at most {_MAX_SHARDS} are "
                "possible: use more rows in each",
                "shard_rows",
            )

    @classmethod
    def from_json(cls, content: bytes) -> JobSpec:
        """Read what was written of `plain`; raise a ValueError if it is something else."""
        return _written(cls, content)

    def plain(self) -> dict[str, Any]:
        """Return the members as plain values."""
        return dataclasses.asdict(self) | {"shape": list(self.shape), "columns": list(self.columns)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the spec."""
        return digest_of(self.plain())

    @property
    def by_client(self) -> bool:
        """Whether a client of a service makes the rows."""
        return self.threads == 0

    @property
    def shards(self) -> int:
        """The number of shards."""
        return -(-self.total // self.shard_rows)

    def range(self, shard: int) -> tuple[int, int]:
        """Return the first row of a shard, counted from the start of the job, and its number of rows."""
        first = shard * self.shard_rows
        return first, min(self.shard_rows, self.total - first)

    def refuse_other(self, settings: Mapping[str, Any]) -> None:
        """Check that settings match this job; None stands for the job's own value.

        Raises:
            BulkConflict: A value differs; the message has both.
        """
        mine = self.plain()
        mine |= mine.pop("request") | mine.pop("arrays")
        for name, value in settings.items():
            if value is not None and mine.get(name) != value:
                advice = {
                    "checkpoint": "the model has changed since; restore it, or start a new job in another place",
                    "plan": "the solver's numbers have changed since; start a new job in another place",
                }.get(name, "choose another place, or use the same value")
                raise BulkConflict(
                    f"the target holds another job: its {name} is {mine.get(name)!r}, not {value!r}; {advice}"
                )


@dataclass(frozen=True)
class ShardRows:
    """ShardRows of a shard; nfe and status are None where the format does not store them.

    Attributes:
        first: Number of the first row, counted from the start of the job.
        samples: Shape (rows, *shape).
        nfe: Velocity evaluations of each row, shape (rows,), int32.
        status: Final status of each row, shape (rows,), strings.
        condition: Labels (rows,) or vectors (rows, width) of a table of conditions, or None.
    """

    first: int
    samples: NDArray[Any]
    nfe: NDArray[Any] | None = None
    status: NDArray[Any] | None = None
    condition: NDArray[Any] | None = None


@dataclass(frozen=True)
class Receipt:
    """The proof that a shard is done.

    Attributes:
        job: Digest of the spec.
        shard, first, rows: Which rows of the job.
        nfe: Velocity evaluations of all rows.
        status: Number of samples by final status.
        failed: Numbers of the rows that did not succeed, counted from the start of the job.
        fingerprint: Of the samples.
        deterministic: Whether the bits depend on the spec alone.
        seconds: Time taken to make it.
    """

    job: str
    shard: int
    first: int
    rows: int
    nfe: int
    status: Mapping[str, int]
    failed: Sequence[int]
    fingerprint: str
    deterministic: bool
    seconds: float

    @classmethod
    def of(cls, spec: JobSpec, shard: int, rows: ShardRows, deterministic: bool, seconds: float) -> Receipt:
        """Return the receipt for rows that were made."""
        assert rows.nfe is not None and rows.status is not None  # noqa: S101, PT018  (they were just made)
        ended, counts = np.unique(rows.status, return_counts=True)
        return cls(
            job=spec.digest,
            shard=shard,
            first=rows.first,
            rows=len(rows.samples),
            nfe=int(rows.nfe.sum(dtype=np.int64)),
            status=dict(zip(ended.tolist(), counts.tolist(), strict=True)),
            failed=(rows.first + np.flatnonzero(rows.status != "success")).tolist(),
            fingerprint=fingerprint(rows.first, rows.samples),
            deterministic=deterministic,
            seconds=seconds,
        )

    @classmethod
    def from_json(cls, content: bytes) -> Receipt:
        """Read a receipt; raise a ValueError if it is damaged."""
        receipt = _written(cls, content)
        int(receipt.fingerprint, 16)
        return receipt


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
                raise ValueError(f"is no array: {_said(error)}") from None
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
"""Conditions of the samples of a job that are not part of its request."""


def merged(request: Mapping[str, Any], conditions: RowConditions | None, first: int, rows: int) -> dict[str, Any]:
    """Return the members of a sample request for consecutive samples, with their conditions."""
    members = dict(request)
    for name, value in ({} if conditions is None else conditions.of(first, rows)).items():
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


class Npy:
    """NumPy's format: the samples only. The receipt records how they ended."""

    def write(self, spec: JobSpec, rows: ShardRows, file: IO[bytes]) -> None:
        """Write a shard."""
        np.lib.format.write_array(file, rows.samples, allow_pickle=False)

    def read(self, spec: JobSpec, first: int, content: bytes) -> ShardRows:
        """Read a shard; raise a ValueError if it is damaged."""
        stored = StoredArray(lambda: io.BytesIO(content))
        return ShardRows(first, stored[: stored.shape[0]])


class Parquet:
    """Apache Parquet: one row per sample, with its index in the seed, NFE, status and condition."""

    def __init__(self) -> None:
        self._arrow, self._parquet = needed("pyarrow", "bulk"), needed("pyarrow.parquet", "bulk")

    def _lists(self, rows: NDArray[Any]) -> Any:
        flat = rows.reshape(len(rows), -1)
        return self._arrow.FixedSizeListArray.from_arrays(self._arrow.array(flat.reshape(-1)), flat.shape[1])

    def write(self, spec: JobSpec, rows: ShardRows, file: IO[bytes]) -> None:
        """Write a shard."""
        assert rows.nfe is not None and rows.status is not None  # noqa: S101, PT018  (they were just made)
        arrow, first = self._arrow, spec.first_index + rows.first
        columns = {
            "index": arrow.array(np.arange(first, first + len(rows.samples), dtype=np.int64)),
            "sample": self._lists(rows.samples),
            "nfe": arrow.array(rows.nfe),
            "status": arrow.array(rows.status.astype(object), arrow.string()).dictionary_encode(),
        }
        if (condition := rows.condition) is not None:
            columns["condition"] = arrow.array(condition) if condition.ndim == 1 else self._lists(condition)
        about = {"shape": list(spec.shape), "model": spec.model, "version": spec.version, "seed": spec.seed}
        if spec.columns:
            about["columns"] = list(spec.columns)
        table = arrow.table(columns).replace_schema_metadata({"pathline": json.dumps(about | {"job": spec.digest})})
        self._parquet.write_table(table, file, compression="zstd")

    def read(self, spec: JobSpec, first: int, content: bytes) -> ShardRows:
        """Read a shard; raise a ValueError if it is damaged."""
        try:
            # No threads of Arrow: one that lets go of the bytes while Python is finalized would abort the process.
            table = self._parquet.ParquetFile(self._arrow.BufferReader(content)).read(use_threads=False)
            columns = {name: table[name].combine_chunks() for name in table.column_names}
            samples = columns["sample"].flatten().to_numpy().reshape(-1, *spec.shape)
            condition = columns.get("condition")
            if condition is not None:
                wide = self._arrow.types.is_fixed_size_list(condition.type)
                flat = condition.flatten().to_numpy().reshape(len(table), -1) if wide else None
                condition = condition.to_numpy(zero_copy_only=False) if flat is None else flat
            index = columns["index"].to_numpy()
            begin = spec.first_index + first
            if not np.array_equal(index, np.arange(begin, begin + len(index))):
                raise ValueError("holds rows of another shard")
            return ShardRows(first, samples, columns["nfe"].to_numpy(), None, condition)
        except KeyError as error:
            raise ValueError(f"lacks the column {error}") from None
        except (self._arrow.ArrowException, OSError) as error:  # an OSError for most kinds of damage
            raise ValueError(_said(error)) from None


FORMATS: Mapping[str, type[Npy | Parquet]] = {"npy": Npy, "parquet": Parquet}
"""Formats with one file per shard, whose suffix is the format's name."""


class JobStore:
    """Files of a job by their names within its folder, such as ``shards/00000.npy``. No name is a pattern.

    This one is a folder of this machine; others override its methods.

    Args:
        path: Its path; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)

    def names(self, folder: str) -> list[str]:
        """Return the names of what a folder holds, without the folder; none if it is missing."""
        try:
            return [entry.name for entry in (self.path / folder).iterdir()]
        except FileNotFoundError:
            return []

    def read(self, names: Sequence[str]) -> list[bytes]:
        """Return the contents of files; raise a FileNotFoundError for one that is missing."""
        return [(self.path / name).read_bytes() for name in names]

    def open(self, name: str) -> IO[bytes]:
        """Open a file to read parts of it."""
        return (self.path / name).open("rb")

    def state(self, name: str) -> object:
        """Return what changes when a file does; None if it is missing."""
        try:
            stat = (self.path / name).stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        """Write a file that appears only once it is complete."""
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path / name) as file:
            write(file)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def unfinished(self) -> list[str]:
        """Return the names of files that are being written, or whose writers died."""
        return [part.relative_to(self.path).as_posix() for part in self.path.rglob(".*.part")]

    def clear(self, unfinished: Sequence[str]) -> None:
        """Remove unfinished files, which no call may be writing any more."""
        with contextlib.suppress(OSError):
            for name in unfinished:
                self.remove(name)


class Folder:
    """The folder of one job.

    Args:
        store: Its files.
    """

    def __init__(self, store: JobStore) -> None:
        self.store = store

    @property
    def address(self) -> str:
        """Where it is, for messages."""
        return self.store.address

    def spec(self) -> JobSpec | None:
        """Return the spec of the job in this folder; None if the folder is empty or missing.

        Raises:
            BulkConflict: The folder holds something else.
            OSError: It cannot be read.
        """
        names = set(self.store.names(""))
        if _JOB not in names:
            if names - _BEFORE_JOB:
                raise BulkConflict(f"{self.address}: is not empty and holds no job; choose an empty or new folder")
            return None
        try:
            return JobSpec.from_json(self.store.read([_JOB])[0])
        except ValueError as error:
            raise BulkConflict(f"{self.address}/{_JOB}: is not a job of this release: {_said(error)}") from None

    def conditions(self, spec: JobSpec) -> RowConditions | None:
        """Return the job's table or arrays of conditions, if it has any.

        Raises:
            BulkConflict: They differ from those that the job began with.
            OSError: They cannot be read.
        """
        if spec.arrays:
            return Arrays({name: self._array(name, digest) for name, digest in spec.arrays.items()}, spec.total)
        if not spec.table:
            return None
        [content] = self.store.read([_CONDITIONS])
        with contextlib.suppress(ValueError, LookupError, TypeError):
            members = parsed(content)
            table = ConditionCounts(members["condition"], members["count"])
            if table.digest == spec.table:
                return table
        raise BulkConflict(f"{self.address}/{_CONDITIONS}: {_CHANGED}")

    def _array(self, name: str, digest: str) -> StoredArray:
        place = f"{_ARRAYS}/{name}.npy"
        state = self.store.state(place)

        def unchanged() -> None:
            if self.store.state(place) != state:
                raise BulkConflict(f"{self.address}/{place}: {_CHANGED}")

        with contextlib.suppress(ValueError):
            array = StoredArray(lambda: self.store.open(place), unchanged)
            if digest_of_array(array) == digest:
                return array
        raise BulkConflict(f"{self.address}/{place}: {_CHANGED}")

    def create(self, spec: JobSpec, conditions: RowConditions | None) -> None:
        """Create a job in this folder; the spec is written last. Raise an OSError if that is not possible."""
        if isinstance(conditions, ConditionCounts):
            members = {"condition": list(conditions.conditions), "count": list(conditions.counts)}
            self._write_json(_CONDITIONS, members)
        elif conditions is not None:
            for name, source in conditions.sources.items():
                self.store.write(f"{_ARRAYS}/{name}.npy", lambda file, source=source: write_array(source, file))
        self.prepare(spec)
        self._write_json(_JOB, spec.plain(), indent=2)

    def prepare(self, spec: JobSpec) -> None:
        """Make what the format needs before the first shard; files need nothing."""

    def done(self) -> set[int]:
        """Return the shards that have receipts; raise an OSError if they cannot be listed."""
        names = self.store.names("receipts")
        return {int(name[:-5]) for name in names if re.fullmatch(r"([0-9]{5}|[1-9][0-9]{5,18})\.json", name)}

    def receipts(self, shards: Iterable[int]) -> Iterator[Receipt]:
        """Read receipts in order.

        Raises:
            BulkConflict: One is damaged, or is that of another shard.
            OSError: One cannot be read.
        """
        ordered = sorted(shards)
        for begin in range(0, len(ordered), _AT_ONCE):
            part = ordered[begin : begin + _AT_ONCE]
            names = [f"receipts/{shard:05d}.json" for shard in part]
            try:
                contents = self.store.read(names)
            except FileNotFoundError:
                raise BulkConflict(f"{self.address}/receipts: one is missing that was listed; try again") from None
            for shard, name, content in zip(part, names, contents, strict=True):
                try:
                    receipt = Receipt.from_json(content)
                except ValueError:
                    raise BulkConflict(f"{self.address}/{name}: is damaged; delete it to remake the shard") from None
                if receipt.shard != shard:
                    other = f"is the receipt of shard {receipt.shard}; delete it to remake the shard"
                    raise BulkConflict(f"{self.address}/{name}: {other}")
                yield receipt

    def commit(self, spec: JobSpec, rows: ShardRows, receipt: Receipt) -> None:
        """Store a shard, and then its receipt.

        Raises:
            BulkConflict: The folder no longer holds this job.
            OSError: They cannot be written.
        """
        now = self.spec()
        if now is None or now.digest != spec.digest:
            raise BulkConflict(f"{self.address}/{_JOB}: {_CHANGED}")
        self.write_rows(spec, receipt.shard, rows)
        self._write_json(f"receipts/{receipt.shard:05d}.json", dataclasses.asdict(receipt))
        self.store.remove(f"failed/{receipt.shard:05d}.json")

    def write_rows(self, spec: JobSpec, shard: int, rows: ShardRows) -> None:
        """Store the rows of a shard; raise an OSError if that is not possible."""
        written = FORMATS[spec.format]()
        self.store.write(f"shards/{shard:05d}.{spec.format}", lambda file: written.write(spec, rows, file))

    def rows(self, spec: JobSpec, shard: int) -> ShardRows:
        """Read the rows of a shard.

        Raises:
            ValueError: They are damaged.
            OSError: They cannot be read.
        """
        [content] = self.store.read([f"shards/{shard:05d}.{spec.format}"])
        return FORMATS[spec.format]().read(spec, spec.range(shard)[0], content)

    def note_failure(self, shard: int, reason: str, tries: int) -> None:
        """Record that a shard could not be made; raise an OSError if that is not possible."""
        self._write_json(f"failed/{shard:05d}.json", {"shard": shard, "error": reason, "tries": tries})

    def summary(self, spec: JobSpec) -> Summary:
        """Add up all receipts; errors as in `receipts`, and a BulkConflict if one belongs to another job or no file."""
        summary, files = Summary(), set(self.store.names("shards"))
        for receipt in self.receipts(self.done()):
            fault = _misplaced(spec, receipt)
            if spec.format in FORMATS and f"{receipt.shard:05d}.{spec.format}" not in files:
                fault = fault or "its file is missing"
            if fault:
                raise BulkConflict(
                    f"{self.address}: shard {receipt.shard}: {fault}; delete its receipt to remake the shard"
                )
            summary.add(receipt)
        return summary

    def verify(self, spec: JobSpec) -> Iterator[tuple[int, str | Receipt]]:
        """Read every shard that has a receipt; yield its number, and its receipt or what is wrong with it.

        Raises:
            OSError: A folder cannot be listed.
        """
        for shard in sorted(self.done()):
            try:
                [receipt] = self.receipts([shard])
                yield shard, self._fault(spec, receipt) or receipt
            except BulkConflict as error:
                yield shard, str(error)

    def _fault(self, spec: JobSpec, receipt: Receipt) -> str:
        """Return what is wrong with a shard, or an empty string."""
        if fault := _misplaced(spec, receipt):
            return fault
        try:
            rows = self.rows(spec, receipt.shard)
        except FileNotFoundError:
            return "its file is missing"
        except ValueError as error:
            return f"is damaged: {error}"
        shape = (receipt.rows, *spec.shape)
        if rows.samples.shape != shape or rows.samples.dtype != np.dtype(spec.dtype):
            return f"holds {rows.samples.dtype} {list(rows.samples.shape)}, not {spec.dtype} {list(shape)}"
        if rows.nfe is not None and int(rows.nfe.sum(dtype=np.int64)) != receipt.nfe:
            return "its NFE does not match the receipt"
        if fingerprint(receipt.first, rows.samples) != receipt.fingerprint:
            return "its samples do not match the receipt"
        return ""

    def _write_json(self, name: str, content: Mapping[str, Any], indent: int | None = None) -> None:
        text = json.dumps(content, indent=indent, allow_nan=False).encode()
        self.store.write(name, lambda file: file.write(text))


class ShardQueue:
    """The shards of a job that one call has still to make; several threads may take from it.

    Args:
        folder: The folder of the job.
        spec: The job.
        tries: Attempts at a shard before it is given up.
        mine: Numbers of the call's shards; all by default.

    Attributes:
        rows, done: Rows of the call's shards, and how many of them are done already.
        failed: Shards that were given up, and why.

    Raises:
        OSError: The folder cannot be read.
    """

    def __init__(self, folder: Folder, spec: JobSpec, tries: int, mine: Iterable[int] | None = None) -> None:
        shards = set(range(spec.shards) if mine is None else mine)
        self._folder, self._spec, self._tries = folder, spec, tries
        self._unfinished = folder.store.unfinished()  # of writers that died; others may write here from now on
        self._waiting = deque(sorted(shards - folder.done()))
        self._tried: dict[int, int] = {}
        self.failed: dict[int, str] = {}
        self.rows = sum(spec.range(shard)[1] for shard in shards)
        self.done = self.rows - sum(spec.range(shard)[1] for shard in self._waiting)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> int | None:
        """Return the next shard to make; None if there is none."""
        with contextlib.suppress(IndexError):  # another thread took the last
            return self._waiting.popleft()
        return None

    def retry(self, shard: int, reason: str) -> None:
        """Put a shard that failed behind the others, or give it up; raise an OSError if that cannot be recorded."""
        self._tried[shard] = self._tried.get(shard, 0) + 1
        if self._tried[shard] < self._tries:
            self._waiting.append(shard)
            return
        self.failed[shard] = reason
        self._folder.note_failure(shard, reason, self._tries)

    def left(self) -> int:
        """Return the number of shards without a receipt, of other calls too; at 0, what dead writers left is removed.

        Raises:
            OSError: The folder cannot be read.
        """
        left = self._spec.shards - len(self._folder.done())
        if not left:
            self._folder.store.clear(self._unfinished)
        return left


def _written(kind: type[D], content: bytes) -> D:
    members = parsed(content)
    if not isinstance(members, dict) or set(members) != {entry.name for entry in dataclasses.fields(kind)}:
        raise ValueError(f"its members are not those of a {kind.__name__}")
    try:
        return typed(kind, members)
    except ProtocolError as error:
        raise ValueError(str(error)) from None


def _misplaced(spec: JobSpec, receipt: Receipt) -> str:
    """Return why a receipt does not belong to its shard of the job, or an empty string."""
    if receipt.shard >= spec.shards:
        return f"the job has only {spec.shards} shards"
    if receipt.job != spec.digest:
        return "its receipt belongs to another job"
    if (receipt.first, receipt.rows) != spec.range(receipt.shard):
        return f"its receipt is for {receipt.rows} rows from {receipt.first}, which belong to other shards"
    return ""


@dataclass
class Summary:
    """Totals over the receipts of a job.

    Attributes:
        shards, rows, nfe: Of all shards that are done.
        status: Number of samples by final status.
        deterministic: Whether the fingerprint depends on the spec alone.
        seconds: Total time spent by workers.
    """

    shards: int = 0
    rows: int = 0
    nfe: int = 0
    status: dict[str, int] = field(default_factory=dict)
    deterministic: bool = True
    seconds: float = 0.0
    _total: int = 0

    def add(self, receipt: Receipt) -> None:
        """Add a receipt."""
        self.shards, self.rows, self.nfe = self.shards + 1, self.rows + receipt.rows, self.nfe + receipt.nfe
        self.seconds, self.deterministic = self.seconds + receipt.seconds, self.deterministic and receipt.deterministic
        self._total += int(receipt.fingerprint, 16)
        for name, count in receipt.status.items():
            self.status[name] = self.status.get(name, 0) + count

    @property
    def fingerprint(self) -> str:
        """Of all rows."""
        return f"{self._total % _MODULUS:064x}"
