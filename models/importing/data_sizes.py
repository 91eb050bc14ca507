"""Sizes of the data that a decoder program returns for states with free axes, found by running it at a few sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from models.importing.files import ForeignError
from models.shapes import Axis, Line, Shape, typical

_TRIED = 4  # sizes tried per axis


def tried(axes: Mapping[str, Axis]) -> Iterator[dict[str, int]]:
    """Yield sizes to run a program at: small ones, and each axis in turn a little larger."""
    base = typical(axes)
    yield base
    for name, axis in axes.items():
        yield from ({**base, name: size} for size in _sizes(axis) if size != base[name])


def _sizes(axis: Axis) -> range:
    """Neighbouring allowed sizes of an axis, including its typical one."""
    allowed = range(axis.smallest, axis.max + 1, axis.multiple)
    first = max(0, min(allowed.index(axis.typical), len(allowed) - _TRIED))
    return allowed[first : first + _TRIED]


def data_sizes(file: Path, shape_at: Callable[[Mapping[str, int]], tuple[int, ...]], axes: Mapping[str, Axis]) -> Shape:
    """Return the shape of one row of data, in which a size may be a multiple of one axis plus or minus a constant.

    Args:
        file: the program, for messages.
        shape_at: sizes -> the shape of one row of data at these sizes.
        axes: the allowed sizes of the free axes of states.

    Raises:
        ForeignError: a size depends on the axes in another way. Errors raised by the program propagate.
    """
    found = [(sizes, shape_at(sizes)) for sizes in tried(axes)]
    base, shape = found[0]
    if any(len(other) != len(shape) for _, other in found):
        raise ForeignError(f"{file}: returns data with a number of axes that depends on their sizes")
    made: list[int | str] = []
    for place, size in enumerate(shape):
        line = _line([(sizes, other[place]) for sizes, other in found], base, size)
        if any((size if line is None else line.of(sizes[line.axis])) != other[place] for sizes, other in found):
            seen = "; ".join(
                f"{other[place]} at {', '.join(f'{axis} = {at}' for axis, at in sizes.items())}"
                for sizes, other in found
            )
            raise ForeignError(
                f"{file}: dimension {place + 1} of its data is {seen}: it must be a multiple of one axis, plus or "
                "minus a constant, as in 256*T or 2*T-1"
            )
        made.append(size if line is None else str(line))
    return tuple(made)


def _line(found: list[tuple[Mapping[str, int], int]], base: Mapping[str, int], size: int) -> Line | None:
    """Return the line through the first two distinct sizes of data; None if all are equal."""
    for sizes, other in found:
        for axis, at in sizes.items():
            times = (other - size) // (at - base[axis]) if at != base[axis] else 0
            if times > 0:
                return Line(axis, times, size - times * base[axis])
    return None
