"""What the OpenAPI description says of ``/v2``: answers, errors and examples; tests send them."""

from typing import Any

from service import examples
from service.errors import Kind
from service.oip.schemas import (
    REQUESTS,
    ErrorBody,
    Health,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelReady,
    ServerMetadata,
)
from service.oip.wire import BINARY
from service.openapi import BINARY as BINARY_BODY
from service.openapi import BY_HAND, answered, asked, reference, shown

_PARAMETERS = {
    "checkpoint": examples.SAMPLES["fixed"]["checkpoint"],
    "seed": 0,
    "first_index": 0,
    "deterministic": True,
    "noise": "philox-ndtri-v1",
    "network_rows": 320,
    "status": "success",
    "solver": "rk4",
    "failed": 0,
}
_NFE = {"name": "nfe", "shape": [2], "datatype": "INT64", "data": [20, 20]}
_HEAD = {"model_name": "moons", "model_version": "1", "parameters": _PARAMETERS}

ANSWERS: dict[str, Any] = {
    "seed": _HEAD
    | {
        "outputs": [
            {"name": "samples", "shape": [2, 2], "datatype": "FP32", "data": [-0.84, 0.52, 1.91, 0.13]},
            _NFE,
            {"name": "t", "shape": [2], "datatype": "FP64", "data": [1.0, 1.0]},
            {"name": "status", "shape": [2], "datatype": "BYTES", "data": ["success", "success"]},
        ]
    },
    "states": _HEAD
    | {
        "id": "from-two-points",
        "outputs": [{"name": "samples", "shape": [2, 2], "datatype": "FP32", "data": [1.02, -0.4, 0.3, 0.77]}, _NFE],
    },
}
"""Answers to `REQUESTS`, with the same names; the first has more outputs than are shown."""

_METADATA = {
    "name": "moons",
    "versions": ["1", "2"],
    "platform": "pathline_safetensors",
    "inputs": [{"name": "x0", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "samples", "datatype": "FP32", "shape": [-1, 2]}],
}


BY_HAND[ErrorBody] = "serialization"


def refusals(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for these kinds of errors, each with an example."""
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.oip_status, []).append(kind)
    return {
        status: {
            "description": "; ".join(kind.value.title for kind in found),
            "content": {"application/json": {"schema": reference(ErrorBody)} | shown(_errors(found))},
        }
        for status, found in by_status.items()
    }


def _errors(kinds: list[Kind]) -> dict[str, dict[str, str]]:
    return {kind.value.slug: {"error": examples.DETAILS.get(kind, kind.value.title)} for kind in kinds}


_UNKNOWN = (Kind.UNKNOWN_MODEL, Kind.UNKNOWN_VERSION, Kind.INVALID)
_UNREADY = (Kind.BROKEN_MODEL, Kind.NOT_READY, Kind.DRAINING)

SERVER = answered(ServerMetadata, server={"name": "pathline", "version": "0.1.0", "extensions": ["binary_tensor_data"]})
LIVE = answered(Health, live={"live": True}) | refusals(Kind.NOT_READY)
READY = answered(Health, ready={"ready": True}) | refusals(Kind.NOT_READY, Kind.DRAINING)
MODEL = answered(ModelMetadata, moons=_METADATA) | refusals(*_UNKNOWN, *_UNREADY)
MODEL_READY = answered(ModelReady, moons={"name": "moons", "ready": True}) | refusals(*_UNKNOWN, *_UNREADY)

_BODY = asked(InferRequest, REQUESTS)
_BODY["requestBody"]["content"][BINARY] = BINARY_BODY  # its JSON part, then the bytes of its tensors
_INFERRED = answered(InferResponse, **ANSWERS)
_INFERRED[200] |= {
    "description": "The output tensors; with binary_data_output or binary_data their bytes follow the JSON"
}
_INFERRED[200]["content"][BINARY] = BINARY_BODY

INFER: dict[str, Any] = {
    "openapi_extra": _BODY,
    "responses": _INFERRED
    | refusals(
        Kind.MALFORMED,
        Kind.BAD_REQUEST,
        *_UNKNOWN,
        Kind.TOO_LARGE,
        Kind.JOB_TOO_LARGE,
        Kind.MEDIA,
        Kind.OVERLOADED,
        Kind.INTERNAL,
        *_UNREADY,
        Kind.DEADLINE,
    ),
}
"""Arguments of the routes of ``POST /v2/models/{model}/infer``."""
