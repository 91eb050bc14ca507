"""Named conditions: tensors that a network takes besides its states and times, each under its name in the card.

    "text":  {"dtype": "float32", "shape": ["L", 4096], "max": {"L": 512}, "null": "zeros"}
    "image": {"dtype": "uint8", "shape": [3, 96, 96], "scale": 0.00392}

A network takes them as a dict of tensors (rows, *shape). A size that is a name is a free axis: each request gives its
size, and all rows of one network call have the same one (see `NamedConditions.sized`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from models.conditions import ONE, ConditionError, Device, LabelCondition, VectorCondition
from models.shapes import MAX_NUMBERS, NAME, Axis, AxisName, Size, free_axes, sized

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    )
}  # fmt: skip
"""The dtypes of conditions by name."""

_SHORT = 256  # bytes of a row up to which looking for equal rows is not worth it
_MAX_CLASSES = 1 << 20


class Flag(BaseModel):
    """A null given to the network by another condition: a boolean that is true where this condition is missing.

    Attributes:
        flag: the name of that boolean; requests do not give it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flag: str = Field(pattern=NAME)


class NamedCondition(BaseModel):
    """One condition.

    Attributes:
        dtype: dtype of the values that requests give.
        shape: shape of one row; a name is a free axis.
        max: the largest size of each free axis.
        null: the value that means "not given", so that the model also samples without it and can be guided: `zeros`, a
            number that fills it (such as the label that means none), `stored` (a tensor of the weights file), or a
            `Flag`. None if the network was trained without a null.
        default: a number that fills it if a request leaves it out; None if it must be given, or its null is used.
        scale: a factor for the values; the network then takes them in the dtype of the states. None leaves values
            and dtype unchanged.
        classes: for integers that are labels: the number of classes, from 0 to classes - 1.
        names: a name for each class, or None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"] = (
        "float32"
    )
    shape: tuple[Size | AxisName, ...] = Field(default=(), max_length=8)
    max: dict[str, Size] = Field(default_factory=dict)
    null: Literal["zeros", "stored"] | bool | int | float | Flag | None = None
    default: bool | int | float | None = None
    scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    classes: int | None = Field(default=None, ge=1, le=_MAX_CLASSES)
    names: tuple[str, ...] | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value not in (None, {})}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        free = self.free
        if set(free) != set(self.max):
            raise ValueError(
                f"the free axes are {list(free)}, but max has {sorted(self.max)}; give each axis its largest size there"
            )
        if math.prod(self.max[size] if isinstance(size, str) else size for size in self.shape) > MAX_NUMBERS:
            raise ValueError(f"shape {list(self.shape)} may hold more than {MAX_NUMBERS} numbers")
        if self.classes is not None and (self.torch_dtype.is_floating_point or self.dtype == "bool"):
            raise ValueError(f"classes are for integers, and this is {self.dtype}")
        if self.names is not None and not len(set(self.names)) == len(self.names) == self.classes:
            raise ValueError(
                f"there are {len(self.names)} names, {len(set(self.names))} of them different; classes is "
                f"{self.classes}: give one name for each class"
            )
        if self.null == "stored" and free:
            raise ValueError("a stored null has one shape, and this condition has a free axis")
        for name in ("null", "default"):
            value = getattr(self, name)
            if isinstance(value, bool | int | float) and not _holds(self.torch_dtype, value):
                raise ValueError(f"{name} is {value}, which is not a valid {self.dtype}")
        return self

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return DTYPES[self.dtype]

    @property
    def free(self) -> tuple[str, ...]:
        """The names of its free axes."""
        return free_axes(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its shape, which must not have a free axis."""
        return tuple(size for size in self.shape if isinstance(size, int))

    @property
    def nullable(self) -> bool:
        """Whether there is a null."""
        return self.null is not None

    @property
    def numbers(self) -> int:
        """The maximum number of elements in one row."""
        return math.prod(self.max[size] if isinstance(size, str) else size for size in self.shape)

    def given_to(self, states: torch.dtype) -> torch.dtype:
        """Return the dtype that the network takes."""
        return self.torch_dtype if self.scale is None else states

    def describe(self) -> str:
        """Return its dtype and shape in words."""
        axes = [f"{size} up to {self.max[size]}" if isinstance(size, str) else str(size) for size in self.shape]
        return f"{self.dtype} of shape [{', '.join(axes)}]"


def _holds(dtype: torch.dtype, value: float) -> bool:
    if dtype == torch.bool:
        return isinstance(value, bool)
    if dtype.is_floating_point:
        return math.isfinite(value)
    info = torch.iinfo(dtype)
    return not isinstance(value, bool) and float(value).is_integer() and info.min <= value <= info.max


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
        each = cls(rows, np.arange(len(rows)))
        return each if rows[0].nbytes < _SHORT else each.merged()

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


def class_names(takes: Conditioning, conditions: Mapping[str, Distinct]) -> dict[str, str | list[str | None] | None]:
    """Return the names of the classes that samples have, by condition; those without names are called by number.

    Returns:
        For each condition that is one label: the name for all samples, or a list with one for each; None for the null.
    """
    entries = takes.entries if isinstance(takes, NamedConditions) else {ONE: takes}
    found: dict[str, str | list[str | None] | None] = {}
    for name, entry in entries.items():
        if isinstance(entry, VectorCondition) or entry.classes is None or name not in conditions:
            continue
        if isinstance(entry, NamedCondition) and entry.shape:
            continue
        names = entry.names or range(entry.classes)
        of = conditions[name]
        named = [str(names[label]) if 0 <= label < entry.classes else None for label in of.rows.tolist()]
        found[name] = named[0] if of.index is None else [named[row] for row in of.index.tolist()]
    return found


def repeated(conditions: Mapping[str, Distinct] | None, samples: NDArray[np.int64]) -> dict[str, Distinct] | None:
    """Return the conditions of some samples, given by index; None for None."""
    return None if conditions is None else {name: each.of(samples) for name, each in conditions.items()}


@dataclass(frozen=True)
class NamedConditions:
    """All conditions of a network by name, in the order of the card.

    Attributes:
        entries: the conditions.
        stored: the nulls stored in the weights file, by name.
        bounds: bounds of free axes that have more than a largest size.
    """

    entries: Mapping[str, NamedCondition]
    stored: Mapping[str, Tensor] = field(default_factory=dict)
    bounds: Mapping[str, Axis] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedConditions) and dict(self.entries) == dict(other.entries)

    def __hash__(self) -> int:
        return hash(tuple(self.entries))

    def check_entries(self) -> None:
        """Raise a ValueError unless every flag is a boolean without axes and without a default."""
        for name, entry in self.entries.items():
            if not isinstance(entry.null, Flag):
                continue
            flag = self.entries.get(entry.null.flag)
            if flag is None or flag.dtype != "bool" or flag.shape or flag.null is not None or flag.default is not None:
                raise ValueError(
                    f"the null of {name} is the flag {entry.null.flag!r}; that must be a separate condition, bool of "
                    "shape [], without null and default"
                )

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its tensors."""
        return tuple(self.entries)

    @property
    def flags(self) -> frozenset[str]:
        """The conditions that requests do not give, because they flag that another one is missing."""
        return frozenset(entry.null.flag for entry in self.entries.values() if isinstance(entry.null, Flag))

    @property
    def given(self) -> tuple[str, ...]:
        """The conditions that requests give."""
        return tuple(name for name in self.entries if name not in self.flags)

    @property
    def axes(self) -> dict[str, Axis]:
        """The free axes with their bounds."""
        found: dict[str, int] = {}
        for entry in self.entries.values():
            for axis, most in entry.max.items():
                found[axis] = min(most, found.get(axis, most))
        return {axis: self.bounds.get(axis) or Axis(max=most) for axis, most in found.items()}

    @property
    def null(self) -> bool:
        """Whether every condition has a null."""
        return all(self.entries[name].nullable for name in self.given)

    def droppable(self, negative: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names that "no condition" drops: those with a null or a negative condition."""
        return tuple(name for name in self.given if name in negative or self.entries[name].nullable)

    def with_flags(self, names: frozenset[str]) -> frozenset[str]:
        """Return these names, and those of the flags that mark the conditions as missing."""
        nulls = [self.entries[name].null for name in names]
        return names.union(null.flag for null in nulls if isinstance(null, Flag))

    def sized(self, sizes: Mapping[str, int]) -> NamedConditions:
        """Return the same conditions without free axes: each axis gets the size given for it, or a typical one."""
        found = {axis: sizes.get(axis, bounds.typical) for axis, bounds in self.axes.items()}

        def fixed(entry: NamedCondition) -> NamedCondition:
            return entry.model_copy(update={"shape": sized(entry.shape, found), "max": {}})

        return replace(self, entries={name: fixed(entry) for name, entry in self.entries.items()}) if found else self

    def null_of(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return the null of one condition, (1, *shape), as the network takes it.

        Raises:
            ConditionError: the null was not trained.
        """
        entry = self.entries[name]
        if name in self.flags:
            return torch.ones((1, *entry.sizes), dtype=torch.bool)
        if entry.null is None:
            raise ConditionError(f"condition {name!r} is missing; this model was trained without a null for it")
        if entry.null == "stored":
            null = self.stored[name].reshape(1, *entry.sizes)
        else:
            fill = entry.null if isinstance(entry.null, bool | int | float) else 0
            null = torch.full((1, *entry.sizes), fill, dtype=entry.torch_dtype)
        return null if entry.scale is None else null.to(dtype) * entry.scale

    def nulls(self, rows: int, dtype: torch.dtype, device: Device = "cpu") -> dict[str, Tensor]:
        """Return the nulls for `rows` rows by name; raise a ConditionError if one was not trained."""
        found = {name: self.null_of(name, dtype).to(device) for name in self.entries}
        return {name: null.expand(rows, *null.shape[1:]) for name, null in found.items()}

    def examples(self, rows: int, dtype: torch.dtype, device: Device = "cpu") -> dict[str, Tensor]:
        """Make conditions for `rows` rows, at random in each row and number, for testing and trying a network."""
        return {
            name: self._example(entry, rows, dtype, torch.Generator().manual_seed(place)).to(device)
            for place, (name, entry) in enumerate(self.entries.items())
        }

    @staticmethod
    def _example(entry: NamedCondition, rows: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        shape, kind = (rows, *entry.sizes), entry.torch_dtype
        if kind.is_floating_point:
            values = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
        elif kind == torch.bool:
            values = torch.rand(shape, generator=generator) < 2 / 3
        else:
            least = 0 if entry.default is None else int(entry.default)  # a default alone would hide the condition
            most = entry.classes or min(max(256, least + 2), torch.iinfo(kind).max)
            values = torch.randint(max(1, most), shape, generator=generator)
        made = values.to(kind).to(entry.given_to(dtype))
        return made if entry.scale is None else made * entry.scale

    def check(self, condition: Any, rows: int, dtype: torch.dtype) -> None:
        """Raise a ConditionError unless each name has a tensor of the right shape and dtype for `rows` rows."""
        if not isinstance(condition, Mapping) or set(condition) != set(self.entries):
            found = sorted(condition) if isinstance(condition, Mapping) else type(condition).__name__
            raise ConditionError(f"conditions are {found}; this model takes a dict with {', '.join(self.entries)}")
        for name, entry in self.entries.items():
            tensor = condition[name]
            wanted = (rows, *entry.shape)
            fits = len(wanted) == tensor.ndim and all(
                isinstance(size, str) or size == found for size, found in zip(wanted, tensor.shape, strict=True)
            )
            if not fits or tensor.dtype != entry.given_to(dtype):
                raise ConditionError(
                    f"condition {name!r} is {tensor.dtype} of shape {tuple(tensor.shape)}; this model takes "
                    f"{entry.given_to(dtype)} of shape {wanted}"
                )

    def unpack(self, condition: Any) -> tuple[Tensor, ...]:
        """Return the tensors of a condition, in the order of `inputs`."""
        return tuple(condition[name] for name in self.entries)

    def pack(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the condition made of these tensors."""
        return dict(zip(self.entries, tensors, strict=True))


Conditioning = LabelCondition | VectorCondition | NamedConditions
"""The conditioning of a network: a label or a vector, or named conditions."""
