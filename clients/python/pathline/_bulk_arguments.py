"""The arguments of a bulk job, checked alike for a client and for the server's `python -m fleet`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathline._bulk_conditions import Arrays, ConditionCounts, RowConditions
from pathline._bulk_spec import BLOCK, FIELDS, JobSpec, shard_rows
from pathline._conditions import KNOWN, NAMED, shape_of
from pathline._fields import BulkOptions
from pathline._plot import needed
from pathline._request import SEED_LIMIT, chosen_seed, integer, plain_options
from pathline.bulk_folder import FORMATS
from pathline.errors import InvalidValue

Counts = Mapping[Any, int] | Sequence[tuple[Any, int]]
"""How many samples of each condition: a mapping, or pairs where conditions are vectors."""

_OPTIONS = tuple(BulkOptions.__annotations__)


@dataclass(frozen=True)
class BulkArguments:
    """What one asks for; None for what is left out, which keeps the value of an existing job.

    Attributes:
        model, total, format, shard_rows, workers: As for `Client.bulk`.
        table: The table of conditions, if there is one.
        options: The options of the request, as JSON has them.
        arrays: The numbers among the named conditions, by ``conditions.NAME`` and ``negative.NAME``; none with a table,
            beside which they are for all samples.
    """

    model: str | None
    total: int | None
    table: ConditionCounts | None
    format: str | None
    shard_rows: int | None
    workers: int
    options: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(
        cls,
        model: str | None,
        total: int | None,
        counts: Counts | None,
        format: str | None,  # noqa: A002 - the name of the option
        shard_rows: int | None,
        workers: int,
        tries: int,
        options: Mapping[str, Any],
        formats: Sequence[str] = tuple(FORMATS),
    ) -> BulkArguments:
        """Check the arguments as far as possible without the model; `formats` are those of shards.

        Raises:
            TypeError: An option is unknown, or a count is not an integer.
            InvalidValue: A number is out of range, or options contradict each other.
            ImportError: The format is Parquet and pyarrow is not installed.
        """
        members = plain_options(options, _OPTIONS, ("total", "counts", "format", "shard_rows", "workers"))
        table = None if counts is None else _table(counts)
        for name in ("condition", "conditions"):
            if table is not None and name in members:
                raise InvalidValue(f"{name} and a table of conditions are both given; give one of them", name)
        total = None if total is None else integer("total", total)
        if table is not None and total not in (None, table.total):
            raise InvalidValue(f"total={total}, but the counts add up to {table.total}; leave out total", "total")
        total = total if table is None else table.total
        first = integer("first_index", members.get("first_index", 0))
        if not 0 <= first < SEED_LIMIT:
            raise InvalidValue(f"first_index={first} is not allowed; use an integer from 0 to 2**63 - 1", "first_index")
        if total is not None and not 1 <= total <= SEED_LIMIT - first:
            raise InvalidValue(
                f"total={total} is not allowed; ask for 1 sample or more, of indices below 2**63", "total"
            )
        if format not in (None, *formats):
            raise InvalidValue(f"format={format!r} is not allowed; use one of {', '.join(formats)}", "format")
        if format == "parquet":
            needed("pyarrow", "bulk")
        if shard_rows is not None and (integer("shard_rows", shard_rows) < BLOCK or shard_rows % BLOCK):
            raise InvalidValue(f"shard_rows={shard_rows} is not allowed; use a multiple of {BLOCK}", "shard_rows")
        for name, number in (("workers", workers), ("tries", tries)):
            if integer(name, number) < 1:
                raise InvalidValue(f"{name}={number} is not allowed; use at least 1", name)
        if "seed" in members:
            members["seed"] = chosen_seed(members["seed"])
        arrays = _arrays_in(members) if table is None else {}
        for option in {*NAMED, KNOWN} & set(members):  # the same for all requests, and part of the spec
            members[option] = {
                name: value.tolist() if isinstance(value, np.ndarray) else value
                for name, value in members[option].items()
            }
        return cls(model, total, table, format, shard_rows, workers, members, arrays)

    @property
    def request(self) -> dict[str, Any]:
        """The options that determine the rows."""
        return {name: self.options[name] for name in FIELDS if name in self.options}

    def fitted(self, total: int, takes: Mapping[str, Any]) -> Arrays:
        """Return the arrays, each with one row for all samples or a row for each.

        Args:
            total: Number of samples.
            takes: Conditions of the model by name, as the service describes them.

        Raises:
            InvalidValue: The model has no such condition, or an array has another number of rows.
        """
        fitted = {}
        for key, array in self.arrays.items():
            name = key.partition(".")[2]
            shape = shape_of(takes, name)
            if shape is None:
                taken = f"takes {', '.join(takes)}" if takes else "is unconditional"
                raise InvalidValue(f"there is no condition {name!r}; this model {taken}", key)
            more = array.ndim - len(shape)
            if more not in (0, 1) or (more == 1 and len(array) not in (1, total)):
                raise InvalidValue(
                    f"{key} has the shape {list(array.shape)}; give one value of the shape {shape} for all samples, "
                    f"or {total} of these, one for each",
                    key,
                )
            fitted[key] = array if more else array[None]
        return Arrays(fitted, total)

    def members(
        self, total: int, conditions: RowConditions, samples: np.ndarray, rate: Callable[[], float]
    ) -> dict[str, Any]:
        """Return the members of a new job's spec that follow from the arguments.

        Args:
            total: Number of samples.
            conditions: Those of the job.
            samples: Its first ones.
            rate: Returns the rows per second of one worker, if the size of shards depends on it.
        """
        row_bytes = samples[0].nbytes + conditions.row_bytes
        return {
            "request": self.request,
            "first_index": self.options.get("first_index", 0),
            "total": total,
            "table": conditions.digest if isinstance(conditions, ConditionCounts) else "",
            "arrays": conditions.digests if isinstance(conditions, Arrays) else {},
            "shape": samples.shape[1:],
            "dtype": str(samples.dtype),
            "shard_rows": self.shard_rows or shard_rows(rate(), total, self.workers, row_bytes),
        }

    def refuse_other(self, spec: JobSpec, arrays: Arrays, **more: Any) -> None:
        """Check that a job matches the arguments, the arrays among them, and more members.

        Raises:
            BulkConflict: A value differs; the message has both.
        """
        spec.refuse_other({
            "model": self.model,
            "version": self.options.get("version"),
            "seed": self.options.get("seed"),
            "first_index": self.options.get("first_index"),
            "total": self.total,
            "table": None if self.table is None else self.table.digest,
            "format": self.format,
            "shard_rows": self.shard_rows,
            **self.request,
            **arrays.digests,
            **more,
        })  # fmt: skip


def _table(counts: Counts) -> ConditionCounts:
    try:
        pairs = [(condition, count) for condition, count in (counts.items() if isinstance(counts, Mapping) else counts)]
    except (TypeError, ValueError):
        raise InvalidValue("counts is neither a mapping nor pairs; use {7: 100} or [(7, 100)]", "counts") from None
    if not pairs:
        raise InvalidValue("counts is empty; give at least one condition and its number of samples", "counts")
    plain = plain_options({"condition": [condition for condition, _ in pairs]}, ("condition",))["condition"]
    numbers = [integer("counts", count) for _, count in pairs]
    for condition, count in zip(plain, numbers, strict=True):
        if count < 1:
            raise InvalidValue(f"counts asks for {count} samples of {condition!r}; ask for at least 1", "counts")
    return ConditionCounts(plain, numbers)


def _arrays_in(options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Take the numbers by name out of the options, as arrays; names of classes stay."""
    arrays = {}
    for option in NAMED:
        for name, value in list((options.get(option) or {}).items()):
            try:
                array = np.asarray(value)
            except ValueError:
                message = f"{option}.{name} has lists of different lengths"
                raise InvalidValue(message, f"{option}.{name}") from None
            if array.dtype.kind in "biuf":
                arrays[f"{option}.{name}"] = array
                del options[option][name]
        if option in options and not options[option]:
            del options[option]
    return arrays
