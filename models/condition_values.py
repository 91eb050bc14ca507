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

from models.arrays import NestedError, outline, to_floats
from models.conditions import ONE, ConditionError, Flag, NamedCondition, NamedConditions, label_of, labels_of, titled
from models.messages import shown
from models.shapes import AxisSizes, ShapeError

_SHORT = 256  # bytes of a row up to which looking for equal rows is not worth it
_LISTS = (list, tuple)
_EXACT = 1 << 53  # integers in lists are read as doubles


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
            ConditionError: a name is unknown or missing, or a value has another shape.
        """
        self._takes, self._requested, self._samples, self._dtype = takes, requested, samples, dtype
        self._optional, self._what = optional, what
        self.sizes = AxisSizes(takes.axes) if sizes is None else sizes
        for name in requested:
            if name not in takes.in_requests:
                raise ConditionError(
                    f"there is no condition {name[:60]!r}; this model takes {', '.join(takes.in_requests)}", name
                )
        self.bytes, self.max_rows = 0, 1
        for name in takes.in_requests:
            entry = takes.entries[name]
            if name in requested:
                rows, shape = self._shape_of(name, entry)
                self.max_rows = max(self.max_rows, rows)
                self.bytes += rows * math.prod(shape) * entry.network_dtype(dtype).itemsize
            elif entry.default is None and not entry.nullable and name not in optional:
                raise ConditionError(
                    f"{titled(name)} is missing; expected {entry.describe()}: this model was trained without a null "
                    "for it, so give a condition",
                    name,
                )

    def _shape_of(self, name: str, entry: NamedCondition) -> tuple[int, tuple[int, ...]]:
        """Check the shape of a value; return its number of rows and the shape of one, and record sizes of free axes."""
        value = self._requested[name]
        shape = value.shape if isinstance(value, np.ndarray) else outline(value)
        more = len(shape) - len(entry.shape)
        rows, row = (shape[0], shape[1:]) if more == 1 else (1, shape)
        fits = more == 0 or (more == 1 and rows in (1, self._samples))
        if not fits or any(size != at for size, at in zip(entry.shape, row, strict=True) if isinstance(size, int)):
            what = f"has the shape {list(shape)}" if shape else f"is {shown(value)}"
            raise ConditionError(
                f"{titled(name)} {what}, expected {entry.describe()} for all samples, or "
                f"{self._samples} of these, one for each",
                name,
            )
        for axis, size in zip(entry.shape, row, strict=True):
            if isinstance(axis, int):
                continue
            if not 1 <= size <= entry.max[axis]:
                raise ConditionError(
                    f"{titled(name)} has {axis} = {size}, expected 1 to {entry.max[axis]}: {entry.describe()}", name
                )
            try:
                self.sizes.note(axis, size, f"{self._what} {name!r}")
            except ShapeError as error:
                raise ConditionError(str(error), name) from None
        return rows, row

    def tensors(self) -> dict[str, Distinct]:
        """Return the conditions by name, as the network takes them.

        Raises:
            ConditionError: a value is of another dtype, not finite or out of range.
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
                raise ConditionError(
                    f"{titled(name)} has a number outside {info.min} to {info.max}, the range of {entry.dtype}", name
                )
        tensor = torch.from_numpy(np.array(array, order="C")).to(kind)
        values = entry.standardised(tensor, self._dtype)
        if values.is_floating_point() and not values.isfinite().all():
            dtype = str(values.dtype).removeprefix("torch.")
            raise ConditionError(f"{titled(name)} holds a number that is not finite in {dtype}", name)
        return values


def _checked(name: str, entry: NamedCondition, card: NamedCondition, value: NDArray[Any]) -> NDArray[Any]:
    """Return an array if its dtype can be converted to that of the condition; raise otherwise."""
    kind = entry.torch_dtype
    allowed = "fiu" if kind.is_floating_point else "b" if kind == torch.bool else "iu"
    if value.dtype.kind not in allowed:
        raise ConditionError(f"{titled(name)} is {value.dtype}, expected {card.describe()}", name)
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
        raise ConditionError(str(error), name) from None
    if kind == torch.bool:
        return array != 0
    if kind.is_floating_point:
        return array
    if array.size and np.abs(array).max() > _EXACT:
        raise ConditionError(f"{titled(name)} holds an integer over 2**53; send the condition as an array (npz)", name)
    return array.astype(np.int64)


def _labels(name: str, entry: NamedCondition, value: Any) -> Any:
    """Replace names of classes by labels."""
    if isinstance(value, _LISTS):
        return [_labels(name, entry, item) for item in value]
    label = label_of(value, entry.classes or 0, entry.names)
    if label is None:
        raise _no_class(name, entry, value)
    return label


def _no_class(name: str, entry: NamedCondition, value: Any) -> ConditionError:
    return ConditionError(f"{titled(name)} is {shown(value)}, expected {entry.describe()}", name)


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
