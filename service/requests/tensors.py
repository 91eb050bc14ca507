"""Fields sent as arrays, in npz, under ``/v2`` or as nested lists: which fields may be, and what they may hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidatorFunctionWrapHandler

from models.arrays import NestedError, to_floats
from models.messages import short
from service.errors import invalid

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Tensor:
    """Marks a field that may be sent as an array.

    Attributes:
        axes: the number of axes, if it is fixed.
        named: whether it is an object with such arrays by name.
    """

    axes: int | None = None
    named: bool = False


@lru_cache(maxsize=32)
def tensor_fields(body: type[BaseModel]) -> dict[str, Tensor]:
    """Return the fields of a body that may be sent as arrays."""
    marks = {
        name: [mark for mark in field.metadata if isinstance(mark, Tensor)] for name, field in body.model_fields.items()
    }
    return {name: own[0] for name, own in marks.items() if own}


def put(content: dict[str, Any], body: type[BaseModel], place: str, array: NDArray[Any], what: str) -> bool:
    """Put an array among the members of a request; return whether the body has the field.

    It gets native byte order, and unsigned integers of 64 bits become signed ones.

    Args:
        content: gets the member.
        body: the type of the request.
        place: a field, or a field and a name, as in "conditions.text".
        array: as it was sent.
        what: the array in words, as in "the npz entry 'x0'".

    Raises:
        ProblemError: 422 for other types than booleans, integers and floating-point numbers of up to 64 bits, for an
            integer over 2^63 - 1, for another number of axes; for booleans and numbers that are not finite, too, unless
            the model says what the field may hold.
    """
    field, point, key = place.partition(".")
    mark, name, kind = tensor_fields(body).get(field), short(place), array.dtype.kind
    if mark is None or bool(point and key) != mark.named:
        return False
    if kind not in "biuf" or array.dtype.itemsize > 8:
        raise invalid(name, f"{what} is {array.dtype}; it must hold numbers of up to 64 bits, or booleans")
    if mark.axes is not None and array.ndim != mark.axes:
        raise invalid(name, f"{what} has the shape {list(array.shape)}; it must have one dimension")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype == np.uint64:
        if array.size and array.max() > _INT64_MAX:
            raise invalid(name, f"{what} holds {array.max()}; integers must be below 2**63")
        array = array.view(np.int64)
    if mark.named:
        content.setdefault(field, {})[key] = array
        return True
    if kind == "b":
        raise invalid(name, f"{what} holds booleans; it must hold numbers")
    if kind == "f" and not np.isfinite(array).all():
        raise invalid(name, f"{what} holds a number that is not finite")
    content[field] = array
    return True


def places(body: type[BaseModel]) -> list[str]:
    """Return the places at which a body takes arrays, in words."""
    return [f"{name}.NAME" if mark.named else name for name, mark in tensor_fields(body).items()]


def array_too(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Accept an array of times beside a list of them; how many there may be is checked on the first three."""
    if not isinstance(value, np.ndarray):
        return validate(value)
    validate(value[:3].tolist())
    return value


def to_array(
    nested: Any, shape: Sequence[int], dtype: torch.dtype, name: str = "x0", event: str = "event_shape"
) -> torch.Tensor:
    """Return nested lists of numbers, or an array of them, as a tensor.

    Args:
        nested: the value sent in the request.
        shape: the shape it must have, (num_samples, *event_shape).
        dtype: float32 or float64.
        name, event: the names of the field and of the shape of one sample.

    Raises:
        ProblemError: 422 for another shape, for non-numeric values, including booleans, for an integer too large for
            double precision, and for numbers that are not finite in the dtype.
    """
    expected = f"(num_samples, *{event}) = {list(shape)}"
    if not isinstance(nested, np.ndarray):
        try:
            nested = to_floats(nested, tuple(shape), name, expected)
        except NestedError as error:
            raise invalid(name, str(error)) from None
    if nested.shape != tuple(shape):
        raise invalid(name, f"{name} has the shape {list(nested.shape)}; it must be {expected}")
    kind = "float64" if dtype == torch.float64 else "float32"
    with np.errstate(over="ignore"):
        tensor = torch.from_numpy(nested.astype(kind))
    if not tensor.isfinite().all():
        raise invalid(name, f"{name} holds a number that is not finite in {kind}")
    return tensor
