"""Named conditions: tensors that a network takes besides its states and times, each under its name in the card.

    "text":  {"dtype": "float32", "shape": ["L", 4096], "max": {"L": 512}, "null": "zeros"}
    "image": {"dtype": "uint8", "shape": [3, 96, 96], "scale": 0.00392}
    "state": {"shape": [2], "mean": [0.1, 2000], "scale": [3.5, 0.05]}

A network takes them as a dict of tensors (rows, *shape). A size that is a name is a free axis: each request gives its
size, and all rows of one network call have the same one (see `NamedConditions.sized`). A class label or a vector is the
tensor called `condition`; if that is the only one, the network takes the tensor itself:

    "condition": {"dtype": "int64", "classes": 10, "null": 10}
    "condition": {"dtype": "float64", "shape": [3], "null": "nan", "mean": [..], "scale": [..]}
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PlainValidator, WithJsonSchema, model_validator
from torch import Tensor

from models.frozen import Frozen, Sparse
from models.shapes import MAX_NUMBERS, NAME, AxisName, FreeAxis, Size, free_axes, sized
from models.velocity import Condition, VelocityError, refuse_condition

ONE = "condition"
"""The name of the condition that is a class label or a vector."""

DeviceLike = torch.device | str

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    )
}  # fmt: skip
"""The dtypes of conditions by name."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)
_MAX_CLASSES = 1 << 20


class ConditionError(VelocityError):
    """A condition is missing, unknown, or of the wrong kind, shape, type or size.

    Attributes:
        name: its name, if a request gave it or should have; else empty.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Flag(Frozen):
    """A null given to the network by another condition: a boolean that is true where this condition is missing.

    Attributes:
        flag: the name of that boolean; requests do not give it.
    """

    flag: str = Field(pattern=NAME)


def _numbers(value: Any) -> Any:
    """Return a number, or nested tuples of numbers of equal lengths."""
    array = np.asarray(value, dtype=object)
    if not all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in array.reshape(-1).tolist()
    ):
        raise ValueError("must be a number, or nested lists of numbers with equal lengths")
    try:
        return _tuples(array.astype(np.float64).tolist())
    except OverflowError:
        raise ValueError("must be numbers below 1.8e308") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


Numbers = Annotated[Any, PlainValidator(_numbers), WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "array"}]})]
"""A float, or nested tuples of floats."""


class NamedCondition(Sparse):
    """One condition.

    Attributes:
        dtype: dtype of the values that requests give.
        shape: shape of one row; a name is a free axis.
        max: the largest size of each free axis.
        null: the value that means "not given", so that the model also samples without it and can be guided: `zeros`, a
            number that fills it (such as the label that means none), `nan` (any finite vector could be a real one),
            `stored` (a tensor of the weights file), or a `Flag`. None if the network was trained without a null.
        default: a number that fills it if a request leaves it out; None if it must be given, or its null is used.
        mean, scale: the network takes (value - mean) * scale, in the dtype of the states: a number for all, or nested
            lists that NumPy broadcasts to the shape. With neither, values and dtype are unchanged.
        classes: for integers that are labels: the number of classes, from 0 to classes - 1.
        names: a name for each class, or None.
    """

    unwritten = ("max", "null", "default", "mean", "scale", "classes", "names")

    dtype: Literal["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"] = (
        "float32"
    )
    shape: tuple[Size | AxisName, ...] = Field(default=(), max_length=8)
    max: dict[str, Size] = Field(default_factory=dict)
    null: Literal["zeros", "stored", "nan"] | bool | int | float | Flag | None = None
    default: bool | int | float | None = None
    mean: Numbers | None = None
    scale: Numbers | None = None
    classes: int | None = Field(default=None, ge=1, le=_MAX_CLASSES)
    names: tuple[str, ...] | None = None

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

    @model_validator(mode="after")
    def _moves(self) -> Self:
        """Check the null `nan`, and the mean and the scale."""
        if self.null == "nan" and not self.torch_dtype.is_floating_point:
            raise ValueError(f"null is nan, which is not a valid {self.dtype}")
        for name, value in (("mean", self.mean), ("scale", self.scale)):
            if value is None:
                continue
            if self.classes is not None or self.dtype == "bool":
                raise ValueError(f"{name} is for quantities, and this is a label or a boolean")
            array = np.array(value)
            if not np.isfinite(array).all() or (name == "scale" and (array < 0).any()):
                raise ValueError(f"{name} is {value}; it must be finite{', and at least 0' * (name == 'scale')}")
            fixed = tuple(1 if isinstance(size, str) else size for size in self.shape)
            try:
                fits = np.broadcast_shapes(array.shape, fixed) == fixed
            except ValueError:
                fits = False
            if not fits:
                raise ValueError(
                    f"{name} has the shape {list(array.shape)}, which does not broadcast to {list(self.shape)}; give "
                    "one number for all, or one for each entry along axes that are not free"
                )
        return self

    @classmethod
    def label(cls, classes: int, names: Sequence[str] | None = None, null: bool = True) -> NamedCondition:
        """A class label; with `null`, the label `classes` means no class."""
        texts = None if names is None else tuple(names)
        return cls(dtype="int64", classes=classes, names=texts, null=classes if null else None)

    @classmethod
    def vector(
        cls, width: int, null: bool = True, mean: Sequence[float] | None = None, scale: Sequence[float] | float = 1.0
    ) -> NamedCondition:
        """A vector, which the network takes in the dtype of the states; with `null`, NaN means none."""
        return cls(dtype="float64", shape=(width,), null="nan" if null else None, mean=mean, scale=scale)

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
    def is_standardised(self) -> bool:
        """Whether it has a mean or a scale."""
        return self.mean is not None or self.scale is not None

    def network_dtype(self, states: torch.dtype) -> torch.dtype:
        """Return the dtype that the network takes."""
        return states if self.is_standardised else self.torch_dtype

    def standardised(self, values: Tensor, states: torch.dtype) -> Tensor:
        """Return values (rows, *shape) as the network takes them: (values - mean) * scale.

        With a mean this is computed in float64 unless the values have at most 16 bits, since only the difference from
        a large mean (a year, an income) may be small enough for the dtype of the states.
        """
        if not self.is_standardised:
            return values
        wide = torch.float64 if self.mean is not None and self.torch_dtype.itemsize > 2 else states
        result = values.to(wide)
        if self.mean is not None:
            result = result - torch.tensor(self.mean, dtype=wide, device=values.device)
        if self.scale is not None:
            result = result * (self.scale if isinstance(self.scale, float) else result.new_tensor(self.scale))
        return result.to(states)

    def examples(self, rows: int, states: torch.dtype, nulls: bool = True, seed: int = 0) -> Tensor:
        """Make values (rows, *shape) as the network takes them, at random in each row and number.

        With the seed 0, labels go through all in turn, the null among them. Every seventh row of a quantity with the
        null `nan` is NaN.

        Args:
            rows: number of rows.
            states: dtype of the states.
            nulls: whether nulls are among the examples.
            seed: differs between the conditions of a network.
        """
        shape, kind, generator = (rows, *self.sizes), self.torch_dtype, torch.Generator().manual_seed(seed)
        if kind.is_floating_point:
            values = torch.rand(shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
            if self.null == "nan" and nulls:
                values[6::7] = math.nan
        elif kind == torch.bool:
            values = torch.rand(shape, generator=generator) < 2 / 3
        elif self.classes is not None:
            most = self.classes + (nulls and self.null == self.classes)
            in_turn = not seed and not self.shape
            values = torch.arange(rows) % most if in_turn else torch.randint(most, shape, generator=generator)
        else:
            least = 0 if self.default is None else int(self.default)  # a default alone would hide the condition
            most = min(max(256, least + 2), torch.iinfo(kind).max)
            values = torch.randint(most, shape, generator=generator)
        if self.mean is not None:  # numbers that the mean and the scale make of the data
            return values.to(states)
        return self.standardised(values.to(kind), states)

    def describe(self) -> str:
        """Return its dtype and shape in words."""
        if self.classes is not None and not self.shape:
            numbers, names = f"a whole number from 0 to {self.classes - 1}", self.names or ()
            listed = f"one of {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
            kinds = [*([] if numbers_are_names(self.names) else [numbers]), *([listed] if names else [])]
            return f"a class label, {' or '.join(kinds)}"
        if self.is_standardised and self.torch_dtype.is_floating_point and len(self.sizes) == len(self.shape) == 1:
            return f"a vector of {self.sizes[0]} finite numbers"
        axes = [f"{size} up to {self.max[size]}" if isinstance(size, str) else str(size) for size in self.shape]
        return f"{self.dtype} of shape [{', '.join(axes)}]"


def titled(name: str) -> str:
    """Return how messages call a condition."""
    return ONE if name == ONE else f"condition {name!r}"


def _holds(dtype: torch.dtype, value: float) -> bool:
    if dtype == torch.bool:
        return isinstance(value, bool)
    if dtype.is_floating_point:
        return abs(value) <= sys.float_info.max  # also of an integer that no double holds; False for NaN
    info = torch.iinfo(dtype)
    return not isinstance(value, bool) and info.min <= value <= info.max and float(value).is_integer()


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


@dataclass(frozen=True)
class NamedConditions:
    """All conditions of a network by name, in the order of the card.

    Attributes:
        entries: the conditions.
        stored: the nulls stored in the weights file, by name.
        bounds: bounds of free axes that have more than a largest size.
    """

    entries: Mapping[str, NamedCondition] = field(hash=False)
    stored: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    bounds: Mapping[str, FreeAxis] = field(default_factory=dict, compare=False)

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
    def flags(self) -> frozenset[str]:
        """The conditions that requests do not give, because they flag that another one is missing."""
        return frozenset(entry.null.flag for entry in self.entries.values() if isinstance(entry.null, Flag))

    @property
    def in_requests(self) -> tuple[str, ...]:
        """The conditions that requests give."""
        return tuple(name for name in self.entries if name not in self.flags)

    @property
    def axes(self) -> dict[str, FreeAxis]:
        """The free axes with their bounds."""
        largest: dict[str, int] = {}
        for entry in self.entries.values():
            for axis, most in entry.max.items():
                largest[axis] = min(most, largest.get(axis, most))
        return {axis: self.bounds.get(axis) or FreeAxis(max=most) for axis, most in largest.items()}

    @property
    def nullable(self) -> bool:
        """Whether every condition has a null."""
        return all(self.entries[name].nullable for name in self.in_requests)

    @property
    def single(self) -> NamedCondition | None:
        """The condition called `condition` if it is the only one; the network then takes its tensor, without a name."""
        return self.entries[ONE] if tuple(self.entries) == (ONE,) else None

    def describe(self, name: str) -> str:
        """Return a condition in words, for who gives it."""
        entry = self.entries[name]
        left_out = "" if entry.default is None and not entry.nullable else ", or leave it out"
        return f"{name}: {entry.describe()}{left_out}"

    def droppable(self, negative: Collection[str] = ()) -> tuple[str, ...]:
        """Return the names that "no condition" drops: those with a null or a negative condition."""
        return tuple(name for name in self.in_requests if name in negative or self.entries[name].nullable)

    def with_flags(self, names: frozenset[str]) -> frozenset[str]:
        """Return these names, and those of the flags that mark the conditions as missing."""
        nulls = [self.entries[name].null for name in names]
        return names.union(null.flag for null in nulls if isinstance(null, Flag))

    def sized(self, sizes: Mapping[str, int]) -> NamedConditions:
        """Return the same conditions without free axes: each axis gets the size given for it, or a typical one."""
        settled = {axis: sizes.get(axis, bounds.typical) for axis, bounds in self.axes.items()}

        def fixed(entry: NamedCondition) -> NamedCondition:
            return entry.model_copy(update={"shape": sized(entry.shape, settled), "max": {}})

        return replace(self, entries={name: fixed(entry) for name, entry in self.entries.items()}) if settled else self

    def null_of(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return the null of one condition, (1, *shape), as the network takes it.

        Raises:
            ConditionError: the null was not trained.
        """
        entry = self.entries[name]
        if name in self.flags:
            return torch.ones((1, *entry.sizes), dtype=torch.bool)
        if entry.null is None:
            raise ConditionError(
                f"{titled(name)} is missing; this model was trained without a null for it, so give a condition"
            )
        if entry.null == "stored":
            null = self.stored[name].reshape(1, *entry.sizes)
        else:
            filling: dict[Any, float] = {"nan": math.nan, "zeros": 0}
            fill = entry.null if isinstance(entry.null, bool | int | float) else filling.get(entry.null, 0)
            null = torch.full((1, *entry.sizes), fill, dtype=entry.torch_dtype)
        return entry.standardised(null, dtype)

    def nulls(self, x: Tensor) -> Condition:
        """Return the nulls for states x (rows, *event); raise a ConditionError if one was not trained."""
        nulls = [self.null_of(name, x.dtype).to(x.device) for name in self.entries]
        return self.pack([null.expand(x.shape[0], *null.shape[1:]) for null in nulls])

    def examples(self, rows: int, dtype: torch.dtype, device: DeviceLike = "cpu", nulls: bool = True) -> Condition:
        """Make conditions for `rows` rows, for testing and trying a network; see `NamedCondition.examples`."""
        tensors = [entry.examples(rows, dtype, nulls, place) for place, entry in enumerate(self.entries.values())]
        return self.pack([tensor.to(device) for tensor in tensors])

    def unpack(self, condition: Any) -> tuple[Tensor, ...]:
        """Return the tensors of a condition, in the order of the entries."""
        return (condition,) if self.single is not None else tuple(condition[name] for name in self.entries)

    def pack(self, tensors: Sequence[Tensor]) -> Condition:
        """Return the condition made of these tensors."""
        return tensors[0] if self.single is not None else dict(zip(self.entries, tensors, strict=True))

    def cast(self, condition: Condition, states: torch.dtype) -> Condition:
        """Return a condition as the network takes it with states of another dtype; those without a scale stay."""
        pairs = zip(self.entries.values(), self.unpack(condition), strict=True)
        return self.pack([tensor.to(states) if entry.is_standardised else tensor for entry, tensor in pairs])


def tensors_of(takes: NamedConditions | None, condition: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors of what a network is given as condition of states x (rows, *event); None stands for the nulls.

    Raises:
        VelocityError: the network takes no condition, or not one of these names, shapes and dtypes; or it is missing,
            and a null was not trained.
    """
    if takes is None:
        refuse_condition(condition)
        return ()
    condition, single = takes.nulls(x) if condition is None else condition, takes.single is not None
    names = None if single else set(condition) if isinstance(condition, Mapping) else ()
    if single != isinstance(condition, Tensor) or names not in (None, set(takes.entries)):
        received = sorted(condition) if isinstance(condition, Mapping) else type(condition).__name__
        expected = "a tensor" if single else f"a dict with {', '.join(takes.entries)}"
        raise ConditionError(f"conditions are {received}; this model takes {expected}")
    tensors = takes.unpack(condition)
    for (name, entry), tensor in zip(takes.entries.items(), tensors, strict=True):
        # `len` would fix the number of rows of an export
        shape, dtype = (x.shape[0], *entry.shape), entry.network_dtype(x.dtype)
        fits = len(shape) == tensor.ndim and all(
            isinstance(axis, str) or axis == size for axis, size in zip(shape, tensor.shape, strict=True)
        )
        if not fits or tensor.dtype != dtype:
            raise ConditionError(
                f"{titled(name)} is {tensor.dtype} of shape {tuple(tensor.shape)}; this model takes "
                f"{dtype} of shape {shape}"
            )
    return tensors


def rows_at(condition: Condition, places: Tensor) -> Condition:
    """Return the rows of a condition at these places (rows,)."""
    if isinstance(condition, Tensor):
        return condition[places]
    return {name: tensor[places] for name, tensor in condition.items()}


def one_condition(entry: NamedCondition | None) -> NamedConditions | None:
    """Return the conditions of a network that takes one, called `condition`; None for none."""
    return None if entry is None else NamedConditions({ONE: entry})
