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
import io
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pathline._bulk_conditions import Arrays, ConditionCounts, RowConditions, StoredArray, digest_of_array, write_array
from pathline._bulk_spec import JobSpec, Receipt, ShardRows, Summary, fingerprint, one_line
from pathline._files import replacing
from pathline._plot import needed
from pathline._typed import parsed
from pathline.errors import BulkConflict

_AT_ONCE = 1000  # receipts read at a time

_JOB, _CONDITIONS, _ARRAYS = "job.json", "conditions.json", "arrays"
_BEFORE_JOB = {_CONDITIONS, _ARRAYS, "shards", "receipts", "tmp"}
"""What a job that was stopped before it began may leave behind."""

_CHANGED = "was changed after the job began; restore it"


def _write_npy(spec: JobSpec, rows: ShardRows, file: IO[bytes]) -> None:
    """Write the samples of a shard only, as NumPy does; the receipt records how they ended."""
    np.lib.format.write_array(file, rows.samples, allow_pickle=False)


def _read_npy(spec: JobSpec, first: int, content: bytes) -> ShardRows:
    stored = StoredArray(lambda: io.BytesIO(content))
    return ShardRows(first, stored[: stored.shape[0]])


def _write_parquet(spec: JobSpec, rows: ShardRows, file: IO[bytes]) -> None:
    """Write one row per sample, with its index in the seed, NFE, status and condition."""
    assert rows.nfe is not None and rows.status is not None  # noqa: S101, PT018  (they were just made)
    arrow, first = needed("pyarrow", "bulk"), spec.first_index + rows.first

    def lists(array: NDArray[Any]) -> Any:
        flat = array.reshape(len(array), -1)
        return arrow.FixedSizeListArray.from_arrays(arrow.array(flat.reshape(-1)), flat.shape[1])

    columns = {
        "index": arrow.array(np.arange(first, first + len(rows.samples), dtype=np.int64)),
        "sample": lists(rows.samples),
        "nfe": arrow.array(rows.nfe),
        "status": arrow.array(rows.status.astype(object), arrow.string()).dictionary_encode(),
    }
    if (condition := rows.condition) is not None:
        columns["condition"] = arrow.array(condition) if condition.ndim == 1 else lists(condition)
    about = {"shape": list(spec.shape), "model": spec.model, "version": spec.version, "seed": spec.seed}
    if spec.columns:
        about["columns"] = list(spec.columns)
    table = arrow.table(columns).replace_schema_metadata({"pathline": json.dumps(about | {"job": spec.digest})})
    needed("pyarrow.parquet", "bulk").write_table(table, file, compression="zstd")


def _read_parquet(spec: JobSpec, first: int, content: bytes) -> ShardRows:
    arrow, parquet = needed("pyarrow", "bulk"), needed("pyarrow.parquet", "bulk")
    try:
        # No threads of Arrow: one that lets go of the bytes while Python is finalized would abort the process.
        table = parquet.ParquetFile(arrow.BufferReader(content)).read(use_threads=False)
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        samples = columns["sample"].flatten().to_numpy().reshape(-1, *spec.shape)
        condition = columns.get("condition")
        if condition is not None:
            wide = arrow.types.is_fixed_size_list(condition.type)
            flat = condition.flatten().to_numpy().reshape(len(table), -1) if wide else None
            condition = condition.to_numpy(zero_copy_only=False) if flat is None else flat
        index = columns["index"].to_numpy()
        begin = spec.first_index + first
        if not np.array_equal(index, np.arange(begin, begin + len(index))):
            raise ValueError("holds rows of another shard")
        return ShardRows(first, samples, columns["nfe"].to_numpy(), None, condition)
    except KeyError as error:
        raise ValueError(f"lacks the column {error}") from None
    except (arrow.ArrowException, OSError) as error:  # an OSError for most kinds of damage
        raise ValueError(one_line(error)) from None


FORMATS: dict[str, tuple[Callable[..., None], Callable[..., ShardRows]]] = {
    "npy": (_write_npy, _read_npy),
    "parquet": (_write_parquet, _read_parquet),
}
"""Formats with one file per shard, whose suffix is the format's name.

Functions that write a shard, and that read one, its first row known; the latter raise a ValueError if it is damaged.
"""


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
        for name in unfinished:
            with contextlib.suppress(OSError):
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
            raise BulkConflict(f"{self.address}/{_JOB}: is not a job of this release: {one_line(error)}") from None

    def conditions(self, spec: JobSpec) -> RowConditions:
        """Return the job's table or arrays of conditions.

        Raises:
            BulkConflict: They differ from those that the job began with.
            OSError: They cannot be read.
        """
        if not spec.table:
            return Arrays({name: self._array(name, digest) for name, digest in spec.arrays.items()}, spec.total)
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

    def create(self, spec: JobSpec, conditions: RowConditions) -> None:
        """Create a job in this folder; the spec is written last. Raise an OSError if that is not possible."""
        if isinstance(conditions, ConditionCounts):
            members = {"condition": list(conditions.conditions), "count": list(conditions.counts)}
            self._write_json(_CONDITIONS, members)
        else:
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
        write, _ = FORMATS[spec.format]
        self.store.write(f"shards/{shard:05d}.{spec.format}", lambda file: write(spec, rows, file))

    def rows(self, spec: JobSpec, shard: int) -> ShardRows:
        """Read the rows of a shard.

        Raises:
            ValueError: They are damaged.
            OSError: They cannot be read.
        """
        [content] = self.store.read([f"shards/{shard:05d}.{spec.format}"])
        _, read = FORMATS[spec.format]
        return read(spec, spec.range(shard)[0], content)

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
        folder, spec: The job and its folder.
        tries: Attempts at a shard before it is given up.
        mine: Numbers of the call's shards; all by default.

    Attributes:
        rows, done: Rows of the call's shards, and how many of them are done already.
        failed: Shards that were given up, and why.
        stopped: Set to end the call after what its workers are making.

    Raises:
        OSError: The folder cannot be read.
    """

    def __init__(self, folder: Folder, spec: JobSpec, tries: int, mine: Iterable[int] | None = None) -> None:
        shards = set(range(spec.shards) if mine is None else mine)
        self.folder, self.spec, self._tries = folder, spec, tries
        self._unfinished = folder.store.unfinished()  # of writers that died; others may write here from now on
        self._waiting = deque(sorted(shards - folder.done()))
        self._tried: dict[int, int] = {}
        self.failed: dict[int, str] = {}
        self.stopped = False
        self.rows = sum(spec.range(shard)[1] for shard in shards)
        self.done = self.rows - sum(spec.range(shard)[1] for shard in self._waiting)

    def take(self) -> int | None:
        """Return the next shard to make; None if there is none, or the call was stopped."""
        with contextlib.suppress(IndexError):  # another thread took the last
            return None if self.stopped else self._waiting.popleft()
        return None

    def stop(self) -> None:
        """Hand out no more shards."""
        self.stopped = True

    def retry(self, shard: int, reason: str) -> None:
        """Put a shard that failed behind the others, or give it up; raise an OSError if that cannot be recorded."""
        self._tried[shard] = self._tried.get(shard, 0) + 1
        if self._tried[shard] < self._tries:
            self._waiting.append(shard)
            return
        self.failed[shard] = reason
        self.folder.note_failure(shard, reason, self._tries)

    def left(self) -> int:
        """Return the number of shards without a receipt, of other calls too; at 0, what dead writers left is removed.

        Raises:
            OSError: The folder cannot be read.
        """
        left = self.spec.shards - len(self.folder.done())
        if not left:
            self.folder.store.clear(self._unfinished)
        return left


def _misplaced(spec: JobSpec, receipt: Receipt) -> str:
    """Return why a receipt does not belong to its shard of the job, or an empty string."""
    if receipt.shard >= spec.shards:
        return f"the job has only {spec.shards} shards"
    if receipt.job != spec.digest:
        return "its receipt belongs to another job"
    if (receipt.first, receipt.rows) != spec.range(receipt.shard):
        return f"its receipt is for {receipt.rows} rows from {receipt.first}, which belong to other shards"
    return ""
