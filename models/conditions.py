"""Conditions of a model: a class label or a vector, and the null that stands for "no condition".

A conditional velocity takes one condition for each row: labels (rows,) int64, or vectors (rows, width) in the dtype of
the states. The null is the label `classes`, or a vector of NaN (any finite vector could be a real condition).
Networks learn it by condition dropout, and guidance needs it (see `models.guidance`).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from models.nested import NestedError, shown, to_floats
from models.velocity import VelocityError

Device = torch.device | str

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)

ONE = "condition"
"""The name of a model's only condition if its card does not name it."""


class ConditionError(VelocityError):
    """A condition is of the wrong kind, shape, type or size."""


@lru_cache(maxsize=64)
def _index(names: tuple[str, ...] | None, classes: int) -> tuple[dict[str, int], dict[int, int] | None]:
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
    texts, numbers = _index(names, classes)
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


def numbers_are_names(classes: int, names: tuple[str, ...] | None) -> bool:
    """Whether a number is the name of a class, not its label."""
    return _index(names, classes)[1] is not None


def class_numbers(names: tuple[str, ...] | None) -> dict[str | int, int]:
    """The numbers that stand for named classes in records: the names themselves if all are numbers, else the labels."""
    texts, numbers = _index(names, len(names or ()))
    if numbers is None or len(numbers) < len(texts):
        return {**texts, **(numbers or {})}
    return {name: int(name) for name in texts}


def describe_labels(classes: int, names: tuple[str, ...] | None) -> str:
    """Say in words which classes there are."""
    numbers = f"a whole number from 0 to {classes - 1}"
    if names is None:
        return numbers
    listed = f"one of {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}"
    return listed if numbers_are_names(classes, names) else f"{numbers} or {listed}"


class _Condition(BaseModel):
    """The fields common to both kinds of condition.

    Attributes:
        null: whether the null was trained, so that the model also samples without a condition and can be guided.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    null: bool = True

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its tensors: one."""
        return (ONE,)

    def droppable(self, negative: Collection[str] = ()) -> tuple[str, ...]:
        """The names that "no condition" drops, given those with a negative condition."""
        return self.inputs

    def with_flags(self, names: frozenset[str]) -> frozenset[str]:
        """Return these names; none of the conditions has a flag."""
        return names

    def sized(self, sizes: Mapping[str, int]) -> Self:
        """Return the same conditions, as these have no free axes."""
        return self

    def unpack(self, condition: Any) -> tuple[Tensor, ...]:
        """Return the tensors of a condition, in the order of `inputs`."""
        return (condition,)

    def pack(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the condition made of these tensors."""
        return tensors[0]

    def _refuse_null(self) -> None:
        if not self.null:
            raise ConditionError("condition is missing; this model was trained without a null, so give a condition")


class LabelCondition(_Condition):
    """A class label from 0 to classes - 1.

    Attributes:
        classes: the number of classes.
        names: a name for each class, or None.
    """

    kind: Literal["label"] = "label"
    classes: int = Field(ge=1, le=1 << 20)
    names: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if self.names is not None and not len(set(self.names)) == len(self.names) == self.classes:
            raise ValueError(
                f"there are {len(self.names)} names, {len(set(self.names))} of them different; give {self.classes}, "
                "one for each class"
            )
        return self

    def bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one row."""
        return torch.int64.itemsize

    def nulls(self, rows: int, dtype: torch.dtype, device: Device = "cpu") -> Tensor:
        """Return the null for `rows` rows, (rows,); raise a ConditionError if it was not trained."""
        self._refuse_null()
        return torch.full((rows,), self.classes, dtype=torch.int64, device=device)

    def examples(self, rows: int, dtype: torch.dtype, device: Device = "cpu") -> Tensor:
        """Make labels (rows,) for measuring and trying a network: each in turn, including the null if there is one."""
        return torch.arange(rows, device=device) % (self.classes + self.null)

    def check(self, condition: Any, rows: int, dtype: torch.dtype) -> None:
        """Raise a ConditionError unless `condition` has the shape and type of labels for `rows` rows."""
        if condition.shape != (rows,) or condition.dtype != torch.int64:
            raise ConditionError(
                f"condition is {condition.dtype} of shape {tuple(condition.shape)}; this model takes class labels, "
                f"torch.int64 of shape ({rows},)"
            )

    def tensor(self, value: Any, rows: int, dtype: torch.dtype) -> Tensor:
        """Make labels (rows,) from user input: one label or name for all rows, or a list with one for each row.

        Raises:
            ConditionError: the value is something else, or there is no such label.
        """
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
            return torch.tensor(self._label(value)).expand(rows)
        if len(value) != rows:
            raise ConditionError(
                f"condition has {len(value)} labels; give one for all samples, or {rows}, one for each"
            )
        return torch.tensor([self._label(item) for item in value], dtype=torch.int64)

    def _label(self, value: Any) -> int:
        label = label_of(value, self.classes, self.names)
        if label is None:
            allowed = describe_labels(self.classes, self.names)
            raise ConditionError(f"condition is {shown(value)}; this model takes a class label, {allowed}")
        return label


class VectorCondition(_Condition):
    """A vector of finite numbers.

    Attributes:
        width: its length.
    """

    kind: Literal["vector"] = "vector"
    width: int = Field(ge=1, le=1 << 20)

    def bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one row."""
        return self.width * dtype.itemsize

    def nulls(self, rows: int, dtype: torch.dtype, device: Device = "cpu") -> Tensor:
        """Return the null for `rows` rows, (rows, width); raise a ConditionError if it was not trained."""
        self._refuse_null()
        return torch.full((rows, self.width), torch.nan, dtype=dtype, device=device)

    def examples(self, rows: int, dtype: torch.dtype, device: Device = "cpu") -> Tensor:
        """Make vectors (rows, width) for measuring and trying a network: every seventh is the null if there is one."""
        phases = torch.arange(rows * self.width, dtype=torch.float64).reshape(rows, self.width)
        vectors = phases.sin().to(dtype)
        if self.null:
            vectors[6::7] = torch.nan
        return vectors.to(device)

    def check(self, condition: Any, rows: int, dtype: torch.dtype) -> None:
        """Raise a ConditionError unless `condition` has the shape and type of vectors for `rows` rows."""
        if condition.shape != (rows, self.width) or condition.dtype != dtype:
            raise ConditionError(
                f"condition is {condition.dtype} of shape {tuple(condition.shape)}; this model takes vectors, "
                f"{dtype} of shape ({rows}, {self.width})"
            )

    def tensor(self, value: Any, rows: int, dtype: torch.dtype) -> Tensor:
        """Make vectors (rows, width) from user input: one vector for all rows, or a list with one for each row.

        Raises:
            ConditionError: the value is something else, of another length, or not finite.
        """
        takes = (
            f"this model takes a vector of {self.width} finite numbers for all samples, or {rows} of them, one for each"
        )
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in "iuf" or value.shape not in ((self.width,), (rows, self.width)):
                raise ConditionError(f"condition has shape {value.shape} of {value.dtype}; {takes}")
            array = value.astype(np.float64)
        else:
            if not isinstance(value, list | tuple) or not value:
                raise ConditionError(f"condition is {shown(value)}; {takes}")
            shape = (rows, self.width) if isinstance(value[0], list | tuple) else (self.width,)
            try:
                array = to_floats(value, shape, "condition")
            except NestedError as error:
                raise ConditionError(f"{error}; {takes}") from None
        vectors = torch.from_numpy(array).to(dtype)
        if not vectors.isfinite().all():
            raise ConditionError(f"condition holds numbers that are not finite in {dtype}; {takes}")
        return vectors.expand(rows, self.width)


ConditionConfig = Annotated[LabelCondition | VectorCondition, Field(discriminator="kind")]
"""The condition in cards and configs; None for an unconditional model."""


class ConditionEmbedding(nn.Module):
    """Embeds conditions as vectors of the network's width; the null has its own learned vector.

    Attributes:
        config: the condition that is embedded.
    """

    def __init__(self, config: LabelCondition | VectorCondition, width: int) -> None:
        super().__init__()
        self.config = config
        if isinstance(config, LabelCondition):
            self.table = nn.Embedding(config.classes + config.null, width)
        else:
            self.linear = nn.Linear(config.width, width)
            if config.null:
                self.null = nn.Parameter(torch.zeros(width))

    def forward(self, condition: Tensor | None, x: Tensor) -> Tensor:
        """Embed one condition for each row of the states x; None is the null for all.

        Returns:
            (rows, width)

        Raises:
            ConditionError: a wrong shape or type, or None for a model without a trained null.
        """
        if condition is None:
            condition = self.config.nulls(len(x), x.dtype, x.device)
        self.config.check(condition, x.shape[0], x.dtype)  # `len` would fix the number of rows of an export
        if isinstance(self.config, LabelCondition):
            return self.table(condition)
        if not self.config.null:
            return self.linear(condition)
        missing = condition.isnan().any(1, keepdim=True)
        return torch.where(missing, self.null, self.linear(condition.masked_fill(missing, 0.0)))
