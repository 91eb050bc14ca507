"""Starting a bulk job, or resuming the job in a target."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pathline.bulk_folder import BLOCK, JobSpec, RowConditions, Table, shard_rows
from pathline.errors import BulkConflict

from fleet.bulk.conditions import fitted, read_table
from fleet.bulk.maker import Maker, digest_of_card, digest_of_plan, find, rate_of
from fleet.bulk.store import FORMATS, Target
from fleet.errors import FleetError, UsageError
from service.requests.schemas import INTEGER_LIMIT
from service.settings import Settings

_WAIT_S = 600.0


@dataclass(frozen=True)
class Arguments:
    """Command-line options; for an existing job, None keeps the job's value.

    Attributes:
        model, version: the model.
        request: the given fields of a sample request.
        seed, first_index, total: which samples.
        table: a file with conditions.
        arrays: arrays of named conditions, by `conditions.NAME` and `negative.NAME`.
        format, threads, shard_rows: as in `JobSpec`.
        workers: number of workers, which affects the size of shards.
    """

    model: str | None = None
    version: int | None = None
    request: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    first_index: int | None = None
    total: int | None = None
    table: Path | None = None
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    format: str | None = None
    threads: int | None = None
    shard_rows: int | None = None
    workers: int = 1


def begin(arguments: Arguments, target: Target, settings: Settings) -> tuple[JobSpec, bool]:
    """Return the job to work on, and whether it is new.

    Raises:
        BulkConflict: the target holds another job or something else, or the model has changed.
        UsageError: the request is refused.
        TargetError: the target cannot be read or written.
    """
    table = None if arguments.table is None else read_table(arguments.table)
    total = _total(arguments, table)
    spec = target.spec()
    if spec is None:
        spec, conditions = _new(arguments, total, table, settings)
        target.create(spec, conditions)
        return spec, True
    if spec.by_client:
        raise UsageError(f"{target.address}: a service makes this job; resume it with pathline.Client.bulk")
    _, card = find(settings, spec.model, spec.version)
    spec.refuse_other(
        {
            "model": arguments.model,
            "version": arguments.version,
            "seed": arguments.seed,
            "first_index": arguments.first_index,
            "total": total,
            "table": None if table is None else table.digest,
            "format": arguments.format,
            "threads": arguments.threads,
            "shard_rows": arguments.shard_rows,
            **arguments.request,
            **fitted(arguments.arrays, spec.total, card).digests,
            "checkpoint": digest_of_card(card),
        }
    )
    return spec, False


def await_job(target: Target, seconds: float = _WAIT_S) -> JobSpec:
    """Wait for another process to begin the job.

    Raises:
        FleetError: no process has begun it in time.
        BulkConflict, TargetError: as in `Target.spec`.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            spec = target.spec()
        except BulkConflict:  # the other process may be half way through
            if time.monotonic() > end:
                raise
            spec = None
        if spec is not None:
            return spec
        if time.monotonic() > end:
            raise FleetError(f"{target.address}: worker 0 did not start the job within {seconds:.0f} s; check its log")
        time.sleep(0.5)


def _total(arguments: Arguments, table: Table | None) -> int | None:
    if arguments.total is not None and arguments.total < 1:
        raise UsageError(f"--total is {arguments.total}; at least 1 sample is needed")
    if table is None:
        return arguments.total
    if arguments.arrays or "condition" in arguments.request or "conditions" in arguments.request:
        raise UsageError("--condition and --conditions are both given; give one of them")
    if arguments.total not in (None, table.total):
        raise UsageError(
            f"--total is {arguments.total}, but the counts of the table add up to {table.total}; leave out --total"
        )
    return table.total


def _new(
    arguments: Arguments, total: int | None, table: Table | None, settings: Settings
) -> tuple[JobSpec, RowConditions | None]:
    lacking = [f"--{name}" for name, value in (("total", total), ("seed", arguments.seed)) if value is None]
    if arguments.model is None or lacking:
        raise UsageError(f"a new job needs {', '.join((['a model'] if arguments.model is None else []) + lacking)}")
    assert total is not None and arguments.seed is not None  # noqa: S101, PT018  (just checked)
    first_index, threads = arguments.first_index or 0, arguments.threads or 1
    if not (0 <= arguments.seed < INTEGER_LIMIT and 0 <= first_index <= INTEGER_LIMIT - total):
        raise UsageError("--seed and --first-index must be at least 0, and the seed and the last index below 2^63")
    if arguments.shard_rows is not None and (arguments.shard_rows < BLOCK or arguments.shard_rows % BLOCK):
        raise UsageError(f"--shard-rows is {arguments.shard_rows}; it must be a multiple of {BLOCK}")
    version, card = find(settings, arguments.model, arguments.version)
    arrays = fitted(arguments.arrays, total, card)
    conditions: RowConditions | None = arrays if arrays.sources else table
    with Maker(settings, arguments.model, version, threads) as maker:
        plan = maker.plan(arguments.request, conditions)
        for place, count in arrays.pieces():
            maker.check(arguments.request, arrays, place, count)
        first = maker.make(arguments.request, arguments.seed, first_index, 0, 1, conditions)
        rows = arguments.shard_rows
        if rows is None:
            row_bytes = first.samples[0].nbytes + (0 if conditions is None else conditions.row_bytes)
            rows = shard_rows(rate_of(maker, arguments.request, conditions), total, arguments.workers, row_bytes)
        spec = JobSpec(
            model=arguments.model,
            version=version,
            checkpoint=digest_of_card(card),
            path=maker.model.path,
            threads=threads,
            noise=maker.model.card.noise,
            request=arguments.request,
            plan=digest_of_plan(plan),
            seed=arguments.seed,
            first_index=first_index,
            total=total,
            table="" if table is None else table.digest,
            arrays=arrays.digests,
            shape=first.samples.shape[1:],
            dtype="float64" if first.samples.dtype == np.float64 else "float32",
            format=arguments.format or FORMATS[0],
            shard_rows=rows,
        )
    return spec, conditions
