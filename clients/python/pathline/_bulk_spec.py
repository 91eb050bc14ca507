"""What a bulk job is: the spec that determines its rows, and the receipts that prove them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pathline._fields import FIELDS as REQUEST_FIELDS
from pathline._response import printable
from pathline._typed import parsed, typed
from pathline.errors import BulkConflict, InvalidValue, ProtocolError

D = TypeVar("D", "JobSpec", "Receipt")

BLOCK = 64
"""Rows hashed together; shards start at multiples of it."""

FIELDS = tuple(name for name, field in REQUEST_FIELDS.items() if field.bulk)
"""Fields of a sample request that a job may set; the others belong to the job itself or do not apply."""

_MODULUS = 1 << 256
_SHARD_S = 120.0  # a crash loses no more of a worker's time
_MAX_BYTES = 512 << 20  # of a shard's samples; writing them takes a few copies in memory
_FOR_EACH_WORKER = 4  # least number of shards, so that workers finish at about the same time
_LONGEST = 500  # characters of a message about a damaged file
_MAX_SHARDS = 1 << 22  # their numbers are held in memory


def digest_of(content: Any) -> str:
    """Return the SHA-256 of plain data, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def one_line(error: Exception) -> str:
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
        rate: Rows per second of one worker.
        total: Rows of the job.
        workers: Number of workers.
        row_bytes: Bytes of one sample and its conditions.
    """
    rows = min(rate * _SHARD_S, total / (_FOR_EACH_WORKER * workers), _MAX_BYTES / max(row_bytes, 1))
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
        shard_rows: Rows of each shard but the last, a multiple of `BLOCK`.
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
    """Rows of a shard; nfe and status are None where the format does not store them.

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


def _written(kind: type[D], content: bytes) -> D:
    members = parsed(content)
    if not isinstance(members, dict) or set(members) != {entry.name for entry in dataclasses.fields(kind)}:
        raise ValueError(f"its members are not those of a {kind.__name__}")
    try:
        return typed(kind, members)
    except ProtocolError as error:
        raise ValueError(str(error)) from None
