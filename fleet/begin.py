"""Starting a bulk job, or resuming the job in a target."""

from __future__ import annotations

import csv
import io
import json
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from pathline._bulk_arguments import BulkArguments
from pathline._bulk_conditions import RowConditions
from pathline._bulk_spec import JobSpec
from pathline.errors import BulkConflict

from fleet.errors import CommandError, FleetError
from fleet.maker import Maker, digest_of_card, digest_of_plan, find, rate_of
from fleet.store import FORMATS, Target
from models.checkpoint.card import Card
from service.settings import Settings

_WAIT_S = 600.0


def begin(arguments: BulkArguments, threads: int | None, target: Target, settings: Settings) -> tuple[JobSpec, bool]:
    """Return the job to work on, and whether it is new.

    Args:
        arguments: what is asked for; for an existing job, None keeps the job's value.
        threads: CPU threads of the network in each worker; None for the job's, or 1.
        target: the folder of the job.
        settings: the models folder, the device and the form of the network.

    Raises:
        BulkConflict: the target holds another job or something else, or the model has changed.
        CommandError, InvalidValue: the request is refused.
        TargetError: the target cannot be read or written.
    """
    spec = target.spec()
    if spec is None:
        spec, conditions = _new(arguments, threads or 1, settings)
        target.create(spec, conditions)
        return spec, True
    if spec.by_client:
        raise CommandError(f"{target.address}: a service makes this job; resume it with pathline.Client.bulk")
    _, card = find(settings, spec.model, spec.version)
    arrays = arguments.fitted(spec.total, _taken(card))
    arguments.refuse_other(spec, arrays, threads=threads, checkpoint=digest_of_card(card))
    return spec, False


def _taken(card: Card) -> dict[str, Any]:
    """Return the conditions of a model by name, as the service describes them to its clients."""
    takes = card.request_conditions
    return {} if takes is None else {name: {"shape": entry.shape} for name, entry in takes.entries.items()}


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


def _new(arguments: BulkArguments, threads: int, settings: Settings) -> tuple[JobSpec, RowConditions]:
    model, total, seed = arguments.model, arguments.total, arguments.options.get("seed")
    if model is None or total is None or seed is None:
        required = {"a model": model, "--total": total, "--seed": seed}
        raise CommandError(f"a new job needs {', '.join(name for name, value in required.items() if value is None)}")
    first_index = arguments.options.get("first_index", 0)
    version, card = find(settings, model, arguments.options.get("version"))
    decode = arguments.request.get("decode", True)
    arrays = arguments.fitted(total, _taken(card))
    conditions = arguments.table or arrays
    place = {"seed": seed, "first_index": first_index}
    with closing(Maker(settings, model, version, threads, arguments.request, conditions, **place)) as maker:
        _, job = maker.job()
        start = {} if job.start_time is None else {"start_time": job.start_time}  # of a scheduler's steps, too
        for first, count in arrays.pieces():
            maker.job(first, count)
        rate = partial(rate_of, maker, total)
        members = arguments.members(total, conditions, maker.make(0, 1).samples, rate) | {
            "model": model,
            "version": version,
            "checkpoint": digest_of_card(card),
            "path": maker.model.path,
            "threads": threads,
            "noise": maker.model.card.noise_scheme,
            "request": {**arguments.request, **start},
            "plan": digest_of_plan(job.plan),
            "seed": seed,
            "format": arguments.format or FORMATS[0],
            "columns": tuple(column.described() for column in card.decoder.columns or ()) if decode else (),
        }
        return JobSpec(**members), conditions


_NEEDS = "a table of conditions needs the columns condition and count"


def read_table(path: Path) -> list[tuple[Any, int]]:
    """Read conditions and their counts from a user's table, Parquet or CSV by its name; vectors in CSV are JSON lists.

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
    return list(zip(conditions, counts, strict=True))


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
        return [_cell(row["condition"]) for row in rows], [_cell(row["count"]) for row in rows]
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise CommandError(f"{name}: {error} is missing or cannot be read; {_NEEDS}") from None


def _cell(text: str | None) -> Any:
    """Parse a cell: JSON, such as a number or a list, or else a name."""
    try:
        return json.loads(text or "")
    except ValueError:
        return (text or "").strip()
