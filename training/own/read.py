"""What reading data of your own gives: samples, and what they are conditioned on, both checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.condition import LabelCondition, VectorCondition
from training.errors import DataError


@dataclass(frozen=True)
class Read:
    """What was read.

    Attributes:
        samples: (samples, *shape), float32; pictures are (samples, channels, height, width) in [0, 1].
        condition: what they are conditioned on, or None.
        conditions: labels (samples,) int64 or vectors (samples, width) float32, or None.
    """

    samples: NDArray[np.float32]
    condition: LabelCondition | VectorCondition | None = None
    conditions: NDArray[Any] | None = None


def checked(path: Path, rows: NDArray[Any], labels: NDArray[Any] | None, vectors: NDArray[Any] | None) -> Read:
    """Check the shapes and numbers of what was read.

    Raises:
        DataError: they do not fit, or a number is not finite.
    """
    if labels is not None and vectors is not None:
        raise DataError(f"data {path}: label and condition are both given; a model takes one of them")
    samples = _finite(path, "the samples", rows)
    if labels is not None:
        if labels.shape != (len(samples),):
            raise DataError(f"data {path}: labels have shape {labels.shape}; one a sample is needed, ({len(samples)},)")
        condition, numbers = classes(path, labels)
        return Read(samples, condition, numbers)
    if vectors is None:
        return Read(samples)
    conditions = _finite(path, "the conditions", vectors)
    if len(conditions) != len(samples):
        raise DataError(f"data {path}: {len(conditions)} conditions for {len(samples)} samples; one each is needed")
    return Read(samples, VectorCondition(width=conditions.shape[1]), conditions)


def _finite(path: Path, what: str, rows: NDArray[Any]) -> NDArray[np.float32]:
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "iufb":
        raise DataError(
            f"data {path}: {what} are {rows.dtype} of shape {rows.shape}; numbers of shape (samples, columns) are "
            "needed, both at least 1"
        )
    with np.errstate(over="ignore"):
        numbers = rows.astype(np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        row, column = bad[0]
        bad_value = rows[row, column]
        raise DataError(
            f"data {path}: {what} hold {len(bad)} numbers that are not finite in float32, the first {bad_value} "
            f"in sample {row}, column {column} (counted from 0); take such rows out"
        )
    return numbers


def classes(path: Path, labels: NDArray[Any]) -> tuple[LabelCondition, NDArray[np.int64]]:
    """Number the classes of labels, words or whole numbers, in their order; names are kept where they say more.

    Raises:
        DataError: a label is no word and no whole number.
    """
    if labels.dtype.kind == "U" and all(label.isdecimal() for label in labels):
        labels = labels.astype(np.int64)
    if labels.dtype.kind == "f" and np.isfinite(labels).all() and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "iuU":
        raise DataError(
            f"data {path}: labels are {labels.dtype}, such as {labels[0]!r}; whole numbers or words are needed"
        )
    found, numbers = np.unique(labels, return_inverse=True)
    names = None if np.array_equal(found, np.arange(len(found))) else tuple(str(name) for name in found)
    return LabelCondition(classes=len(found), names=names), numbers.astype(np.int64).reshape(-1)
