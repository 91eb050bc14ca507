"""The folder of a bulk job at any address that fsspec supports; `pathline.bulk_folder` defines what it holds."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Literal

import numpy as np
from pathline._bulk_spec import JobSpec, ShardRows
from pathline.bulk_folder import Folder, JobStore
from pathline.errors import BulkConflict

from fleet.errors import CommandError, FleetError, TargetError, missing

FORMATS = ("parquet", "npy", "zarr")
"""Formats of shards, the default first."""

_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "obs"}
"""Protocols of stores without folders, where creating one may create a bucket."""

_ADVICE = {
    "read": "check the address and your permissions",
    "write": "make room, or allow writing, and run this again; finished shards are kept",
}


class FsspecStore(JobStore):
    """Files at an address of fsspec.

    Of fsspec's calls, only those are used here that take a name as it is: `cat`, `rm`, `mv` and `copy` of most file
    systems expand patterns, and a folder may be called ``run[1]``.

    Args:
        url: a path, or an address such as s3://bucket/folder.
        options: file system options, as fsspec takes them.

    Attributes:
        in_memory: whether it is in this process's memory, where no other worker can read it.

    Raises:
        CommandError: no file system is available for the address.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        try:
            import fsspec
            import fsspec.core
        except ImportError as error:
            raise missing("fleet", error) from None
        self.address, self.options = url, dict(options or {})
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, **self.options)
        except (ValueError, ImportError) as error:
            raise CommandError(f"{url}: {error}") from None
        protocol = self._fs.protocol
        protocols = {protocol} if isinstance(protocol, str) else set(protocol)
        self.in_memory, self._local = "memory" in protocols, "file" in protocols
        self._has_folders = not _OBJECT_STORES & protocols

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}".rstrip("/")

    def names(self, folder: str) -> list[str]:
        with self.reaching("read"):
            self._fs.invalidate_cache()  # others write here too
            try:
                return [path.rstrip("/").rsplit("/", 1)[-1] for path in self._fs.ls(self._at(folder), detail=False)]
            except FileNotFoundError:
                return []

    def read(self, names: Sequence[str]) -> list[bytes]:
        with self.reaching("read"):
            return self._fs.cat_ranges([self._at(name) for name in names], None, None, on_error="raise")

    def open(self, name: str) -> IO[bytes]:
        with self.reaching("read"):
            return self._fs.open(self._at(name), "rb")

    def state(self, name: str) -> object:
        with self.reaching("read"):
            try:
                return self._fs.ukey(self._at(name))
            except FileNotFoundError:
                return None

    def write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        written, final = self._at(f"tmp/{uuid.uuid4().hex}"), self._at(name)
        with self.reaching("write"):
            if self._has_folders:
                for path in (written, final):
                    self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            try:
                with self._fs.open(written, "wb") as file:
                    write(file)
                    if self._local:
                        file.flush()
                        os.fsync(file.fileno())
                if self._local:
                    self._fs.mv(written, final)  # (it expands no pattern)
                else:
                    self._fs.cp_file(written, final)
                    self._fs.rm_file(written)
            except BaseException:
                with contextlib.suppress(Exception):
                    self._fs.rm_file(written)
                raise

    def remove(self, name: str) -> None:
        with self.reaching("write"), contextlib.suppress(FileNotFoundError):
            if self._fs.exists(self._at(name)):
                self._fs.rm_file(self._at(name))

    def unfinished(self) -> list[str]:
        return [f"tmp/{name}" for name in self.names("tmp")]

    def clear(self, unfinished: Sequence[str]) -> None:
        with contextlib.suppress(TargetError):
            super().clear(unfinished)
        with contextlib.suppress(OSError):
            if self._has_folders:
                self._fs.rmdir(self._at("tmp"))  # not if another call writes

    @contextmanager
    def reaching(self, what: Literal["read", "write"]) -> Iterator[None]:
        """Turn file system exceptions into one-line errors."""
        try:
            yield
        except Exception as error:  # each store has its own exceptions
            absent = isinstance(error, FileNotFoundError) and what == "read"
            if absent or isinstance(error, FleetError | ValueError):
                raise
            reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
            raise TargetError(f"{self.address}: cannot {what}: {reason}; {_ADVICE[what]}") from error


class Target(Folder):
    """The folder of one job at an address; its shards may also be one Zarr array.

    Args:
        url, options: as of `FsspecStore`.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self.store: FsspecStore = FsspecStore(url, options)

    def job(self) -> JobSpec:
        """Return the spec of the job in this folder.

        Raises:
            BulkConflict: it holds none.
            TargetError: it cannot be read.
        """
        if (spec := self.spec()) is None:
            raise BulkConflict(f"{self.address}: holds no job; check the address")
        return spec

    def prepare(self, spec: JobSpec) -> None:
        """Create the Zarr array, if that is the format; raise a TargetError if that is not possible."""
        if spec.format != "zarr":
            return
        with self.store.reaching("write"):
            self._zarr().create_array(
                **self._place(),
                shape=(spec.total, *spec.shape),
                chunks=(spec.shard_rows, *spec.shape),  # a chunk is written whole
                dtype=spec.dtype,
                overwrite=False,
                attributes={"model": spec.model, "version": spec.version, "seed": spec.seed, "job": spec.digest},
            )

    def write_rows(self, spec: JobSpec, shard: int, rows: ShardRows) -> None:
        """Store the rows of a shard; raise a TargetError if that is not possible."""
        if spec.format != "zarr":
            super().write_rows(spec, shard, rows)
            return
        with self.store.reaching("write"):
            array = self._zarr().open_array(mode="r+", **self._place())
            array[rows.first : rows.first + len(rows.samples)] = rows.samples

    def rows(self, spec: JobSpec, shard: int) -> ShardRows:
        """Read the rows of a shard.

        Raises:
            ValueError: they are damaged.
            FileNotFoundError: their file is missing.
            TargetError: they cannot be read.
        """
        if spec.format != "zarr":
            return super().rows(spec, shard)
        first, count = spec.range(shard)
        with self.store.reaching("read"):
            array = self._zarr().open_array(mode="r", **self._place())
            return ShardRows(first, np.asarray(array[first : first + count]))

    def _zarr(self) -> Any:
        try:
            import zarr
        except ImportError as error:
            raise FleetError(f"{error.name or error} is not installed; pip install zarr") from None
        return zarr

    def _place(self) -> dict[str, Any]:
        url = self.address
        options = {"storage_options": self.store.options} if "://" in url else {}
        return {"store": f"{url.rstrip('/')}/samples.zarr", **options}
