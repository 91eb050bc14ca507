"""Requests of the protocol as `SampleRequest`, so that the pipeline of ``/v1/sample`` serves both."""

from typing import Any

import numpy as np
from pydantic_core import from_json

from models.nested import shown
from service.errors import invalid
from service.oip.schemas import InferRequest
from service.oip.tensors import Array, datatype_of
from service.requests.parsing import check
from service.requests.schemas import SampleRequest

INPUTS = {"x0": "f", "condition": "fiu", "grid": "f", "save_at": "f", "t_span": "f"}
"""Inputs that can be sent as tensors, and the allowed kinds of numbers: f floating point, i and u integers."""

_NAMED = {"condition": "conditions", "negative": "negative"}
"""Inputs with a name after a point, and the members of a sample request that hold them."""

_KINDS = {"f": "FP16, FP32 or FP64", "fiu": "a datatype of floating-point numbers or integers"}
_GRID, _INSIDE = "grid.", ("budget", "shape")
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
    content = _scalars(request.parameters)
    for key, array in tensors.items():
        member, _, inner = key.partition(".")
        if inner and member in _NAMED:
            content.setdefault(_NAMED[member], {})[inner] = array
            continue
        if key not in INPUTS:
            known = ", ".join((*INPUTS, *(f"{each}.NAME" for each in _NAMED)))
            raise invalid(key, f"there is no input {key[:60]!r}; the inputs are {known}, and none is required")
        if key in content:
            raise invalid(key, f"{key} was sent as a parameter and as an input; send one of them")
        content[key] = _value(key, array)
    start = tensors.get("x0")
    if start is not None and start.ndim:
        content.setdefault("num_samples", len(start))
    sample = check(SampleRequest, {"model": name, "version": version, **content})
    sample.note_dtypes({key: array.dtype for key, array in tensors.items()})
    return sample


def _value(name: str, array: Array) -> Any:
    """Return an input as a member of a sample request."""
    if array.dtype.kind not in INPUTS[name]:
        raise invalid(name, f"input {name!r} must be {_KINDS[INPUTS[name]]}, not {datatype_of(array)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise invalid(name, f"input {name!r} holds a number that is not finite")
    if name == "condition" and array.ndim == 0:
        return array.item()
    if name in ("x0", "condition"):
        return array
    if array.ndim != 1:
        raise invalid(name, f"input {name!r} has shape {list(array.shape)}; it must have one dimension")
    return array.tolist()


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
            advice = f"send {name} as an input tensor" if name in INPUTS else "send a number, a string or a boolean"
            advice = "send a number, or the object as JSON text" if name == "guidance" else advice
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
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise invalid("guidance", f"guidance is {shown(text)}; it must be a number, or the JSON text of an object")
    return found
