"""Output tensors: which ones a request selects, and the response made of them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson

from service.errors import invalid
from service.oip.schemas import InferRequest
from service.oip.tensors import BINARY, HEADER, datatype_of, to_bytes
from service.requests.schemas import SampleRequest
from service.responses.arrays import BINARY_BYTES, JSON, TEXT_BYTES, ArrayResponse, Encoder, Pieces, slices
from service.responses.samples import COLUMNS

ALWAYS = ("samples", "nfe", "t", "status")
TRACE = tuple(f"trace_{name}" for name in COLUMNS)

_PLACED = ("model", "version", "nfe")
"""Members of a response that are no parameters, as they have another place."""
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def encoder_of(request: InferRequest, sample: SampleRequest) -> Encoder:
    """Return the format of the outputs that a request names, or else of all that are available.

    Its size is predicted as text if any output is text.

    Raises:
        ProblemError: An output does not exist or not for this request, or a parameter is unknown.
    """
    some = {"saved": sample.saved_times, "log_prob": sample.log_prob}
    available = [*ALWAYS, *(name for name in some if some[name]), *(TRACE if sample.trace != "none" else [])]
    default = _flag(request.parameters, "binary_data_output", "the request", False)
    outputs: dict[str, bool] = {}
    for output in request.outputs:
        name = output.name
        if name not in available:
            needs = dict.fromkeys(TRACE, "; the parameter trace is none")
            needs |= {"saved": "; it needs the input save_at", "log_prob": "; it needs the parameter log_prob"}
            advice = needs.get(name, "")
            raise invalid("outputs", f"there is no output {name[:60]!r}{advice}; outputs: {', '.join(available)}")
        if name in outputs:
            raise invalid("outputs", f"output {name!r} was requested twice")
        for parameter in output.parameters:
            if parameter != "binary_data":
                raise invalid(
                    "outputs", f"output {name!r} has a parameter {parameter[:60]!r}; only binary_data is supported"
                )
        outputs[name] = _flag(output.parameters, "binary_data", f"output {name!r}", default)
    chosen = outputs or dict.fromkeys(available, default)
    binary = any(chosen.values())
    return Encoder(
        BINARY if binary else JSON,
        partial(_encode, outputs=chosen, request_id=request.id),
        BINARY_BYTES if all(chosen.values()) else TEXT_BYTES,
        110,
        100,
        whole=True,
        headers=(lambda first: {HEADER: str(len(first))}) if binary else None,
    )


def _encode(response: ArrayResponse, outputs: Mapping[str, bool], request_id: str | None) -> Pieces:
    """Yield the JSON part as one piece, then the bytes of the outputs that follow it: those with true."""
    described: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name, follows in outputs.items():
        array = response.arrays[name]
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype_of(array)}
        if follows:
            content = to_bytes(array)
            parts.append(content)
            entry["parameters"] = {"binary_data_size": len(content)}
        else:
            text = array.dtype.kind == "U"
            entry["data"] = array.tolist() if text else np.ascontiguousarray(array).reshape(-1)
        described.append(entry)
    head = response.document
    document = {"model_name": head["model"], "model_version": str(head["version"])}
    document |= {} if request_id is None else {"id": request_id}
    scalars = {name: value for name, value in head.items() if isinstance(value, str | int | float)}
    parameters = {name: value for name, value in scalars.items() if name not in _PLACED}
    parameters |= {"solver": head["solver"]["name"], "failed": len(head["failed"])}
    parameters |= {f"budget.{name}": value for name, value in head.get("budget", {}).items()}
    document |= {"parameters": parameters, "outputs": described}
    yield orjson.dumps(document, option=_OPTIONS)
    for part in parts:
        yield from slices(memoryview(part))


def _flag(parameters: dict[str, Any], name: str, where: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid(name, f"{name} of {where} must be true or false")
    return value
