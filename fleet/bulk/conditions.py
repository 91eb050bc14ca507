"""Conditions of a bulk job as a user gives them: a table with counts, or arrays by name."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pathline.bulk_folder import Arrays, Table

from fleet.errors import UsageError
from models.checkpoint.card import DTYPES, Card
from models.condition_values import Values
from models.conditions import ConditionError

_NEEDS = "a table of conditions needs the columns condition and count"


def read_table(path: Path) -> Table:
    """Read a user's table, Parquet or CSV by its name; vectors in CSV are JSON lists.

    Raises:
        UsageError: the file cannot be read, the table is malformed, or a count is not an integer of at least 1.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    conditions, counts = (_parquet if path.suffix == ".parquet" else _csv)(path.name, content)
    for line, count in enumerate(counts):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"{path.name}: row {line} (counted from 0) has the count {count!r}; it must be at least 1")
    if not conditions:
        raise UsageError(f"{path.name}: has no rows; {_NEEDS}")
    return Table(conditions, counts)


def _parquet(name: str, content: bytes) -> tuple[list[Any], list[Any]]:
    import pyarrow
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(io.BytesIO(content))
        return table["condition"].to_pylist(), table["count"].to_pylist()
    except (KeyError, pyarrow.ArrowException) as error:
        raise UsageError(f"{name}: {str(error).splitlines()[0]}; {_NEEDS}") from None


def _csv(name: str, content: bytes) -> tuple[list[Any], list[Any]]:
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"))))
        return [cell(row["condition"]) for row in rows], [cell(row["count"]) for row in rows]
    except (KeyError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name}: {error} is missing or cannot be read; {_NEEDS}") from None


def read_array(path: Path) -> NDArray[Any]:
    """Open a user's .npy file; its values are read when they are needed.

    Raises:
        UsageError: it cannot be read, or does not hold numbers.
    """
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{path}: cannot be read: {reason}") from None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "biuf":
        kind = found.dtype if isinstance(found, np.ndarray) else "an archive"
        raise UsageError(f"{path}: is {kind}; a condition is an array of numbers")
    return found


def fitted(given: Mapping[str, NDArray[Any]], total: int, card: Card) -> Arrays:
    """Return the arrays of a job, each with a first axis of 1 or `total` rows.

    Args:
        given: arrays by FIELD.NAME; one of the shape of a single value is for all samples.
        total: number of samples.
        card: of the model.

    Raises:
        UsageError: the model has no such condition, or the shape of an array does not fit.
    """
    takes, fitted = card.request_conditions, {}
    if takes is None and given:
        raise UsageError(f"model {card.name!r} is unconditional; leave out {_option(next(iter(given)))}")
    for key, array in given.items():
        name = key.partition(".")[2]
        assert takes is not None  # noqa: S101  (or nothing is given)
        try:
            Values(takes, {name: array}, total, DTYPES[card.dtype], partial=True)
        except ConditionError as error:
            raise UsageError(f"{_option(key)}: {error}") from None
        axes = array.ndim - len(takes.entries[name].shape)
        if axes not in (0, 1) or (axes == 1 and len(array) not in (1, total)):
            raise UsageError(
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
