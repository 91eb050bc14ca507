"""The body of a request taken apart: its JSON part, and the bytes of the tensors behind it (binary tensor extension).

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from starlette.requests import Request

from models.nested import short
from service.errors import Kind, ProblemError, invalid
from service.oip.schemas import InferRequest, InputTensor
from service.oip.tensors import Array, from_bytes, from_list
from service.requests.parsing import byte_count, parse

HEADER = "Inference-Header-Content-Length"

BINARY = "application/octet-stream"


def take_apart(body: bytes, header: str | None) -> tuple[InferRequest, dict[str, Array]]:
    """Return the request and its input tensors by name.

    Args:
        body: what was sent.
        header: value of ``Inference-Header-Content-Length``, or None where the whole body is JSON.

    Raises:
        ProblemError: the body is not what the protocol says; the message says where.
    """
    length = len(body) if header is None else _length(header, len(body))
    request = parse(InferRequest, body[:length])
    rest = memoryview(body)[length:]
    tensors: dict[str, Array] = {}
    for tensor in request.inputs:
        if tensor.name in tensors:
            raise invalid(tensor.name, f"input {tensor.name!r} was sent twice")
        size = _binary_size(tensor)
        if size is None:
            tensors[tensor.name] = from_list(tensor)
            continue
        if header is None:
            raise invalid(
                tensor.name, f"input {tensor.name!r} has binary_data_size, but the header {HEADER} is missing"
            )
        tensors[tensor.name] = from_bytes(tensor, rest[:size])
        rest = rest[size:]
    if len(rest):
        raise ProblemError(Kind.BAD_REQUEST, f"{len(rest)} bytes follow the last tensor; check {HEADER} and the sizes")
    return request, tensors


def header_of(request: Request) -> str | None:
    """Return the length of the JSON part as the client says it."""
    return request.headers.get(HEADER)


def _length(header: str, size: int) -> int:
    length = byte_count(header)
    if length is None or length > size:
        raise ProblemError(
            Kind.BAD_REQUEST, f"{HEADER} is {short(header)!r}; it must be a number of bytes up to {size}"
        )
    return length


def _binary_size(tensor: InputTensor) -> int | None:
    """Return how many bytes the tensor has behind the JSON part; None where its data are in it."""
    for name in tensor.parameters:
        if name != "binary_data_size":
            raise invalid(
                tensor.name,
                f"input {tensor.name!r} has a parameter {name[:60]!r}; only binary_data_size is known here",
            )
    size = tensor.parameters.get("binary_data_size")
    if (size is None) == (tensor.data is None):
        raise invalid(tensor.name, f"input {tensor.name!r} needs data or the parameter binary_data_size, and not both")
    if size is not None and (type(size) is not int or size < 0):
        raise invalid(tensor.name, f"input {tensor.name!r}: binary_data_size must be a number of bytes")
    return size
