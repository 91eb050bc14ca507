"""Starting a bulk job, or resuming the job in a target."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.bulk.arrays import Arrays
from fleet.bulk.conditions import Given, Table
from fleet.bulk.maker import Maker, digest_of_card, digest_of_plan, find, rate_of
from fleet.bulk.spec import BLOCK, Format, JobSpec
from fleet.bulk.target import Target
from fleet.errors import FleetError, UsageError
from service.requests.schemas import INTEGER_LIMIT
from service.settings import Settings

SHARD_S = 120.0
"""Approximate seconds per shard: a crash loses no more of a worker's time, and startup is short in comparison."""

_MAX_BYTES = 512 << 20  # of a shard's samples; writing them takes a few copies in memory
_FOR_EACH_WORKER = 4  # least number of shards, so that workers finish at about the same time
_WAIT_S = 600.0


@dataclass(frozen=True)
class Wanted:
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
    format: Format | None = None
    threads: int | None = None
    shard_rows: int | None = None
    workers: int = 1


def begin(wanted: Wanted, target: Target, settings: Settings) -> tuple[JobSpec, bool]:
    """Return the job to work on, and whether it is new.

    Raises:
        UsageError: the target holds another job or something else, the model has changed, or the request is
            refused.
        TargetError: the target cannot be read or written.
    """
    table = None if wanted.table is None else Table.read(wanted.table.name, _content(wanted.table))
    total = _total(wanted, table)
    spec = target.spec()
    if spec is None:
        spec, conditions = _new(wanted, total, table, settings)
        target.create(spec, conditions)
        return spec, True
    if spec.threads == 0:
        raise UsageError(f"{target.url}: a service makes this job; resume it with pathline.Client.bulk")
    _, card = find(settings, spec.model, spec.version)
    given = {
        "model": wanted.model,
        "version": wanted.version,
        "seed": wanted.seed,
        "first_index": wanted.first_index,
        "total": total,
        "table": None if table is None else table.digest,
        "format": wanted.format,
        "threads": wanted.threads,
        "shard_rows": wanted.shard_rows,
        **wanted.request,
        **Arrays.fitting(wanted.arrays, spec.total, card).digests,
        "checkpoint": digest_of_card(card),
    }
    spec.refuse_other({name: value for name, value in given.items() if value is not None})
    return spec, False


def await_job(target: Target, seconds: float = _WAIT_S) -> JobSpec:
    """Wait for another process to begin the job.

    Raises:
        FleetError: no process has begun it in time.
        UsageError, TargetError: as in `Target.spec`.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            spec = target.spec()
        except UsageError:  # the other process may be half way through
            if time.monotonic() > end:
                raise
            spec = None
        if spec is not None:
            return spec
        if time.monotonic() > end:
            raise FleetError(f"{target.url}: worker 0 did not start the job within {seconds:.0f} s; check its log")
        time.sleep(0.5)


def _content(table: Path) -> bytes:
    try:
        return table.read_bytes()
    except OSError as error:
        raise UsageError(f"{table}: cannot be read: {error.strerror}") from None


def _total(wanted: Wanted, table: Table | None) -> int | None:
    if wanted.total is not None and wanted.total < 1:
        raise UsageError(f"--total is {wanted.total}; at least 1 sample is needed")
    if table is None:
        return wanted.total
    if wanted.arrays or "condition" in wanted.request or "conditions" in wanted.request:
        raise UsageError("--condition and --conditions are both given; give one of them")
    if wanted.total not in (None, table.total):
        raise UsageError(
            f"--total is {wanted.total}, but the counts of the table add up to {table.total}; leave out --total"
        )
    return table.total


def _new(wanted: Wanted, total: int | None, table: Table | None, settings: Settings) -> tuple[JobSpec, Given | None]:
    lacking = [f"--{name}" for name, value in (("total", total), ("seed", wanted.seed)) if value is None]
    if wanted.model is None or lacking:
        raise UsageError(f"a new job needs {', '.join((['a model'] if wanted.model is None else []) + lacking)}")
    assert total is not None and wanted.seed is not None  # noqa: S101, PT018  (just checked)
    first_index, threads = wanted.first_index or 0, wanted.threads or 1
    if not (0 <= wanted.seed < INTEGER_LIMIT and 0 <= first_index <= INTEGER_LIMIT - total):
        raise UsageError("--seed and --first-index must be at least 0, and the seed and the last index below 2^63")
    if wanted.shard_rows is not None and (wanted.shard_rows < BLOCK or wanted.shard_rows % BLOCK):
        raise UsageError(f"--shard-rows is {wanted.shard_rows}; it must be a multiple of {BLOCK}")
    version, card = find(settings, wanted.model, wanted.version)
    arrays = Arrays.fitting(wanted.arrays, total, card)
    given: Given | None = arrays if arrays.sources else table
    with Maker(settings, wanted.model, version, threads) as maker:
        plan = maker.plan(wanted.request, given)
        for place, count in arrays.pieces():
            maker.check(wanted.request, arrays, place, count)
        first = maker.make(wanted.request, wanted.seed, first_index, 0, 1, given)
        rows = wanted.shard_rows
        if rows is None:
            row_bytes = first.samples[0].nbytes + (0 if given is None else given.row_bytes)
            rows = shard_rows(rate_of(maker, wanted.request, given), total, wanted.workers, row_bytes)
        spec = JobSpec(
            model=wanted.model,
            version=version,
            checkpoint=digest_of_card(card),
            path=maker.model.path,
            threads=threads,
            noise=maker.model.card.noise,
            request=wanted.request,
            plan=digest_of_plan(plan),
            seed=wanted.seed,
            first_index=first_index,
            total=total,
            table="" if table is None else table.digest,
            arrays=arrays.digests,
            shape=first.samples.shape[1:],
            dtype="float64" if first.samples.dtype == np.float64 else "float32",
            format=wanted.format or "parquet",
            shard_rows=rows,
        )
    return spec, given


def shard_rows(rate: float, total: int, workers: int, row_bytes: int) -> int:
    """Return the number of rows of a shard.

    Args:
        rate: rows per second of one worker.
        total: rows of the job.
        workers: number of workers.
        row_bytes: bytes of one sample and its conditions.
    """
    rows = min(rate * SHARD_S, total / (_FOR_EACH_WORKER * workers), _MAX_BYTES / row_bytes)
    return max(1, math.ceil(rows / BLOCK)) * BLOCK
