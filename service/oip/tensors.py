"""Tensors of the protocol: request bodies to arrays, and arrays to bytes.

A body is JSON, or JSON followed by the bytes of its tensors (binary tensor extension). Source:
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import math
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.messages import short, shown
from service.errors import Kind, ProblemError, invalid
from service.oip.schemas import InferRequest, InputTensor
from service.requests.parsing import byte_count, parse

Array = NDArray[Any]

HEADER = "Inference-Header-Content-Length"

BINARY = "application/octet-stream"

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
"""The protocol's datatypes of fixed size as NumPy dtypes; the remaining one is BYTES."""

NAMES = {np.dtype(text).name: name for name, text in DATATYPES.items()}
"""The same by the names of NumPy, torch and checkpoints."""


def parse_body(body: bytes, header: str | None) -> InferRequest:
    """Return the request with its input tensors.

    Args:
        body: The request body.
        header: Value of ``Inference-Header-Content-Length``, or None if the whole body is JSON.

    Raises:
        ProblemError: The body does not follow the protocol; the message says where.
    """
    length = len(body) if header is None else byte_count(header)
    if length is None or length > len(body):
        detail = f"{HEADER} is {short(str(header))!r}; it must be a number of bytes up to {len(body)}"
        raise ProblemError(Kind.BAD_REQUEST, detail)
    request = parse(InferRequest, body[:length])
    tail = memoryview(body)[length:]
    tensors = request.tensors
    for tensor in request.inputs:
        if tensor.name in tensors:
            raise _invalid(tensor, "was sent twice")
        size = _binary_size(tensor)
        if tensor.datatype not in DATATYPES:
            raise _invalid(tensor, f"has datatype {tensor.datatype[:60]!r}; use one of {', '.join(DATATYPES)}")
        dtype = np.dtype(DATATYPES[tensor.datatype])
        if size is None:
            flat = _from_list(tensor, dtype)
        elif header is None:
            raise _invalid(tensor, f"has binary_data_size, but the header {HEADER} is missing")
        elif size > len(tail):
            raise _invalid(tensor, f"has binary_data_size {size}, but only {len(tail)} bytes follow")
        else:
            flat, tail = _from_bytes(tensor, dtype, tail[:size]), tail[size:]
        try:
            tensors[tensor.name] = flat.reshape(tensor.shape)
        except ValueError:  # an empty array in a shape with other sizes beyond any memory
            raise _invalid(tensor, f"has no numbers in shape {tensor.shape}") from None
    if len(tail):
        raise ProblemError(Kind.BAD_REQUEST, f"{len(tail)} bytes follow the last tensor; check {HEADER} and the sizes")
    return request


def _binary_size(tensor: InputTensor) -> int | None:
    """Return how many bytes of the tensor follow the JSON part; None if its data are in the JSON."""
    for name in tensor.parameters:
        if name != "binary_data_size":
            raise _invalid(tensor, f"has a parameter {name[:60]!r}; only binary_data_size is supported")
    size = tensor.parameters.get("binary_data_size")
    if (size is None) == (tensor.data is None):
        raise _invalid(tensor, "needs data or the parameter binary_data_size, and not both")
    if size is not None and (type(size) is not int or size < 0):
        raise invalid(tensor.name, f"input {tensor.name!r}: binary_data_size must be a number of bytes")
    return size


def _from_bytes(tensor: InputTensor, dtype: "np.dtype[Any]", content: memoryview) -> Array:
    """Return the numbers that were sent as little-endian, C-ordered bytes."""
    expected = math.prod(tensor.shape) * dtype.itemsize
    if len(content) != expected:
        takes = f"{tensor.datatype} of shape {tensor.shape} takes {expected}"
        raise _invalid(tensor, f"has {len(content)} bytes; {takes}")
    return np.frombuffer(content, dtype=dtype)


def _from_list(tensor: InputTensor, dtype: "np.dtype[Any]") -> Array:
    """Return the numbers that were sent as JSON, flat or nested."""

    def refused(what: str) -> ProblemError:
        return invalid(tensor.name, f"input {tensor.name!r}: data {what}")

    numbers: list[Any] = tensor.data or []
    while numbers and isinstance(numbers[0], list):
        if not all(isinstance(part, list) for part in numbers):
            raise refused("mixes numbers and lists")
        numbers = list(chain.from_iterable(numbers))
    count = math.prod(tensor.shape)
    if len(numbers) != count:
        raise refused(f"holds {len(numbers)} numbers; shape {tensor.shape} takes {count}")
    allowed = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}[dtype.kind]
    if not set(map(type, numbers)) <= allowed:
        k, item = next((k, item) for k, item in enumerate(numbers) if type(item) not in allowed)
        raise refused(f"holds {shown(item)} as number {k}, counted from 0, which is not {tensor.datatype}")
    try:
        with np.errstate(over="ignore"):  # non-finite numbers are refused in `requests`
            return np.array(numbers, dtype=dtype)
    except OverflowError:
        raise refused(f"holds a number out of the range of {tensor.datatype}") from None


def _invalid(tensor: InputTensor, what: str) -> ProblemError:
    return invalid(tensor.name, f"input {tensor.name!r} {what}")


def datatype_of(array: Array) -> str:
    """Return the protocol's datatype for an array; text is BYTES."""
    return "BYTES" if array.dtype.kind == "U" else NAMES[array.dtype.name]


def to_bytes(array: Array) -> bytes | memoryview:
    """Return the bytes of an array; each text as its length in 4 bytes and its UTF-8."""
    if array.dtype.kind != "U":
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return little.reshape(-1).view(np.uint8).data
    flat = array.reshape(-1).tolist()
    coded = {text: len(data := text.encode()).to_bytes(4, "little") + data for text in set(flat)}
    return b"".join(coded[text] for text in flat)
