"""The spec of a bulk job, which determines every row, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fleet.errors import UsageError
from service.requests.schemas import INTEGER_LIMIT

SOLVING = ("solver", "steps", "rtol", "atol", "grid", "start", "controller", "first_step", "max_step", "max_nfe")
"""Fields of a sample request that choose the solver."""

FIELDS = (*SOLVING, "condition", "conditions", "negative", "guidance", "shape", "decode")
"""Fields of a sample request that a job may set; the others belong to the job itself or do not apply."""

BLOCK = 64
"""Rows hashed together; shards start at multiples of it."""

Format = Literal["parquet", "npy", "zarr"]


class JobSpec(BaseModel):
    """Everything that determines the rows of a job and their layout in files.

    Attributes:
        bulk: version of this layout.
        model, version, checkpoint: the model; the checkpoint is its digest, as `/v1/models` shows it.
        path: how its network is evaluated, `fused`, `onnx` or `eager`, as `/v1/models` shows it.
        threads: CPU threads of the network in each worker; they may affect the bits of an eager network. 0 in the job
            of a client (`pathline.Client.bulk`), where a service makes the rows with its own threads.
        noise: scheme that generates the starting noise.
        request: fields of a sample request, as the service defines them.
        plan: SHA-256 of the compiled solver's numbers; empty in the job of a client.
        seed, first_index, total: which samples; row k of the job is sample first_index + k of the seed.
        table: SHA-256 of the table of conditions; empty without one.
        arrays: SHA-256 of each array of named conditions (see `fleet.bulk.arrays`), by field and name.
        shape, dtype: of one row's sample.
        format: of the shards.
        shard_rows: rows of each shard but the last, a multiple of `BLOCK`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bulk: Literal[1] = 1
    model: str
    version: int
    checkpoint: str
    path: str
    threads: int = Field(ge=0)
    noise: str
    request: dict[str, Any]
    plan: str
    seed: int = Field(ge=0, lt=INTEGER_LIMIT)
    first_index: int = Field(ge=0, lt=INTEGER_LIMIT)
    total: int = Field(ge=1)
    table: str = ""
    arrays: dict[str, str] = Field(default_factory=dict)
    shape: tuple[int, ...]
    dtype: Literal["float32", "float64"]
    format: Format
    shard_rows: int = Field(ge=BLOCK, multiple_of=BLOCK)

    @property
    def shards(self) -> int:
        """The number of shards."""
        return -(-self.total // self.shard_rows)

    def range(self, shard: int) -> tuple[int, int]:
        """Return the first row of a shard, counted from the start of the job, and its number of rows."""
        first = shard * self.shard_rows
        return first, min(self.shard_rows, self.total - first)

    @property
    def digest(self) -> str:
        """SHA-256 of the spec."""
        return digest_of(self.model_dump(mode="json"))

    def refuse_other(self, given: Mapping[str, Any]) -> None:
        """Check that the given fields match this job; others are not compared.

        Raises:
            UsageError: a field differs; the message has both values.
        """
        mine = self.model_dump(mode="json")
        mine |= mine.pop("request") | mine.pop("arrays")
        for name, wanted in given.items():
            if (found := mine.get(name)) != wanted:
                advice = {
                    "checkpoint": "the model has changed since; restore it, or start a new job in another place",
                    "plan": "the solver's numbers have changed since; start a new job in another place",
                }.get(name, "choose another place, or use the same value")
                raise UsageError(f"the target holds another job: its {name} is {found!r}, not {wanted!r}; {advice}")


def digest_of(content: Any) -> str:
    """Return the SHA-256 of plain data, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
