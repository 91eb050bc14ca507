"""Requests of the protocol as `SampleRequest`, so that the pipeline of ``/v1/sample`` serves both."""

from typing import Any

from pydantic_core import from_json

from models.messages import shown
from service.errors import invalid
from service.oip.schemas import INPUTS, NAMED, InferRequest
from service.oip.tensors import Array
from service.requests.members import members
from service.requests.parsing import check
from service.requests.schemas import SampleRequest
from service.requests.tensors import put, tensor_fields

_GRID = "grid."
_INSIDE = tuple(
    name
    for name, member in members(SampleRequest).items()
    if member.kind == "object"
    and (name not in tensor_fields(SampleRequest) or SampleRequest.model_fields[name].annotation is not Any)
)
"""Parameters with a name after a point: those of the grid, and of members of a sample request that are objects."""


def to_sample_request(
    name: str, version: int | None, request: InferRequest, tensors: dict[str, Array]
) -> SampleRequest:
    """Return the equivalent sample request.

    Args:
        name: The model in the path.
        version: The version in the path, or None.
        request: The request.
        tensors: Its inputs by name.

    Raises:
        ProblemError: A parameter or input is unknown, not scalar, or not allowed in a sample request.
    """
    if request.model_name not in (None, name):
        raise invalid("model_name", f"model_name is {request.model_name!r}; it must be the one in the path, {name!r}")
    content = _scalars(_of_triton(request.parameters))
    for key, array in tensors.items():
        member, point, inner = key.partition(".")
        place = f"{NAMED.get(member, member)}.{inner}" if point else key
        if key in content:
            raise invalid(key, f"{key} was sent as a parameter and as an input; send one of them")
        if not put(content, SampleRequest, place, array, f"input {key[:60]!r}"):
            raise invalid(key, f"there is no input {key[:60]!r}; the inputs are {INPUTS}, and none is required")
    start = tensors.get("x0")
    if start is not None and start.ndim:
        content.setdefault("num_samples", len(start))
    return check(SampleRequest, {"model": name, "version": version, **content})


def _of_triton(parameters: dict[str, Any]) -> dict[str, Any]:
    """Translate `priority` (1 is the highest, 0 the default) and `timeout` (microseconds) of Triton's client."""
    translated = dict(parameters)
    priority, timeout = translated.get("priority"), translated.pop("timeout", None)
    for name, value in (("priority", priority), ("timeout", timeout)):
        if type(value) is int and value < 0:
            raise invalid(name, f"parameter {name!r} is {value}; it must not be negative")
    if type(priority) is int:
        translated["priority"] = "interactive" if priority <= 1 else "bulk"
    if timeout is not None:
        if type(timeout) is not int:
            raise invalid("timeout", f"parameter 'timeout' is {shown(timeout)}; it must be a number of microseconds")
        if timeout and "timeout_s" in translated:
            raise invalid(
                "timeout", "parameters 'timeout' (microseconds) and 'timeout_s' say the same; send one of them"
            )
        translated |= {"timeout_s": timeout / 1e6} if timeout else {}
    return translated


def _scalars(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters as members of a sample request."""
    content: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    for name, value in parameters.items():
        if name == "binary_data_output":
            continue
        if name == "guidance" and isinstance(value, str):
            value = _guidance(value)
        elif isinstance(value, list | dict):
            advice = "send a number, a string or a boolean"
            if name == "guidance":
                advice = "send a number, or the object as JSON text"
            elif name in tensor_fields(SampleRequest):
                advice = f"send {name} as an input tensor"
            raise invalid(name, f"parameter {name[:60]!r} is not scalar; {advice}")
        if name in ("model", "version"):
            raise invalid(name, f"{name} is not a parameter; it belongs in the path: /v2/models/NAME/versions/VERSION")
        if name.startswith(_GRID):
            grid[name.removeprefix(_GRID)] = value
        elif (member := name.partition("."))[0] in _INSIDE and member[1]:
            content.setdefault(member[0], {})[member[2]] = value
        else:
            content[name] = value
    if "name" in grid or (grid and "grid" not in content):
        raise invalid("grid", f"{_GRID}{next(iter(grid))} needs the name of the grid in the parameter grid")
    if grid:
        content["grid"] = {"name": content["grid"], **grid}
    return content


def _guidance(text: str) -> dict[str, Any]:
    """Return the object that a JSON text holds."""
    try:
        guidance = from_json(text, allow_inf_nan=False)
    except ValueError:
        guidance = None
    if not isinstance(guidance, dict):
        raise invalid("guidance", f"guidance is {shown(text)}; it must be a number, or the JSON text of an object")
    return guidance
