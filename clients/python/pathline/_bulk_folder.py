"""The folder of a bulk job, laid out as by `python -m fleet sample`, so that its `verify` and `export` can read it.

job.json, conditions.json      the spec, and the table of conditions
arrays/conditions.text.npy     an array of named conditions
shards/00000.npy               rows
receipts/00000.json            the shard is done: its rows, NFE and fingerprint
failed/00000.json              the shard was given up, and why
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from pathline._files import replacing
from pathline._plot import needed
from pathline.errors import BulkConflict

BLOCK = 64
"""Rows hashed together; shards start at multiples of it."""

FORMATS = ("npy", "parquet")

_MODULUS = 1 << 256
_JOB, _CONDITIONS, _ARRAYS = "job.json", "conditions.json", "arrays"
_BEFORE_JOB = {_CONDITIONS, _ARRAYS, "shards", "receipts"}
"""What a job that was stopped before it began may leave behind."""

_PIECE_BYTES = 16 << 20  # read at a time


@dataclass(frozen=True)
class Rows:
    """Rows of a shard.

    Attributes:
        first: Number of the first row, counted from the start of the job.
        samples: Shape (rows, *shape).
        nfe: Velocity evaluations of each row, shape (rows,), int32.
        status: Final status of each row, shape (rows,), strings.
        condition: Labels (rows,) or vectors (rows, width) of a table of conditions, or None.
    """

    first: int
    samples: np.ndarray
    nfe: np.ndarray
    status: np.ndarray
    condition: np.ndarray | None = None


def digest_of(content: Any) -> str:
    """Return the SHA-256 of plain data, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def fingerprint(first: int, samples: np.ndarray) -> str:
    """Return the fingerprint of consecutive rows: the sum of the hashes of their blocks, modulo 2**256.

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


def together(parts: Iterable[str]) -> str:
    """Return the fingerprint of all rows from those of the shards, in any order."""
    return f"{sum(int(part, 16) for part in parts) % _MODULUS:064x}"


def shard_range(spec: Mapping[str, Any], shard: int) -> tuple[int, int]:
    """Return the first row of a shard, counted from the start of the job, and its number of rows."""
    first = shard * spec["shard_rows"]
    return first, min(spec["shard_rows"], spec["total"] - first)


class Folder:
    """The folder of one job.

    Args:
        path: Its path; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def spec(self) -> dict[str, Any] | None:
        """Return the spec of the job in this folder; None if the folder is empty or missing.

        Raises:
            BulkConflict: The folder holds something other than a client's job.
            OSError: It cannot be read.
        """
        try:
            found = json.loads((self.path / _JOB).read_bytes())
        except FileNotFoundError:
            if self.path.exists() and {each.name for each in self.path.iterdir()} - _BEFORE_JOB:
                raise BulkConflict(
                    f"{self.path} is not empty and holds no job; choose an empty or new folder"
                ) from None
            return None
        except ValueError as error:
            raise BulkConflict(f"{self.path / _JOB} is damaged ({error}); choose a new folder") from None
        if not isinstance(found, dict) or found.get("bulk") != 1 or found.get("threads") != 0:
            raise BulkConflict(
                f"{self.path} holds a job of another release or of `python -m fleet sample`; "
                "resume it with the program that began it, or choose a new folder"
            )
        return found

    def conditions(self, spec: Mapping[str, Any]) -> Table | None:
        """Return the table of conditions of a job, if it has one.

        Raises:
            BulkConflict: It differs from the one that the job began with.
            OSError: It cannot be read.
        """
        if not spec["table"]:
            return None
        found = json.loads((self.path / _CONDITIONS).read_bytes())
        table = Table(found["condition"], found["count"])
        if table.digest != spec["table"]:
            raise BulkConflict(f"{self.path / _CONDITIONS} was changed after the job began; restore it")
        return table

    def arrays(self, spec: Mapping[str, Any]) -> Arrays:
        """Return the arrays of named conditions of a job.

        Raises:
            BulkConflict: One differs from the one that the job began with.
            OSError: One cannot be read.
        """
        found = {}
        for name, digest in spec["arrays"].items():
            path = self.path / _ARRAYS / f"{name}.npy"
            try:
                found[name] = np.load(path, mmap_mode="r", allow_pickle=False)
                same = digest_of_array(found[name]) == digest
            except ValueError:
                same = False
            if not same:
                raise BulkConflict(f"{path} was changed after the job began; restore it")
        return Arrays(found)

    def create(self, spec: Mapping[str, Any], table: Table | None, arrays: Arrays) -> None:
        """Create a job; the spec is written last. Raise an OSError if that is not possible."""
        for name in ("shards", "receipts"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        if table is not None:
            self._json((_CONDITIONS,), {"condition": table.conditions, "count": table.counts})
        for name, array in arrays.sources.items():
            (self.path / _ARRAYS).mkdir(exist_ok=True)
            with replacing(self.path / _ARRAYS / f"{name}.npy") as file:
                header = {"descr": _little(array).str, "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(file, header)
                for part in _parts(array):
                    file.write(part.tobytes())
        self._json((_JOB,), spec)

    def done(self) -> set[int]:
        """Return the shards that have receipts; raise an OSError if they cannot be listed."""
        names = [path.stem for path in (self.path / "receipts").glob("*.json")]
        return {int(name) for name in names if name.isdecimal()}

    def receipts(self) -> list[dict[str, Any]]:
        """Return all receipts.

        Raises:
            BulkConflict: One is damaged.
            OSError: One cannot be read.
        """
        found = []
        for shard in sorted(self.done()):
            path = self.path / "receipts" / f"{shard:05d}.json"
            try:
                found.append(json.loads(path.read_bytes()))
            except ValueError:
                raise BulkConflict(f"{path} is damaged; delete it to remake the shard") from None
        return found

    def commit(self, spec: Mapping[str, Any], shard: int, rows: Rows, deterministic: bool, seconds: float) -> None:
        """Store a shard, and then its receipt; raise an OSError if that is not possible."""
        with replacing(self.path / "shards" / f"{shard:05d}.{spec['format']}") as file:
            if spec["format"] == "npy":
                np.lib.format.write_array(file, rows.samples, allow_pickle=False)
            else:
                _write_parquet(spec, rows, file)
        ended, counts = np.unique(rows.status, return_counts=True)
        receipt = {
            "job": digest_of(spec),
            "shard": shard,
            "first": rows.first,
            "rows": len(rows.samples),
            "nfe": int(rows.nfe.sum(dtype=np.int64)),
            "status": dict(zip(ended.tolist(), counts.tolist(), strict=True)),
            "failed": (rows.first + np.flatnonzero(rows.status != "success")).tolist(),
            "fingerprint": fingerprint(rows.first, rows.samples),
            "deterministic": deterministic,
            "seconds": seconds,
        }
        self._json(("receipts", f"{shard:05d}.json"), receipt)
        (self.path / "failed" / f"{shard:05d}.json").unlink(missing_ok=True)

    def note_failure(self, shard: int, reason: str, tries: int) -> None:
        """Record that a shard could not be made; raise an OSError if that is not possible."""
        (self.path / "failed").mkdir(exist_ok=True)
        self._json(("failed", f"{shard:05d}.json"), {"shard": shard, "error": reason, "tries": tries})

    def clear(self) -> None:
        """Remove temporary files left by writers that died."""
        for part in self.path.rglob(".*.part"):
            with contextlib.suppress(OSError):
                part.unlink()

    def _json(self, place: tuple[str, ...], content: Mapping[str, Any]) -> None:
        with replacing(self.path.joinpath(*place)) as file:
            file.write(json.dumps(content, indent=2 if place == (_JOB,) else None, allow_nan=False).encode())


@dataclass(frozen=True)
class Table:
    """Conditions in the order of their samples, and the number of samples to draw for each."""

    conditions: list[Any]
    counts: list[int]

    @property
    def total(self) -> int:
        """The number of samples."""
        return sum(self.counts)

    @property
    def digest(self) -> str:
        """SHA-256 of the table."""
        return digest_of([self.conditions, self.counts])

    def of(self, first: int, rows: int) -> list[Any]:
        """Return the conditions of consecutive rows, one each."""
        places = np.searchsorted(np.cumsum(self.counts), np.arange(first, first + rows), side="right")
        return [self.conditions[place] for place in places.tolist()]


@dataclass(frozen=True)
class Arrays:
    """Named conditions of the samples of a job, by ``conditions.NAME`` and ``negative.NAME``.

    Attributes:
        sources: Shape (1, *shape) for all samples, or (samples, *shape).
    """

    sources: Mapping[str, np.ndarray]

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each array: of its dtype, shape and values."""
        return {name: digest_of_array(array) for name, array in self.sources.items()}

    @property
    def row_bytes(self) -> int:
        """Bytes of the values that differ from sample to sample, for one of them."""
        return sum(array[0].nbytes for array in self.sources.values() if len(array) > 1)

    def of(self, first: int, rows: int) -> dict[str, dict[str, np.ndarray]]:
        """Return the options of `sample` that hold the conditions of consecutive samples."""
        found: dict[str, dict[str, np.ndarray]] = {}
        for key, array in self.sources.items():
            option, _, name = key.partition(".")
            part = array[0:1].reshape(array.shape[1:]) if len(array) == 1 else array[first : first + rows]
            found.setdefault(option, {})[name] = np.asarray(part)
        return found


def digest_of_array(array: np.ndarray) -> str:
    """Return the SHA-256 of the dtype, the shape and the values of an array."""
    found = hashlib.sha256(json.dumps([_little(array).str, list(array.shape)]).encode())
    for part in _parts(array):
        found.update(part.tobytes())
    return found.hexdigest()


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    rows = max(1, _PIECE_BYTES // max(1, array[0].nbytes))
    for first in range(0, len(array), rows):
        yield np.ascontiguousarray(array[first : first + rows], _little(array))


def _little(array: np.ndarray) -> np.dtype[Any]:
    return array.dtype.newbyteorder("<")


def _write_parquet(spec: Mapping[str, Any], rows: Rows, file: IO[bytes]) -> None:
    arrow, parquet = needed("pyarrow", "bulk"), needed("pyarrow.parquet", "bulk")

    def lists(found: np.ndarray) -> Any:
        flat = found.reshape(len(found), -1)
        return arrow.FixedSizeListArray.from_arrays(arrow.array(flat.reshape(-1)), flat.shape[1])

    first = spec["first_index"] + rows.first
    columns = {
        "index": arrow.array(np.arange(first, first + len(rows.samples), dtype=np.int64)),
        "sample": lists(rows.samples),
        "nfe": arrow.array(rows.nfe),
        "status": arrow.array(rows.status.astype(object), arrow.string()).dictionary_encode(),
    }
    if rows.condition is not None:
        given = rows.condition
        columns["condition"] = arrow.array(given) if given.ndim == 1 else lists(given)
    metadata = {name: spec[name] for name in ("shape", "model", "version", "seed")} | {"job": digest_of(spec)}
    table = arrow.table(columns).replace_schema_metadata({"pathline": json.dumps(metadata)})
    parquet.write_table(table, file, compression="zstd")
