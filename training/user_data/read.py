"""Samples and conditions read from user data, and the checks of both."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.conditions import NamedCondition
from training.errors import DataError
from training.spaces import MAX_EXACT

_NOTHING = {"", "nan", "na", "n/a", "#n/a", "<na>", "null", "none", "nat"}
"""Texts for missing values in tables, in lower case."""

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
        condition_names: names of the numbers of a condition vector; empty if there is none.
        lines: the line of the file in which each row ends, counted from 1; empty for files without lines.
        units: units of columns by name, of those that have one.
    """

    samples: NDArray[np.floating[Any]]
    condition: NamedCondition | None = None
    conditions: NDArray[Any] | None = None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    condition_names: tuple[str, ...] = ()
    lines: Sequence[int] = ()
    units: Mapping[str, str] = field(default_factory=dict)


def listed(items: Sequence[str]) -> str:
    """Return the first items, separated by commas."""
    return ", ".join(items[:LISTED]) + (", ..." if len(items) > LISTED else "")


def classes(path: Path, labels: NDArray[Any]) -> tuple[NamedCondition, NDArray[np.int64], str]:
    """Number the classes of labels, words or whole numbers, in their order; names are kept unless they are 0, 1, 2, ...

    Different texts are different classes: labels are numbers only if each has one way to write it (see `_whole`).

    Returns:
        The condition, the number of each label, and a line with the classes and the number of samples of each.

    Raises:
        DataError: a label is neither a word nor a whole number.
    """
    if labels.dtype.kind == "U":
        labels = _whole(labels)
    if labels.dtype.kind == "f":
        odd = labels[(labels != np.floor(labels)) | (np.abs(labels) > MAX_EXACT)]
        labels = odd if len(odd) else labels.astype(np.int64)
    if labels.dtype.kind not in "iuU":
        raise DataError(
            f"data {path}: labels are {labels.dtype}, such as {labels.tolist()[0]!r}; whole numbers or words are "
            "needed. A quantity that varies smoothly is a condition, not a label"
        )
    distinct, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    names = tuple(map(str, distinct))
    line = f"{len(names)} classes: {listed([f'{n} {count:,}' for n, count in zip(names, counts, strict=True)])}"
    values: dict[Decimal, str] = {}
    for name in filter(is_number, names):
        if (other := values.setdefault(Decimal(name), name)) != name:
            line += f"; {other} and {name} are different texts, so different classes"
            break
    numbered = np.array_equal(distinct, np.arange(len(distinct)))
    condition = NamedCondition.label(len(names), None if numbered else names)
    return condition, numbers.astype(np.int64).reshape(-1), line


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


_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)", re.ASCII | re.IGNORECASE)


_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
"""Integers with one way to write them, which int64 holds."""


def is_number(text: str) -> bool:
    """Return whether a text is a number as other programs write it; `float` accepts more, such as 1_000."""
    return _NUMBER.fullmatch(text.strip()) is not None
