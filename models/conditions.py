"""Labels: classes by their names and numbers. The conditions of a network are in `models.named_conditions`."""

import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.velocity import VelocityError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)

ONE = "condition"
"""The name of the condition that is a class label or a vector."""


class ConditionError(VelocityError):
    """A condition is of the wrong kind, shape, type or size."""


@lru_cache(maxsize=64)
def _index(names: tuple[str, ...] | None) -> tuple[dict[str, int], dict[int, int] | None]:
    """The label of each class by its name, and by its number; None if any number is its own label."""
    texts = {} if names is None else {name: label for label, name in enumerate(names)}
    if not any(_NUMBER.fullmatch(name) for name in texts):
        return texts, None
    whole = {int(name): label for name, label in texts.items() if _WHOLE.fullmatch(name)}
    return texts, whole


def label_of(value: Any, classes: int, names: tuple[str, ...] | None) -> int | None:
    """Return the label of a class from its name or number; None if there is no such class.

    Where names are numbers, a number is a name: of the classes "1", "2" and "3", 1 is the first one. Otherwise it is
    the label itself, from 0 to classes - 1.
    """
    texts, numbers = _index(names)
    if isinstance(value, str):
        return texts.get(value)
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        return None
    if numbers is not None:
        return numbers.get(int(value))
    return int(value) if 0 <= value < classes else None


def labels_of(numbers: NDArray[Any], classes: int, names: tuple[str, ...] | None) -> NDArray[np.int64]:
    """Return the labels of an array of integers, as `label_of` does; -1 for a number without a class."""
    distinct, place = np.unique(numbers, return_inverse=True)
    labels = [label_of(number, classes, names) for number in distinct.tolist()]
    return np.array([-1 if label is None else label for label in labels], dtype=np.int64)[place.reshape(numbers.shape)]


def numbers_are_names(names: tuple[str, ...] | None) -> bool:
    """Whether a number is the name of a class, not its label."""
    return _index(names)[1] is not None


def class_numbers(names: tuple[str, ...] | None) -> dict[str | int, int]:
    """The numbers that stand for named classes in records: the names themselves if all are numbers, else the labels."""
    texts, numbers = _index(names)
    if numbers is None or len(numbers) < len(texts):
        return dict[str | int, int]([*texts.items(), *(numbers or {}).items()])
    return {name: int(name) for name in texts}


def describe_labels(classes: int, names: tuple[str, ...] | None) -> str:
    """Say in words which classes there are."""
    numbers = f"a whole number from 0 to {classes - 1}"
    if names is None:
        return numbers
    listed = f"one of {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
    return listed if numbers_are_names(names) else f"{numbers} or {listed}"
