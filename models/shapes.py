"""Shapes with free axes: sizes of states and conditions that each request chooses.

A shape is a tuple of sizes. A name in it is a free axis, with bounds given in the card:

    "event_shape": [80, "T"], "axes": {"T": {"max": 2000, "multiple": 4}}

Samples share network calls only with samples of the same size.

A decoder program may return data of another size: each size of data is an axis, or a multiple of one plus or minus a
constant, such as `256*T` or `2*T-1`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from models.frozen import Sparse

NAME = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
"""Names of axes and of conditions."""

MAX_NUMBERS = 1 << 26
"""Maximum number of elements in one state, or in one row of a condition."""

_TYPICAL = 8
"""Approximate size of a free axis when a network is tried without a request."""

_COMPUTED = r"^(?:([1-9][0-9]{0,7})\*)?([A-Za-z][A-Za-z0-9_]{0,63})([+-][1-9][0-9]{0,7})?$"

AxisName = Annotated[str, Field(pattern=NAME)]
DataSize = Annotated[str, Field(pattern=_COMPUTED)]
Size = Annotated[int, Field(ge=1, le=MAX_NUMBERS)]
Shape = tuple[int | str, ...]


class ShapeError(ValueError):
    """A size is missing, not allowed, or contradicts another.

    Attributes:
        axis: the free axis.
    """

    def __init__(self, axis: str, message: str) -> None:
        super().__init__(message)
        self.axis = axis


class FreeAxis(Sparse):
    """The sizes that a free axis may have.

    Attributes:
        min, max: the smallest and the largest.
        multiple: the number that every size is a multiple of.
    """

    unwritten = ("min", "multiple")

    min: Size = 1
    max: Size
    multiple: Size = 1

    @model_validator(mode="after")
    def _has_sizes(self) -> Self:
        if self.smallest > self.max:
            raise ValueError(f"no multiple of {self.multiple} is from {self.min} to {self.max}")
        return self

    @property
    def smallest(self) -> int:
        """The smallest size that is allowed."""
        return -(-self.min // self.multiple) * self.multiple

    @property
    def typical(self) -> int:
        """A small size to try a network with."""
        return self.nearest(_TYPICAL)[-1]

    @property
    def middle(self) -> int:
        """The geometric mean of the smallest and the largest size: neither hides what a call costs."""
        return self.nearest(round(math.sqrt(self.smallest * self.max)))[-1]

    def allows(self, size: int) -> bool:
        """Return whether the axis may have this size."""
        return self.min <= size <= self.max and not size % self.multiple

    def takes(self, other: FreeAxis) -> bool:
        """Return whether every size allowed for another axis is allowed for this one."""
        return (
            self.min <= other.smallest
            and other.max <= self.max
            and not (other.smallest % self.multiple or (other.multiple % self.multiple and other.smallest != other.max))
        )

    def nearest(self, size: int) -> list[int]:
        """Return the allowed sizes nearest to a size: the largest below and the smallest above, if any."""
        largest = self.max // self.multiple * self.multiple
        below, above = size // self.multiple * self.multiple, -(-size // self.multiple) * self.multiple
        return sorted({min(max(near, self.smallest), largest) for near in (below, above)})

    def describe(self) -> str:
        """Return the allowed sizes in words."""
        steps = f" in multiples of {self.multiple}" if self.multiple > 1 else ""
        return f"{self.smallest} to {self.max}{steps}"


class Line(NamedTuple):
    """A size of data that follows from an axis: times * axis + plus."""

    axis: str
    times: int = 1
    plus: int = 0

    def __str__(self) -> str:
        times = f"{self.times}*" if self.times != 1 else ""
        return f"{times}{self.axis}{f'{self.plus:+d}' if self.plus else ''}"

    def of(self, sizes: Mapping[str, int]) -> int:
        """Return the size of data for sizes of the axes."""
        return self.times * sizes[self.axis] + self.plus

    def axis_of(self, size: int) -> int | None:
        """Return the size of the axis for a size of data; None if there is none."""
        of_axis, remainder = divmod(size - self.plus, self.times)
        return None if remainder else of_axis


@lru_cache(maxsize=1024)
def line_of(size: str) -> Line:
    """Parse a size of data that is not a number.

    Raises:
        ValueError: it is not of that form.
    """
    if (match := re.fullmatch(_COMPUTED, size)) is None:
        raise ValueError(f"{size[:80]!r} is not a size; write an axis, or a multiple such as 256*T or 2*T-1")
    times, axis, plus = match.groups()
    return Line(axis, int(times or 1), int(plus or 0))


def free_axes(shape: Sequence[int | str]) -> tuple[str, ...]:
    """Return the names of the free axes of a shape."""
    return tuple(dict.fromkeys(line_of(size).axis for size in shape if isinstance(size, str)))


def computed(shape: Sequence[int | str]) -> tuple[str, ...]:
    """Return the sizes of a shape that follow from a free axis, but are not that axis itself."""
    return tuple(size for size in shape if isinstance(size, str) and line_of(size).axis != size)


def free_places(shape: Sequence[int | str]) -> tuple[int, ...]:
    """Return the positions of the free axes in a shape."""
    return tuple(place for place, size in enumerate(shape) if isinstance(size, str))


def sized(shape: Sequence[int | str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape with its free axes replaced by sizes.

    Raises:
        ShapeError: one is missing.
    """
    for axis in free_axes(shape):
        if axis not in sizes:
            raise ShapeError(axis, f"the axis {axis} of shape {list(shape)} is free; it needs a size here")
    return tuple(line_of(size).of(sizes) if isinstance(size, str) else size for size in shape)


def typical(axes: Mapping[str, FreeAxis]) -> dict[str, int]:
    """Return sizes to try a network with."""
    return {name: axis.typical for name, axis in axes.items()}


def matched(shape: Sequence[int | str], actual: Sequence[int]) -> dict[str, int] | None:
    """Return the sizes of the free axes that make a shape equal to the one found; None if there are none."""
    sizes: dict[str, int] = {}
    if len(shape) != len(actual):
        return None
    for size, at in zip(shape, actual, strict=True):
        axis, at_axis = ("", at) if isinstance(size, int) else (line_of(size).axis, line_of(size).axis_of(at))
        if at_axis is None or (at != size if isinstance(size, int) else sizes.setdefault(axis, at_axis) != at_axis):
            return None
    return sizes


def reshaped(shape: Sequence[int | str], actual: Sequence[int], target: Sequence[int | str]) -> tuple[int, ...]:
    """Return a target shape with the sizes of the free axes that make `shape` equal to the one found.

    Raises:
        ValueError: the shapes do not match.
    """
    if (sizes := matched(shape, actual)) is None:
        raise ValueError(f"the shape is {list(actual)}; it must be {list(shape)}")
    return sized(target, sizes)


def described(shape: Sequence[int | str], axes: Mapping[str, FreeAxis]) -> str:
    """Return a shape in words."""
    parts = [f"{size} from {axes[size].describe()}" if isinstance(size, str) else str(size) for size in shape]
    return f"[{', '.join(parts)}]"


def check_axes(shapes: Mapping[str, Sequence[int | str]], axes: Mapping[str, FreeAxis]) -> None:
    """Raise a ValueError unless each free axis of some named shapes has bounds, with tensors that memory can hold."""
    for what, shape in shapes.items():
        missing = [axis for axis in free_axes(shape) if axis not in axes]
        if missing:
            raise ValueError(f"{what} is {list(shape)}, but axes has no {missing[0]!r}; give its largest size there")
        bounds = {axis: axes[axis] for axis in free_axes(shape)}
        if min(sized(shape, {axis: sizes.smallest for axis, sizes in bounds.items()}), default=1) < 1:
            raise ValueError(f"{what} {list(shape)} has a size of less than 1 where its axes are smallest")
        if math.prod(sized(shape, {axis: sizes.max for axis, sizes in bounds.items()})) > MAX_NUMBERS:
            raise ValueError(f"{what} {list(shape)} may hold more than {MAX_NUMBERS} numbers")


class AxisSizes:
    """The sizes of a model's free axes in one request, given in one place or in several that must agree."""

    def __init__(self, axes: Mapping[str, FreeAxis]) -> None:
        """Start without any sizes.

        Args:
            axes: the free axes of the model.
        """
        self.axes = axes
        self._noted: dict[str, tuple[int, str]] = {}

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes given so far."""
        return {axis: size for axis, (size, _) in self._noted.items()}

    def note(self, axis: str, size: int, where: str) -> None:
        """Record a size given in some place of the request.

        Raises:
            ShapeError: the size is not allowed, or differs from one given elsewhere in the request.
        """
        bounds = self.axes[axis]
        if not bounds.allows(size):
            near = bounds.nearest(size)
            advice = f"; nearest: {' and '.join(map(str, near))}" if bounds.multiple > 1 else ""
            raise ShapeError(axis, f"{where} has {axis} = {size}, expected {bounds.describe()}{advice}")
        before, earlier_place = self._noted.setdefault(axis, (size, where))
        if before != size:
            raise ShapeError(
                axis, f"{where} has {axis} = {size}, but {earlier_place} has {axis} = {before}; they must agree"
            )

    def settle(self, needed: Sequence[str] = (), sources: Mapping[str, str] = MappingProxyType({})) -> dict[str, int]:
        """Return a size for each axis; an axis that is neither required nor given gets its smallest size.

        Args:
            needed: the axes that a request must give.
            sources: for each axis, where else a request can give it, in words.

        Raises:
            ShapeError: a required axis was not given.
        """
        for axis in needed:
            if axis not in self._noted:
                also = f", or {sources[axis]}" if sources.get(axis) else ""
                allowed = self.axes[axis].describe()
                raise ShapeError(axis, f'{axis} is missing; give shape {{"{axis}": N}}, N from {allowed}{also}')
        return {axis: self.sizes.get(axis, bounds.smallest) for axis, bounds in self.axes.items()}
