"""The target of a bulk job: a folder at any address that fsspec supports, and its files.

job.json, conditions.json      the spec, and its table of conditions
arrays/conditions.text.npy     an array of named conditions
shards/00000.parquet           the rows (or samples.zarr, one array)
receipts/00000.json            a shard is done: its rows, NFE and fingerprint
failed/00000.json              a shard that could not be made, and why
tmp/                           being written
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fleet.bulk.arrays import Arrays, StoredArray, digest_of_array, write
from fleet.bulk.conditions import Given, Table
from fleet.bulk.fingerprint import fingerprint
from fleet.bulk.formats import Rows, Stored, ZarrArray, file_format
from fleet.bulk.spec import JobSpec
from fleet.errors import FleetError, TargetError, UsageError, missing

_JOB, _CONDITIONS, _ARRAYS = "job.json", "conditions.json", "arrays"
_BEFORE_JOB = {_CONDITIONS, _ARRAYS, "tmp"}
"""What a job that was stopped before it began may leave behind."""

_CHANGED = "was changed after the job began; restore it"
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "obs"}
"""Protocols of stores without folders, where creating one may create a bucket."""

_ADVICE = {
    "read": "check the address and your permissions",
    "write": "make room, or allow writing, and run this again; finished shards are kept",
}

_AT_ONCE = 1000
"""Receipts read at a time."""


class Receipt(BaseModel):
    """The proof that a shard is done.

    Attributes:
        job: digest of the spec.
        shard, first, rows: which rows of the job.
        nfe: network evaluations of all rows.
        status: number of samples by final status.
        failed: numbers of the rows that did not succeed, counted from the start of the job.
        fingerprint: of the samples (see `fleet.bulk.fingerprint`).
        deterministic: whether the worker's bits depend on the spec alone.
        seconds: time taken to make it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: str
    shard: int
    first: int
    rows: int
    nfe: int
    status: dict[str, int]
    failed: list[int]
    fingerprint: str
    deterministic: bool
    seconds: float

    @classmethod
    def of(cls, spec: JobSpec, shard: int, rows: Rows, deterministic: bool, seconds: float) -> Receipt:
        """Return the receipt for rows that were made."""
        ended, counts = _counted(rows.status)
        return cls(
            job=spec.digest,
            shard=shard,
            first=rows.first,
            rows=len(rows.samples),
            nfe=int(rows.nfe.sum(dtype="int64")),
            status=dict(zip(ended, counts, strict=True)),
            failed=[] if ended == ["success"] else (rows.first + (rows.status != "success").nonzero()[0]).tolist(),
            fingerprint=fingerprint(rows.first, rows.samples),
            deterministic=deterministic,
            seconds=seconds,
        )


def _counted(status: Any) -> tuple[list[str], list[int]]:
    import numpy as np

    ended, counts = np.unique(status, return_counts=True)
    return ended.tolist(), counts.tolist()


class Target:
    """The folder of one job.

    Attributes:
        url: its address.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Open an address; nothing is read yet.

        Args:
            url: a path, or an address such as s3://bucket/folder.
            options: file system options, as fsspec takes them.

        Raises:
            UsageError: no file system is available for the address.
        """
        try:
            import fsspec
            import fsspec.core
        except ImportError as error:
            raise missing("fleet", error) from None
        self.url, self.options = url, dict(options or {})
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, **self.options)
        except (ValueError, ImportError) as error:
            raise UsageError(f"{url}: {error}") from None

    @property
    def in_memory(self) -> bool:
        """Whether it is in this process's memory, where no other worker can read it."""
        return "memory" in self._protocols

    @property
    def _protocols(self) -> tuple[str, ...]:
        found = self._fs.protocol
        return (found,) if isinstance(found, str) else tuple(found)

    def _at(self, *names: str) -> str:
        return "/".join((self._root.rstrip("/"), *names))

    def spec(self) -> JobSpec | None:
        """Return the spec of the job in this folder; None if the folder is empty or missing.

        Raises:
            UsageError: the folder holds something else.
            TargetError: the folder cannot be read.
        """
        with self._reaching("read"):
            self._fs.invalidate_cache()
            if self._fs.exists(self._at(_JOB)):
                content = self._fs.cat_file(self._at(_JOB))
            elif set(self._names("")) - _BEFORE_JOB:
                raise UsageError(f"{self.url}: is not empty and holds no job; choose an empty or new folder")
            else:
                return None
        try:
            return JobSpec.model_validate_json(content)
        except ValidationError as error:
            raise UsageError(f"{self.url}/{_JOB}: is not a job of this release: {error.errors()[0]['msg']}") from None

    def given(self, spec: JobSpec) -> Given | None:
        """Return the job's table or arrays of conditions, if it has any.

        Raises:
            UsageError: they differ from those in the spec.
            TargetError: they cannot be read.
        """
        if spec.arrays:
            return self._arrays(spec)
        if not spec.table:
            return None
        with self._reaching("read"):
            found = Table.from_json(self._fs.cat_file(self._at(_CONDITIONS)))
        if found.digest != spec.table:
            raise UsageError(f"{self.url}/{_CONDITIONS}: {_CHANGED}")
        return found

    def _arrays(self, spec: JobSpec) -> Arrays:
        sources: dict[str, StoredArray] = {}
        for name, digest in spec.arrays.items():
            place = self._at(_ARRAYS, f"{name}.npy")
            with self._reaching("read"):
                try:
                    sources[name] = StoredArray(lambda place=place: self._fs.open(place, "rb"))
                    same = digest_of_array(sources[name]) == digest
                except ValueError:
                    same = False
            if not same:
                raise UsageError(f"{self.url}/{_ARRAYS}/{name}.npy: {_CHANGED}")
        return Arrays(sources, spec.total)

    def create(self, spec: JobSpec, given: Given | None) -> None:
        """Create a job in this folder; the spec is written last.

        Raises:
            TargetError: the folder cannot be written.
        """
        with self._reaching("write"):
            if isinstance(given, Table):
                self._put((_CONDITIONS,), lambda file: file.write(given.to_json()))
            elif isinstance(given, Arrays):
                for name, source in given.sources.items():
                    self._put((_ARRAYS, f"{name}.npy"), lambda file, source=source: write(source, file))
            if spec.format == "zarr":
                self._zarr().create(spec)
            self._put((_JOB,), lambda file: file.write(spec.model_dump_json(indent=2).encode()))

    def done(self) -> set[int]:
        """Return the shards that have receipts; raise a TargetError if the folder cannot be read."""
        return self._numbers("receipts")

    def receipts(self, shards: set[int]) -> Iterator[Receipt]:
        """Read receipts in order; raise a TargetError if they cannot be read, a FleetError if one is damaged."""
        ordered = sorted(shards)
        for begin in range(0, len(ordered), _AT_ONCE):
            names = [self._at("receipts", f"{shard:05d}.json") for shard in ordered[begin : begin + _AT_ONCE]]
            with self._reaching("read"):
                found = self._fs.cat(names)
            for name in names:
                content = found[name] if isinstance(found, dict) else found
                try:
                    yield Receipt.model_validate_json(content)
                except ValidationError:
                    raise FleetError(f"{name}: is damaged; delete it to remake the shard") from None

    def stored(self) -> set[int]:
        """Return the shards that have files, with or without receipts; all of them if they share one array."""
        return self._numbers("shards")

    def commit(self, spec: JobSpec, rows: Rows, receipt: Receipt) -> None:
        """Store a shard under a temporary name, move it into place, and only then write its receipt.

        Raises:
            TargetError: the folder cannot be written.
        """
        written = file_format(spec.format)
        with self._reaching("write"):
            if written is None:
                self._zarr().write(rows)
            else:
                name = f"{receipt.shard:05d}.{written.suffix}"
                self._put(("shards", name), lambda file: written.write(spec, rows, file))
            self._put_json("receipts", receipt.shard, receipt.model_dump())
            self._remove_failure(receipt.shard)

    def read(self, spec: JobSpec, shard: int) -> Stored:
        """Read the rows of a shard.

        Raises:
            TargetError: it cannot be read.
            ValueError: it is damaged.
        """
        with self._reaching("read"):
            written = file_format(spec.format)
            if written is None:
                return self._zarr().read(spec, shard)
            content = self._fs.cat_file(self._at("shards", f"{shard:05d}.{written.suffix}"))
        return written.read(spec, content)

    def note_failure(self, shard: int, error: str, tries: int) -> None:
        """Record that a shard could not be made; raise a TargetError as in `commit`."""
        with self._reaching("write"):
            self._put_json("failed", shard, {"shard": shard, "error": error, "tries": tries})

    def clear(self) -> None:
        """Remove the temporary files of dead writers; call it only when nothing is being written."""
        with contextlib.suppress(OSError):
            if self._fs.exists(self._at("tmp")):
                self._fs.rm(self._at("tmp"), recursive=True)

    def _zarr(self) -> ZarrArray:
        return ZarrArray(self.url, self.options)

    def _names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()  # others write here too
        try:
            return [found.rstrip("/").rsplit("/", 1)[-1] for found in self._fs.ls(self._at(folder), detail=False)]
        except FileNotFoundError:
            return []

    def _numbers(self, folder: str) -> set[int]:
        with self._reaching("read"):
            stems = [name.partition(".")[0] for name in self._names(folder)]
        return {int(stem) for stem in stems if stem.isascii() and stem.isdigit()}

    def _put_json(self, folder: str, shard: int, content: Mapping[str, Any]) -> None:
        self._put((folder, f"{shard:05d}.json"), lambda file: file.write(json.dumps(content).encode()))

    def _put(self, place: tuple[str, ...], write: Callable[[BinaryIO], object]) -> None:
        """Write a file atomically."""
        written, final = self._at("tmp", uuid.uuid4().hex), self._at(*place)
        if not _OBJECT_STORES & set(self._protocols):
            for folder in (self._at("tmp"), self._at(*place[:-1])):
                self._fs.makedirs(folder, exist_ok=True)
        try:
            with self._fs.open(written, "wb") as file:
                write(file)
                if "file" in self._protocols:
                    file.flush()
                    os.fsync(file.fileno())
            self._fs.mv(written, final)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm(written)
            raise

    def _remove_failure(self, shard: int) -> None:
        name = self._at("failed", f"{shard:05d}.json")
        if self._fs.exists(name):
            self._fs.rm(name)

    @contextmanager
    def _reaching(self, what: Literal["read", "write"]) -> Iterator[None]:
        """Turn file system exceptions into one-line errors."""
        try:
            yield
        except (FleetError, ValidationError, ValueError):
            raise
        except Exception as error:  # each store has its own exceptions
            reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
            advice = _ADVICE[what]
            raise TargetError(f"{self.url}: cannot {what}: {reason}; {advice}") from error
