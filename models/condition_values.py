"""Values of conditions as users give them: checked by shape first, to know their memory, then made into tensors.

A value is a number, a name of a class, nested lists or an array: one for all samples, or one for each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.conditions import ONE, ConditionError, Flag, NamedCondition, NamedConditions, label_of, labels_of, titled
from models.nested import NestedError, outline, shown, to_floats
from models.shapes import AxisSizes, ShapeError

_SHORT = 256  # bytes of a row up to which looking for equal rows is not worth it
_LISTS = (list, tuple)
_EXACT = 1 << 53  # integers in lists are read as doubles


class NamedConditionError(ConditionError):
    """A named condition is missing, unknown, or of the wrong shape, dtype or size.

    Attributes:
        name: name of the condition.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True)
class Distinct:
    """The values of one condition for some samples, each distinct value once.

    Attributes:
        rows: (distinct, *shape) as the network takes them.
        index: (samples,) the row of each sample; None if all samples share the only row.
    """

    rows: Tensor
    index: NDArray[np.int64] | None = None

    def of(self, samples: NDArray[np.int64]) -> Distinct:
        """Return the values for some samples, given by index; the rows are shared."""
        return self if self.index is None else Distinct(self.rows, self.index[samples])

    def expanded(self, samples: int) -> Tensor:
        """Return one row per sample, (samples, *shape)."""
        return self.rows.expand(samples, *self.rows.shape[1:]) if self.index is None else self.rows[self.index]

    @classmethod
    def from_rows(cls, rows: Tensor) -> Distinct:
        """Build from one row per sample, or one for all; equal rows are stored once, unless they are short."""
        if len(rows) == 1 or rows.stride(0) == 0:
            return cls(rows[:1])
        distinct = cls(rows, np.arange(len(rows)))
        return distinct if rows[0].nbytes < _SHORT else distinct.merged()

    def merged(self) -> Distinct:
        """Return the same values with equal rows stored once."""
        if self.index is None:
            return self
        places: dict[bytes, int] = {}
        flat = self.rows.contiguous().reshape(len(self.rows), -1).view(torch.uint8).numpy()
        place = np.array([places.setdefault(row.tobytes(), len(places)) for row in flat], dtype=np.int64)
        if len(places) == len(self.rows):
            return self
        first = np.unique(place, return_index=True)[1]
        return Distinct(self.rows[torch.from_numpy(first)], None if len(places) == 1 else place[self.index])


def repeated(conditions: Mapping[str, Distinct] | None, samples: NDArray[np.int64]) -> dict[str, Distinct] | None:
    """Return the conditions of some samples, given by index; None for None."""
    return None if conditions is None else {name: distinct.of(samples) for name, distinct in conditions.items()}


class Values:
    """The conditions of one request.

    Attributes:
        sizes: the known sizes of the free axes.
        bytes: bytes of all rows, as the network takes them.
        max_rows: the largest number of rows of any condition: one for all samples, or one for each.
    """

    def __init__(
        self,
        takes: NamedConditions,
        requested: Mapping[str, Any],
        samples: int,
        dtype: torch.dtype,
        sizes: AxisSizes | None = None,
        optional: Collection[str] = (),
        what: str = "condition",
    ) -> None:
        """Check names and shapes; nothing is allocated.

        Args:
            takes: the conditioning of the model.
            requested: values by name.
            samples: number of samples.
            dtype: dtype of the states.
            sizes: the known sizes of the free axes; those of the values are added.
            optional: conditions that are left out if they are missing, rather than replaced by defaults or nulls.
            what: what they are, for errors.

        Raises:
            NamedConditionError: a name is unknown or missing, or a value has another shape.
        """
        self._takes, self._requested, self._samples, self._dtype = takes, requested, samples, dtype
        self._optional, self._what = optional, what
        self.sizes = AxisSizes(takes.axes) if sizes is None else sizes
        for name in requested:
            if name not in takes.in_requests:
                raise NamedConditionError(
                    name, f"there is no condition {name[:60]!r}; this model takes {', '.join(takes.in_requests)}"
                )
        self.bytes, self.max_rows = 0, 1
        for name in takes.in_requests:
            entry = takes.entries[name]
            if name in requested:
                shape = _shape_of(requested[name])
                self._note_sizes(name, entry, shape)
                rows = shape[0] if len(shape) > len(entry.shape) else 1
                self.max_rows = max(self.max_rows, rows)
                self.bytes += (
                    rows * math.prod(shape[len(shape) - len(entry.shape) :]) * entry.network_dtype(dtype).itemsize
                )
            elif entry.default is None and not entry.nullable and name not in optional:
                raise NamedConditionError(
                    name,
                    f"{titled(name)} is missing; expected {entry.describe()}: this model was trained without a null "
                    "for it, so give a condition",
                )

    def _note_sizes(self, name: str, entry: NamedCondition, shape: tuple[int, ...]) -> None:
        """Record the sizes of free axes from a value, and check all other sizes."""
        inner = shape[len(shape) - len(entry.shape) :] if len(entry.shape) <= len(shape) else ()
        rows = shape[0] if len(shape) == len(entry.shape) + 1 else None
        fits = len(shape) == len(entry.shape) or rows in (1, self._samples)
        fits = fits and all(size == at for size, at in zip(entry.shape, inner, strict=False) if isinstance(size, int))
        for axis, size in zip(entry.shape, inner, strict=False):
            if isinstance(axis, int):
                continue
            limit = entry.max[axis]
            if fits and not 1 <= size <= limit:
                raise NamedConditionError(
                    name, f"{titled(name)} has {axis} = {size}, expected 1 to {limit}: {entry.describe()}"
                )
            if fits:
                try:
                    self.sizes.note(axis, size, f"{self._what} {name!r}")
                except ShapeError as error:
                    raise NamedConditionError(name, str(error)) from None
        if not fits:
            value = self._requested[name]
            what = f"has the shape {list(shape)}" if shape else f"is {shown(value)}"
            raise NamedConditionError(
                name,
                f"{titled(name)} {what}, expected {entry.describe()} for all samples, or "
                f"{self._samples} of these, one for each",
            )

    def tensors(self) -> dict[str, Distinct]:
        """Return the conditions by name, as the network takes them.

        Raises:
            NamedConditionError: a value is of another dtype, not finite or out of range.
        """
        takes = self._takes
        fixed = takes.sized(self.sizes.settle())
        tensors: dict[str, Distinct] = {}
        for name in takes.in_requests:
            entry = fixed.entries[name]
            if name in self._requested:
                tensors[name] = Distinct.from_rows(self._tensor(name, entry, takes.entries[name]))
            elif name in self._optional:
                continue
            elif entry.default is not None:
                filled = torch.full((1, *entry.sizes), entry.default, dtype=entry.torch_dtype)
                tensors[name] = Distinct(entry.standardised(filled, self._dtype))
            else:
                tensors[name] = Distinct(fixed.null_of(name, self._dtype))
            if isinstance(entry.null, Flag):
                missing = name not in self._requested and entry.default is None
                tensors[entry.null.flag] = Distinct(torch.tensor([missing]))
        return tensors

    def _tensor(self, name: str, entry: NamedCondition, card: NamedCondition) -> Tensor:
        """Return the value of one condition, (1 or samples, *shape)."""
        value = self._requested[name]
        if isinstance(value, np.ndarray):
            array = _checked(name, entry, card, value)
            if entry.classes is not None:
                labels = labels_of(array, entry.classes, entry.names)
                if (labels < 0).any():
                    raise _no_class(name, entry, array[labels < 0][0].item())
                array = labels
        else:
            array = _from_lists(name, entry, card, value)
        array = array.reshape(-1, *entry.sizes)
        kind = entry.torch_dtype
        if not (kind.is_floating_point or kind == torch.bool) and array.size:
            info = torch.iinfo(kind)
            if array.min() < info.min or array.max() > info.max:
                raise NamedConditionError(
                    name,
                    f"{titled(name)} has a number outside {info.min} to {info.max}, the range of {entry.dtype}",
                )
        tensor = torch.from_numpy(np.array(array, order="C")).to(kind)
        values = entry.standardised(tensor, self._dtype)
        if values.is_floating_point() and not values.isfinite().all():
            dtype = str(values.dtype).removeprefix("torch.")
            raise NamedConditionError(name, f"{titled(name)} holds a number that is not finite in {dtype}")
        return values


def _shape_of(value: Any) -> tuple[int, ...]:
    return value.shape if isinstance(value, np.ndarray) else outline(value)


def _checked(name: str, entry: NamedCondition, card: NamedCondition, value: NDArray[Any]) -> NDArray[Any]:
    """Return an array if its dtype can be converted to that of the condition; raise otherwise."""
    kind = entry.torch_dtype
    allowed = "fiu" if kind.is_floating_point else "b" if kind == torch.bool else "iu"
    if value.dtype.kind not in allowed:
        raise NamedConditionError(name, f"{titled(name)} is {value.dtype}, expected {card.describe()}")
    value = value.astype(value.dtype.newbyteorder("="), copy=False)
    return value.astype(np.int64) if value.dtype.kind == "u" and value.dtype.itemsize > 1 else value


def _from_lists(name: str, entry: NamedCondition, card: NamedCondition, value: Any) -> NDArray[Any]:
    """Return nested lists of numbers, booleans or names of classes as an array."""
    shape = outline(value)
    kind = entry.torch_dtype
    allowed = {int, float} if kind.is_floating_point else {bool} if kind == torch.bool else {int}
    expected = f"{card.describe()}, of {' or '.join(sorted(a.__name__ for a in allowed))}"
    if entry.classes is not None:
        value = _labels(name, entry, value)
    try:
        array = to_floats(
            value if shape else [value], shape or (1,), name if name == ONE else f"conditions.{name}", expected, allowed
        )
    except NestedError as error:
        raise NamedConditionError(name, str(error)) from None
    if kind == torch.bool:
        return array != 0
    if kind.is_floating_point:
        return array
    if array.size and np.abs(array).max() > _EXACT:
        raise NamedConditionError(
            name, f"{titled(name)} holds an integer over 2**53; send the condition as an array (npz)"
        )
    return array.astype(np.int64)


def _labels(name: str, entry: NamedCondition, value: Any) -> Any:
    """Replace names of classes by labels."""
    if isinstance(value, _LISTS):
        return [_labels(name, entry, item) for item in value]
    label = label_of(value, entry.classes or 0, entry.names)
    if label is None:
        raise _no_class(name, entry, value)
    return label


def _no_class(name: str, entry: NamedCondition, value: Any) -> NamedConditionError:
    return NamedConditionError(name, f"{titled(name)} is {shown(value)}, expected {entry.describe()}")


def class_names(takes: NamedConditions, conditions: Mapping[str, Distinct]) -> dict[str, str | list[str | None] | None]:
    """Return the names of the classes that samples have, by condition; without names they are called by number.

    Returns:
        For each condition that is one label: the name for all samples, or a list with one for each; None for the null.
    """
    classes: dict[str, str | list[str | None] | None] = {}
    for name, entry in takes.entries.items():
        if entry.classes is None or entry.shape or name not in conditions:
            continue
        names, distinct = entry.names or range(entry.classes), conditions[name]
        named = [str(names[label]) if 0 <= label < entry.classes else None for label in distinct.rows.tolist()]
        classes[name] = named[0] if distinct.index is None else [named[row] for row in distinct.index.tolist()]
    return classes
