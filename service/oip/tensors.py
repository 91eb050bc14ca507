"""Tensors of the protocol as arrays: from lists or raw bytes, and back."""

import math
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.nested import shown
from service.errors import ProblemError, invalid
from service.oip.schemas import InputTensor

Array = NDArray[Any]

DATATYPES = {
    "BOOL": "?",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "<i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""The protocol's datatypes of fixed size, as NumPy writes them; the other one is BYTES."""

_NAMES = {np.dtype(text): name for name, text in DATATYPES.items()}


def datatype_of(array: Array) -> str:
    """Return the protocol's name for the dtype of an array; text is BYTES."""
    return "BYTES" if array.dtype.kind == "U" else _NAMES[array.dtype]


def from_bytes(tensor: InputTensor, content: memoryview) -> Array:
    """Return the array whose little-endian, C-ordered bytes were sent.

    Raises:
        ProblemError: an unknown datatype, or another number of bytes than the shape says.
    """
    dtype = _dtype(tensor)
    expected = math.prod(tensor.shape) * dtype.itemsize
    if len(content) != expected:
        raise invalid(
            tensor.name,
            f"input {tensor.name!r} has {len(content)} bytes; "
            f"{tensor.datatype} of shape {tensor.shape} takes {expected}",
        )
    return _shaped(tensor, np.frombuffer(content, dtype=dtype))


def from_list(tensor: InputTensor) -> Array:
    """Return the array whose numbers were sent as JSON, flat or nested.

    Raises:
        ProblemError: an unknown datatype, numbers of another kind or range, or another count than the shape says.
    """
    dtype = _dtype(tensor)
    numbers: list[Any] = tensor.data or []
    while numbers and isinstance(numbers[0], list):
        if not all(isinstance(part, list) for part in numbers):
            raise _bad_data(tensor, "mixes numbers and lists")
        numbers = list(chain.from_iterable(numbers))
    count = math.prod(tensor.shape)
    if len(numbers) != count:
        raise _bad_data(tensor, f"holds {len(numbers)} numbers; shape {tensor.shape} takes {count}")
    allowed = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}[dtype.kind]
    if not set(map(type, numbers)) <= allowed:
        k, item = next((k, item) for k, item in enumerate(numbers) if type(item) not in allowed)
        raise _bad_data(
            tensor, f"holds {shown(item)} as its number {k}, counted from 0, which is not {tensor.datatype}"
        )
    try:
        with np.errstate(over="ignore"):  # what is not finite is refused by `wishes`
            return _shaped(tensor, np.array(numbers, dtype=dtype))
    except OverflowError:
        raise _bad_data(tensor, f"holds a number out of the range of {tensor.datatype}") from None


def to_bytes(array: Array) -> bytes | memoryview:
    """Return the bytes of an array; each text as its length in 4 bytes and its UTF-8."""
    if array.dtype.kind != "U":
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return little.reshape(-1).view(np.uint8).data
    flat = array.reshape(-1).tolist()
    coded = {text: len(data := text.encode()).to_bytes(4, "little") + data for text in set(flat)}
    return b"".join(coded[text] for text in flat)


def _dtype(tensor: InputTensor) -> "np.dtype[Any]":
    if tensor.datatype not in DATATYPES:
        message = f"input {tensor.name!r} has datatype {tensor.datatype[:60]!r}; use one of {', '.join(DATATYPES)}"
        raise invalid(tensor.name, message)
    return np.dtype(DATATYPES[tensor.datatype])


def _shaped(tensor: InputTensor, array: Array) -> Array:
    try:
        return array.reshape(tensor.shape)
    except ValueError:  # no numbers at all, in a shape whose other sizes are beyond any memory
        raise invalid(tensor.name, f"input {tensor.name!r} has no numbers in shape {tensor.shape}") from None


def _bad_data(tensor: InputTensor, what: str) -> ProblemError:
    return invalid(tensor.name, f"input {tensor.name!r}: data {what}")
