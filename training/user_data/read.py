"""Samples and conditions read from user data, and the checks of both."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.named_conditions import NamedCondition
from training.errors import DataError
from training.spaces import MAX_EXACT

_NOTHING = {"", "nan", "na", "n/a", "#n/a", "<na>", "null", "none", "nat"}
"""Texts for missing values in tables, in lower case."""

_FEW = 20
"""Rows from which on a value may be told to be far from the others."""

_COARSE = 2.0**-10
"""Largest spacing of floating-point numbers that resolves a column, as a share of the column's spread."""

LISTED = 12
"""Classes or columns listed in a line of the first lines of a run."""


@dataclass(frozen=True)
class Read:
    """Samples with their conditions.

    Attributes:
        samples: (samples, *shape); rows of numbers are float64, pictures float32 (samples, channels, height, width) in
            [0, 1].
        condition: what they are conditioned on, or None.
        conditions: labels (samples,) int64 or vectors (samples, width) float64, or None.
        notes: lines for the user that describe what was read.
        names: names of the columns of rows; empty for pictures.
        lines: the line of the file in which each row ends, counted from 1; empty for files without lines.
    """

    samples: NDArray[np.floating[Any]]
    condition: NamedCondition | None = None
    conditions: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    lines: Sequence[int] = ()


@dataclass(frozen=True)
class Columns:
    """Columns of numbers with their names.

    Attributes:
        rows: (samples, columns), of any numeric type.
        names: names of the columns.
    """

    rows: NDArray[Any]
    names: Sequence[str]


def listed(items: Sequence[str]) -> str:
    """Return the first items, separated by commas."""
    return ", ".join(items[:LISTED]) + (", ..." if len(items) > LISTED else "")


def checked(
    path: Path, samples: Columns, labels: NDArray[Any] | None, vectors: Columns | None, notes: tuple[str, ...] = ()
) -> Read:
    """Check the shapes and numbers of what was read.

    Raises:
        DataError: the shapes do not match, or a number cannot be represented.
    """
    if labels is not None and vectors is not None:
        raise DataError(f"data {path}: label and condition are both given; a model takes one of them")
    rows = _numbers(path, "the samples", samples, np.float64)
    read = f"read {len(rows):,} rows from {path}: {_ranges(rows, samples.names)}"
    notes, names = (read, *notes), tuple(samples.names)
    if labels is not None:
        if labels.shape != (len(rows),):
            raise DataError(f"data {path}: labels have shape {labels.shape}; one per sample is needed, ({len(rows)},)")
        for place in missing(labels)[:1]:
            found = labels[place].item()
            raise DataError(f"data {path}: the label of sample {place} (counted from 0) is missing: it is {found!r}")
        condition, numbers = classes(path, labels)
        return Read(rows, condition, numbers, (*notes, describe_classes(condition, numbers)), names)
    if vectors is None:
        return Read(rows, notes=notes, names=names)
    conditions = _numbers(path, "the conditions", vectors, np.float64)
    if len(conditions) != len(rows):
        raise DataError(f"data {path}: {len(conditions)} conditions for {len(rows)} samples; one each is needed")
    constant = [name for name, column in zip(vectors.names, conditions.T, strict=True) if column.min() == column.max()]
    if constant:
        notes = (*notes, f"conditions that never change, so that samples cannot follow them: {', '.join(constant)}")
    return Read(rows, NamedCondition.vector(conditions.shape[1]), conditions, notes, names)


def _numbers(path: Path, what: str, columns: Columns, kept: type[np.float32] | type[np.float64]) -> NDArray[np.float64]:
    """Return the columns as float64, checked: finite, whole numbers exact, and resolved by the type `kept`."""
    rows = columns.rows
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "iufb":
        raise DataError(
            f"data {path}: {what} are {rows.dtype} of shape {rows.shape}; numbers of shape (samples, columns) are "
            "needed, both at least 1"
        )
    if rows.dtype.kind in "iu":
        why = "is beyond 2^53, where float64 drops digits; subtract an offset from the column"
        _refuse(path, what, rows, (rows > MAX_EXACT) | (rows < -MAX_EXACT), why)
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(rows.astype(np.float32))
    _refuse(path, what, rows, bad, "is not finite in float32; remove such rows")
    numbers = rows.astype(np.float64)
    for place, name in enumerate(columns.names):
        column = numbers[:, place]
        spread, most = float(column.max() - column.min()), float(np.abs(column).max())
        if spread > 0 and float(np.spacing(kept(most))) > _COARSE * spread:
            raise DataError(
                f"data {path}: column {name} of {what} is near {column[0]:.17g} and varies by only {spread:g}, which "
                f"{kept.__name__} resolves too coarsely there; subtract an offset before you save it"
            )
    return numbers


def _refuse(path: Path, what: str, rows: NDArray[Any], bad: NDArray[np.bool_], why: str) -> None:
    """Raise a DataError that names the first of the bad numbers, if there are any."""
    places = np.argwhere(bad)
    if len(places):
        row, column = places[0]
        raise DataError(
            f"data {path}: {what} have {len(places)} bad numbers, the first {rows[row, column]} in sample {row}, "
            f"column {column} (counted from 0): it {why}"
        )


def _ranges(rows: NDArray[np.float64], names: Sequence[str]) -> str:
    """Describe the range of each column, and point out those that are probably not data."""
    parts, noted = [], []
    for place, name in enumerate(names):
        column = rows[:, place]
        low, high = column.min(), column.max()
        if low == high:
            part = f"column {name} always {low:.15g}"
        else:
            most = max(abs(low), abs(high))
            digits = min(17, max(6, 3 + math.ceil(math.log10(most) - math.log10(high - low))))  # to tell them apart
            part = f"column {name} from {low:.{digits}g} to {high:.{digits}g}"
        if len(column) > 2 and low in (0, 1) and np.array_equal(column, np.arange(len(column)) + low):
            part += " (it counts the rows: leave it out if it is an index)"
        (parts if place < LISTED or not part.endswith(")") else noted).append(part)
    more = f", and {len(parts) + len(noted) - LISTED} more" if len(parts) + len(noted) > LISTED else ""
    return ", ".join(parts[:LISTED]) + more + "".join(f"; {part}" for part in noted)


def outliers(rows: NDArray[np.float64], names: Sequence[str], lines: Sequence[int], advice: str) -> list[str]:
    """Return a line on each column of rows (n, columns) in which a few values determine the standard deviation.

    These are the hundredth of the rows that is furthest from the median, or all rows with the furthest value, which may
    stand for "missing". The column is named if it has less than a third of its standard deviation without them.

    Args:
        rows: the rows.
        names: names of the columns.
        lines: see `Read`.
        advice: what to do about it, after a semicolon.
    """
    if len(rows) < _FEW:
        return []
    remarks = []
    for name, column in zip(names, rows.T, strict=True):
        off = np.abs(column - np.median(column))
        first = int(off.argmax())
        hundredth = np.argsort(-off, kind="stable")[: max(1, len(rows) // 100)]
        for far in (hundredth, np.flatnonzero(column == column[first])):
            near = float(np.delete(column, far).std()) if len(far) < len(column) else 0.0
            if 0 < 3 * near < (whole := float(column.std())):
                where = f"line {lines[first]}" if lines else f"sample {first} (counted from 0)"
                without = "it" if len(far) == 1 else f"the {len(far):,} furthest values"
                remarks.append(
                    f"column {name} is {column[first]:.15g} in {where}: the standard deviation is {whole:.3g}, and "
                    f"{near:.3g} without {without}; {advice}"
                )
                break
    return remarks[:LISTED]


def classes(path: Path, labels: NDArray[Any]) -> tuple[NamedCondition, NDArray[np.int64]]:
    """Number the classes of labels, words or whole numbers, in their order; names are kept unless they are 0, 1, 2, ...

    Different texts are different classes: labels are numbers only if each has one way to write it (see `_whole`).

    Raises:
        DataError: a label is neither a word nor a whole number.
    """
    if labels.dtype.kind == "U":
        labels = _whole(labels)
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all() and (np.abs(labels) <= MAX_EXACT).all():
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "iuU":
        raise DataError(
            f"data {path}: labels are {labels.dtype}, such as {_odd(labels)!r}; whole numbers or words are needed. "
            "A quantity that varies smoothly is a condition, not a label"
        )
    found, numbers = np.unique(labels, return_inverse=True)
    names = None if np.array_equal(found, np.arange(len(found))) else tuple(str(name) for name in found)
    return NamedCondition.label(len(found), names), numbers.astype(np.int64).reshape(-1)


def missing(labels: NDArray[Any]) -> list[int]:
    """Return the positions of missing labels: empty ones, and texts for missing values."""
    if labels.dtype.kind == "U":
        return [place for place, label in enumerate(labels.tolist()) if label.strip().lower() in _NOTHING]
    return np.flatnonzero(~np.isfinite(labels)).tolist() if labels.dtype.kind == "f" else []


def _whole(labels: NDArray[np.str_]) -> NDArray[Any]:
    """Convert words to integers if all of them are written as such, so that 2 comes before 10.

    A leading zero, a plus, a point or an exponent makes text of all: 02139 is not 2139, and 1.10 is not 1.1. Numbers
    with fractions that hardly repeat are returned as floats, a quantity.
    """
    words = labels.tolist()
    if all(map(_INTEGER.fullmatch, words)):
        return labels.astype(np.int64)
    if len(set(words)) > len(words) // 2 and all(map(is_number, words)):
        numbers = labels.astype(np.float64)
        return labels if (numbers == np.floor(numbers)).all() else numbers
    return labels


def _odd(labels: NDArray[Any]) -> Any:
    """Return an example of a label that is not a whole number."""
    if labels.dtype.kind == "f":
        labels = labels[(labels != np.floor(labels)) | (np.abs(labels) > MAX_EXACT)]
    return labels[0].item() if labels.dtype.kind in "fb" else labels[0]


def describe_classes(condition: NamedCondition, numbers: NDArray[np.int64]) -> str:
    """Return a line with the classes and the number of samples of each."""
    counts = np.bincount(numbers)
    names = condition.names or tuple(map(str, range(len(counts))))
    line = f"{len(counts)} classes: {listed([f'{n} {count:,}' for n, count in zip(names, counts, strict=True)])}"
    values: dict[Decimal, str] = {}
    for name in filter(is_number, names):
        if (other := values.setdefault(Decimal(name), name)) != name:
            return f"{line}; {other} and {name} are different texts, so different classes"
    return line


_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)


_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
"""Integers with one way to write them, which int64 holds."""


def is_number(text: str) -> bool:
    """Return whether a text is a number as other programs write it; `float` accepts more, such as 1_000."""
    return _NUMBER.fullmatch(text.strip()) is not None
