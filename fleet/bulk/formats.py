"""File formats of shards: Parquet, npy and Zarr."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.bulk.spec import Format, JobSpec
from fleet.errors import FleetError, missing


@dataclass(frozen=True)
class Rows:
    """Rows of a job.

    Attributes:
        first: number of the first row, counted from the start of the job.
        samples: (rows, *shape).
        nfe: (rows,) int32 network evaluations.
        status: (rows,) final statuses, usually `success`.
        condition: (rows,) labels or (rows, width) vectors, or None.
    """

    first: int
    samples: NDArray[np.floating[Any]]
    nfe: NDArray[np.int32]
    status: NDArray[np.str_]
    condition: NDArray[Any] | None = None


@dataclass(frozen=True)
class Stored:
    """The content of a shard's file; None for columns that the format does not store.

    Attributes:
        samples: (rows, *shape).
        index, nfe: (rows,) or None.
        condition: (rows,) or (rows, width), or None.
    """

    samples: NDArray[np.floating[Any]]
    index: NDArray[np.int64] | None = None
    nfe: NDArray[np.int32] | None = None
    condition: NDArray[Any] | None = None


class FileFormat(Protocol):
    """A format with one file per shard."""

    suffix: str

    def write(self, spec: JobSpec, rows: Rows, file: BinaryIO) -> None:
        """Write a shard."""
        ...

    def read(self, spec: JobSpec, content: bytes) -> Stored:
        """Read a shard; raise a ValueError if it is damaged."""
        ...


class Npy:
    """NumPy's format: the samples only. The receipt records how they ended."""

    suffix = "npy"

    def write(self, spec: JobSpec, rows: Rows, file: BinaryIO) -> None:
        """Write a shard."""
        np.lib.format.write_array(file, rows.samples, allow_pickle=False)

    def read(self, spec: JobSpec, content: bytes) -> Stored:
        """Read a shard; raise a ValueError if it is damaged."""
        try:
            return Stored(np.load(io.BytesIO(content), allow_pickle=False))
        except EOFError as error:
            raise ValueError(str(error)) from None


class Parquet:
    """Apache Parquet: one row per sample, with its index in the seed, NFE, status and condition."""

    suffix = "parquet"

    def __init__(self) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise missing("fleet", error) from None
        self._arrow, self._parquet = pyarrow, pyarrow.parquet

    def _lists(self, rows: NDArray[Any]) -> Any:
        arrow = self._arrow
        flat = rows.reshape(len(rows), -1)
        return arrow.FixedSizeListArray.from_arrays(arrow.array(flat.reshape(-1)), flat.shape[1])

    def write(self, spec: JobSpec, rows: Rows, file: BinaryIO) -> None:
        """Write a shard."""
        arrow, first = self._arrow, spec.first_index + rows.first
        columns: dict[str, Any] = {
            "index": arrow.array(np.arange(first, first + len(rows.samples), dtype=np.int64)),
            "sample": self._lists(rows.samples),
            "nfe": arrow.array(rows.nfe),
            "status": arrow.array(rows.status.astype(object), arrow.string()).dictionary_encode(),
        }
        if rows.condition is not None:
            given = rows.condition
            columns["condition"] = arrow.array(given) if given.ndim == 1 else self._lists(given)
        metadata = {"shape": spec.shape, "model": spec.model, "version": spec.version, "seed": spec.seed}
        table = arrow.table(columns).replace_schema_metadata({"pathline": json.dumps(metadata | {"job": spec.digest})})
        self._parquet.write_table(table, file, compression="zstd")

    def read(self, spec: JobSpec, content: bytes) -> Stored:
        """Read a shard; raise a ValueError if it is damaged."""
        try:
            table = self._parquet.read_table(self._arrow.BufferReader(content))
            columns = {name: table[name].combine_chunks() for name in table.column_names}
            samples = columns["sample"].flatten().to_numpy().reshape(-1, *spec.shape)
            given = columns.get("condition")
            if given is not None:
                wide = self._arrow.types.is_fixed_size_list(given.type)
                given = given.flatten().to_numpy().reshape(len(table), -1) if wide else given.to_numpy()
            return Stored(samples, columns["index"].to_numpy(), columns["nfe"].to_numpy(), given)
        except KeyError as error:
            raise ValueError(f"lacks the column {error}") from None
        except self._arrow.ArrowException as error:
            raise ValueError(str(error).splitlines()[0]) from None


def file_format(name: Format) -> FileFormat | None:
    """Return the format of shards that are files; None for Zarr, which has one array for all shards.

    Raises:
        FleetError: its library is not installed.
    """
    if name == "zarr":
        return None
    return Npy() if name == "npy" else Parquet()


class ZarrArray:
    """One Zarr array for all samples; each shard is a chunk, and so an object that is written whole."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        try:
            import zarr
        except ImportError as error:
            raise FleetError(f"{error.name or error} is not installed; pip install zarr") from None
        self._zarr, self._store = zarr, f"{url.rstrip('/')}/samples.zarr"
        self._options = {"storage_options": dict(options)} if "://" in url else {}

    def create(self, spec: JobSpec) -> None:
        """Write the array's metadata."""
        self._zarr.create_array(
            self._store,
            shape=(spec.total, *spec.shape),
            chunks=(spec.shard_rows, *spec.shape),
            dtype=spec.dtype,
            overwrite=False,
            attributes={"model": spec.model, "version": spec.version, "seed": spec.seed, "job": spec.digest},
            **self._options,
        )

    def write(self, rows: Rows) -> None:
        """Write a shard."""
        array = self._zarr.open_array(self._store, mode="r+", **self._options)
        array[rows.first : rows.first + len(rows.samples)] = rows.samples

    def read(self, spec: JobSpec, shard: int) -> Stored:
        """Read a shard."""
        array = self._zarr.open_array(self._store, mode="r", **self._options)
        first, rows = spec.range(shard)
        return Stored(np.asarray(array[first : first + rows]))
