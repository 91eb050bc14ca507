"""Arrays as users give them: files of NumPy, and nested lists of numbers, as JSON has them.

Types in lists are checked before NumPy sees anything: left to guess, it would allocate the length of one long string
for every number beside it. A refused value takes no more memory than its lists.
"""

import sys
from collections.abc import Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import MAGIC_PREFIX
from numpy.typing import NDArray

from models.messages import first_line, shown

_LISTS = {list, tuple}
_NUMBERS = frozenset({int, float})


def load_arrays(path: Path | str) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Return the array of a .npy file, or those of a .npz file by name.

    Raises:
        ValueError: the file is damaged, shorter than its header says, or holds Python objects.
        OSError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as file:  # NumPy itself leaves a damaged archive open
            if file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
                return np.array(np.load(path, mmap_mode="r", allow_pickle=False))  # a claimed size takes no memory
            file.seek(0)
            stored = np.load(file, allow_pickle=False)
            return {name: stored[name] for name in stored}
    except OSError:
        raise
    except Exception as error:  # a damaged header or archive can raise anything
        raise ValueError(first_line(error)) from None


def load_array(path: Path | str) -> NDArray[Any]:
    """Return the array of a .npy file; raise as `load_arrays`, and a ValueError for a .npz file."""
    stored = load_arrays(path)
    if isinstance(stored, dict):
        raise ValueError("holds several arrays; save one with numpy.save")
    return stored


class NestedError(ValueError):
    """Nested lists have the wrong shape or content; the message says where."""


def outline(value: Any) -> tuple[int, ...]:
    """Return the lengths of the first list at each depth, from the outside in."""
    lengths: list[int] = []
    while type(value) in _LISTS:
        lengths.append(len(value))
        value = value[0] if value else None
    return tuple(lengths)


def to_floats(
    value: Any, shape: tuple[int, ...], name: str, expected: str = "", kinds: Set[type] = _NUMBERS
) -> NDArray[np.float64]:
    """Return nested lists of numbers as an array.

    Args:
        value: lists or tuples of int and float; booleans and strings are refused.
        shape: the shape it must have, of at least one axis.
        name: its name in messages.
        expected: the shape in words; by default its sizes.
        kinds: the types that its numbers may have.

    Raises:
        NestedError: another shape, a non-numeric value, or an integer that a double cannot hold.
    """
    expected = expected or f"shape {list(shape)}"
    if type(value) not in _LISTS:
        raise _other_shape(value, (), shape, name, expected, alike=True)
    lists: Sequence[Any] = (value,)
    for axis, size in enumerate(shape):
        if axis:
            lists = list(chain.from_iterable(lists))
        if not set(map(type, lists)) <= _LISTS or set(map(len, lists)) - {size}:
            k = next(k for k, item in enumerate(lists) if type(item) not in _LISTS or len(item) != size)
            alike = len({len(item) if type(item) in _LISTS else -1 for item in lists}) == 1
            raise _other_shape(value, np.unravel_index(k, shape[:axis]), shape, name, expected, alike)
    if not set(map(type, chain.from_iterable(lists))) <= kinds:
        k, item = next((k, item) for k, item in enumerate(chain.from_iterable(lists)) if type(item) not in kinds)
        raise _not_numeric(_at(name, np.unravel_index(k, shape)), item, name, expected)
    try:
        return np.fromiter(chain.from_iterable(lists), np.float64, len(lists) * shape[-1]).reshape(shape)
    except OverflowError:
        numbers = enumerate(chain.from_iterable(lists))
        k = next(k for k, item in numbers if type(item) is int and abs(item) > sys.float_info.max)
        where = _at(name, np.unravel_index(k, shape))
        raise NestedError(
            f"{where} is an integer that is too large for a double; {name} takes numbers below 1.8e308, in {expected}"
        ) from None


def _other_shape(
    value: Any, place: Sequence[Any], shape: tuple[int, ...], name: str, expected: str, alike: bool
) -> NestedError:
    """Return the error for an item that is not a list of the right length; `alike` if all at its depth are alike."""
    item: Any = value
    for k in place:
        item = item[k]
    where = _at(name, place)
    if type(item) not in _LISTS and type(item) not in (int, float):
        return _not_numeric(where, item, name, expected)
    if not alike:
        lengths = f"has {len(item)} entries" if type(item) in _LISTS else f"is {shown(item)}"
        return NestedError(f"{name} is ragged: {where} {lengths}, not {shape[len(place)]}; it must be {expected}")
    lengths = outline(value)
    leaf: Any = value
    for _ in lengths:
        leaf = leaf[0] if leaf else 0.0
    if type(leaf) not in (int, float):
        return _not_numeric(_at(name, (0,) * len(lengths)), leaf, name, expected)
    return NestedError(f"{name} has the shape {list(lengths)}; it must be {expected}")


def _not_numeric(where: str, item: Any, name: str, expected: str) -> NestedError:
    return NestedError(f"{where} is {shown(item)}; {name} must hold numbers only, in {expected}")


def _at(name: str, place: Sequence[Any]) -> str:
    return name + "".join(f"[{k}]" for k in place)
