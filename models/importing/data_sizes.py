"""Sizes of the data that a decoder program returns for states with free axes, measured at a few sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from models.importing.files import ForeignError
from models.shapes import FreeAxis, Line, Shape, typical

_TRIALS = 4  # sizes of each axis at which a program is run


def trial_sizes(axes: Mapping[str, FreeAxis]) -> Iterator[dict[str, int]]:
    """Yield sizes to run a program at: small ones, and each axis in turn a little larger."""
    base = typical(axes)
    yield base
    for name, axis in axes.items():
        allowed = range(axis.smallest, axis.max + 1, axis.multiple)
        first = max(0, min(allowed.index(axis.typical), len(allowed) - _TRIALS))
        yield from ({**base, name: size} for size in allowed[first : first + _TRIALS] if size != base[name])


def data_sizes(
    file: Path, shape_at: Callable[[Mapping[str, int]], tuple[int, ...]], axes: Mapping[str, FreeAxis]
) -> Shape:
    """Return the shape of one row of data, in which a size may be a multiple of one axis plus or minus a constant.

    Args:
        file: the program, for messages.
        shape_at: sizes -> the shape of one row of data at these sizes.
        axes: the allowed sizes of the free axes of states.

    Raises:
        ForeignError: a size depends on the axes in another way. Errors raised by the program propagate.
    """
    trials = [(sizes, shape_at(sizes)) for sizes in trial_sizes(axes)]
    first = trials[0][1]
    if any(len(shape) != len(first) for _, shape in trials):
        raise ForeignError(f"{file}: returns data with a number of axes that depends on their sizes")
    data: list[int | str] = []
    for place, size in enumerate(first):
        measured = [(sizes, shape[place]) for sizes, shape in trials]
        line = _line(measured)
        if any((size if line is None else line.of(sizes)) != at for sizes, at in measured):
            listed = "; ".join(
                f"{at} at {', '.join(f'{axis} = {value}' for axis, value in sizes.items())}" for sizes, at in measured
            )
            raise ForeignError(
                f"{file}: dimension {place + 1} of its data is {listed}: it must be a multiple of one axis, plus or "
                "minus a constant, as in 256*T or 2*T-1"
            )
        data.append(size if line is None else str(line))
    return tuple(data)


def _line(measured: list[tuple[dict[str, int], int]]) -> Line | None:
    """Return the line through the first two distinct sizes of data; None if all are equal."""
    base, size = measured[0]
    for sizes, larger in measured:
        for axis, at in sizes.items():
            times = (larger - size) // (at - base[axis]) if at != base[axis] else 0
            if times > 0:
                return Line(axis, times, size - times * base[axis])
    return None
