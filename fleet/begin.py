"""Starting a bulk job, or resuming the job in a target."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pathline.bulk_folder import BLOCK, Arrays, JobSpec, RowConditions, Table, shard_rows
from pathline.errors import BulkConflict

from fleet.errors import CommandError, FleetError
from fleet.maker import Maker, digest_of_card, digest_of_plan, find, rate_of
from fleet.store import FORMATS, Target
from models.checkpoint.card import DTYPES, Card
from models.condition_values import Values
from models.conditions import ConditionError
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
        CommandError: the request is refused.
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
        raise CommandError(f"{target.address}: a service makes this job; resume it with pathline.Client.bulk")
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
        raise CommandError(f"--total is {arguments.total}; at least 1 sample is needed")
    if table is None:
        return arguments.total
    if arguments.arrays or "condition" in arguments.request or "conditions" in arguments.request:
        raise CommandError("--condition and --conditions are both given; give one of them")
    if arguments.total not in (None, table.total):
        raise CommandError(
            f"--total is {arguments.total}, but the counts of the table add up to {table.total}; leave out --total"
        )
    return table.total


def _new(
    arguments: Arguments, total: int | None, table: Table | None, settings: Settings
) -> tuple[JobSpec, RowConditions | None]:
    lacking = [f"--{name}" for name, value in (("total", total), ("seed", arguments.seed)) if value is None]
    if arguments.model is None or lacking:
        raise CommandError(f"a new job needs {', '.join((['a model'] if arguments.model is None else []) + lacking)}")
    assert total is not None and arguments.seed is not None  # noqa: S101, PT018  (just checked)
    first_index, threads = arguments.first_index or 0, arguments.threads or 1
    if not (0 <= arguments.seed < INTEGER_LIMIT and 0 <= first_index <= INTEGER_LIMIT - total):
        raise CommandError("--seed and --first-index must be at least 0, and the seed and the last index below 2^63")
    if arguments.shard_rows is not None and (arguments.shard_rows < BLOCK or arguments.shard_rows % BLOCK):
        raise CommandError(f"--shard-rows is {arguments.shard_rows}; it must be a multiple of {BLOCK}")
    version, card = find(settings, arguments.model, arguments.version)
    decode = arguments.request.get("decode", True)
    arrays = fitted(arguments.arrays, total, card)
    conditions: RowConditions | None = arrays if arrays.sources else table
    with Maker(settings, arguments.model, version, threads) as maker:
        job = maker.job(arguments.request, conditions)
        start = {} if job.start_time is None else {"start_time": job.start_time}  # of a scheduler's steps, too
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
            noise=maker.model.card.noise_scheme,
            request={**arguments.request, **start},
            plan=digest_of_plan(job.plan),
            seed=arguments.seed,
            first_index=first_index,
            total=total,
            table="" if table is None else table.digest,
            arrays=arrays.digests,
            shape=first.samples.shape[1:],
            dtype="float64" if first.samples.dtype == np.float64 else "float32",
            format=arguments.format or FORMATS[0],
            columns=tuple(column.described() for column in card.decoder.columns or ()) if decode else (),
            shard_rows=rows,
        )
    return spec, conditions


_NEEDS = "a table of conditions needs the columns condition and count"


def read_table(path: Path) -> Table:
    """Read a user's table, Parquet or CSV by its name; vectors in CSV are JSON lists.

    Raises:
        CommandError: the file cannot be read, the table is malformed, or a count is not an integer of at least 1.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror}") from None
    conditions, counts = (_parquet if path.suffix == ".parquet" else _csv)(path.name, content)
    for line, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise CommandError(
                f"{path.name}: row {line} (counted from 0) has the count {count!r}; it must be at least 1"
            )
    if not conditions:
        raise CommandError(f"{path.name}: has no rows; {_NEEDS}")
    return Table(conditions, counts)


def _parquet(name: str, content: bytes) -> tuple[list[Any], list[Any]]:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content))
        return table["condition"].to_pylist(), table["count"].to_pylist()
    except (KeyError, pyarrow.ArrowException) as error:
        raise CommandError(f"{name}: {str(error).splitlines()[0]}; {_NEEDS}") from None


def _csv(name: str, content: bytes) -> tuple[list[Any], list[Any]]:
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))
        return [cell(row["condition"]) for row in rows], [cell(row["count"]) for row in rows]
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{name}: {error} is missing or cannot be read; {_NEEDS}") from None


def read_array(path: Path) -> NDArray[Any]:
    """Open a user's .npy file; its values are read when they are needed.

    Raises:
        CommandError: it cannot be read, or does not hold numbers.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header can raise anything
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CommandError(f"{path}: cannot be read: {reason}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        kind = array.dtype if isinstance(array, np.ndarray) else "an archive"
        raise CommandError(f"{path}: is {kind}; a condition is an array of numbers")
    return array


def fitted(arrays: Mapping[str, NDArray[Any]], total: int, card: Card) -> Arrays:
    """Return the arrays of a job, each with a first axis of 1 or `total` rows.

    Args:
        arrays: arrays by FIELD.NAME; one of the shape of a single value is for all samples.
        total: number of samples.
        card: of the model.

    Raises:
        CommandError: the model has no such condition, or the shape of an array does not fit.
    """
    takes, fitted = card.request_conditions, {}
    if takes is None and arrays:
        raise CommandError(f"model {card.name!r} is unconditional; leave out {_option(next(iter(arrays)))}")
    for key, array in arrays.items():
        name = key.partition(".")[2]
        assert takes is not None  # noqa: S101  (or there are none)
        try:
            Values(takes, {name: array}, total, DTYPES[card.dtype], optional=takes.in_requests)
        except ConditionError as error:
            raise CommandError(f"{_option(key)}: {error}") from None
        axes = array.ndim - len(takes.entries[name].shape)
        if axes not in (0, 1) or (axes == 1 and len(array) not in (1, total)):
            raise CommandError(
                f"{_option(key)} has the shape {list(array.shape)}; give one value for all samples, or {total}, "
                "one for each"
            )
        fitted[key] = array if axes else array[None]
    return Arrays(fitted, total)


def _option(key: str) -> str:
    """Return the option that gave an array."""
    field, _, name = key.partition(".")
    return f"--{'negative' if field == 'negative' else 'condition'} {name}"


def cell(text: str | None) -> Any:
    """Parse a cell: JSON, such as a number or a list, or else a name."""
    try:
        return json.loads(text or "")
    except ValueError:
        return (text or "").strip()
