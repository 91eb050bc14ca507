"""Descriptions under ``/v2``: the metadata of models, and the OpenAPI text of the endpoints."""

import json
from typing import Any

from models.conditions import ONE
from models.named_conditions import NamedCondition
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
from service.oip.tensors import BINARY
from service.openapi import BINARY as BINARY_BODY
from service.openapi import BY_HAND, answered, json_body, reference, shown
from service.registry.version import ModelVersion
from service.requests.schemas import SampleRequest
from service.requests.tensors import tensor_fields
from service.responses.samples import COLUMNS

PLATFORM = "pathline_safetensors"
_FLOATS = {"float32": "FP32", "float64": "FP64"}
_DATATYPES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "int64": "INT64", "int32": "INT32", "int16": "INT16",
    "int8": "INT8", "uint8": "UINT8", "bool": "BOOL",
}  # fmt: skip
_TRACE = {"sample": "INT64", "t": "FP64", "h": "FP64", "error": "FP64", "accepted": "BOOL"}

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
    "digest": examples.DIGEST,
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
"""Responses to `REQUESTS`, by the same names; the first has more outputs than are shown."""

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
    return {kind.value.slug: {"error": examples.ERRORS[kind]["detail"]} for kind in kinds}


UNKNOWN = (Kind.UNKNOWN_MODEL, Kind.UNKNOWN_VERSION, Kind.INVALID)
UNREADY = (Kind.BROKEN_MODEL, Kind.NOT_READY, Kind.DRAINING)

EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics"]
SERVER = answered(ServerMetadata, server={"name": "pathline", "version": "0.1.0", "extensions": EXTENSIONS})
LIVE = answered(Health, live={"live": True}) | refusals(Kind.NOT_READY)
READY = answered(Health, ready={"ready": True}) | refusals(Kind.NOT_READY, Kind.DRAINING)
MODEL = answered(ModelMetadata, moons=_METADATA) | refusals(*UNKNOWN, *UNREADY)
MODEL_READY = answered(ModelReady, moons={"name": "moons", "ready": True}) | refusals(*UNKNOWN, *UNREADY)

_BODY = json_body(InferRequest, REQUESTS)
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
        *UNKNOWN,
        Kind.TOO_LARGE,
        Kind.JOB_TOO_LARGE,
        Kind.MEDIA,
        Kind.OVERLOADED,
        Kind.INTERNAL,
        *UNREADY,
        Kind.DEADLINE,
    ),
}
"""Arguments of the routes of ``POST /v2/models/{model}/infer``."""


def metadata(model: ModelVersion, versions: list[int]) -> dict[str, Any]:
    """Return the response of ``GET /v2/models/{model}``; -1 means any size."""
    card = model.card
    number, data = _FLOATS[card.dtype], _FLOATS[card.data_dtype]
    inputs = [_tensor("x0", number, -1, *card.event_shape)]
    takes = model.conditioning
    named = {} if takes is None else {name: takes.entries[name] for name in takes.given}
    for member in ("condition",) if tuple(named) == (ONE,) else ("condition", "negative"):
        for name, entry in named.items():
            key = ONE if tuple(named) == (ONE,) else f"{member}.{name}"
            inputs.append(_tensor(key, _datatype(entry, number), -1, *entry.shape))
    times = [name for name, mark in tensor_fields(SampleRequest).items() if mark.axes == 1]
    inputs += [_tensor(name, "FP64", 2 if name == "t_span" else -1) for name in times]
    samples = _tensor("samples", data, -1, *card.data_shape)
    if card.decoder.columns:
        samples["parameters"] = {"columns": json.dumps([column.name for column in card.decoder.columns])}
    outputs = [
        samples,
        _tensor("nfe", "INT64", -1),
        _tensor("t", "FP64", -1),
        _tensor("status", "BYTES", -1),
        _tensor("saved", data, -1, -1, *card.data_shape),
        *(_tensor(f"trace_{name}", _TRACE[name], -1) for name in COLUMNS),
    ]
    versions_ = [str(version) for version in versions]
    return {"name": model.name, "versions": versions_, "platform": PLATFORM, "inputs": inputs, "outputs": outputs}


def _datatype(entry: NamedCondition, number: str) -> str:
    """Return the datatype of a condition; all others of its kind are accepted too."""
    quantity = entry.moved and entry.torch_dtype.is_floating_point
    return number if quantity else _DATATYPES.get(entry.dtype, "FP32")


def _tensor(name: str, datatype: str, *shape: int | str) -> dict[str, Any]:
    sizes = [-1 if isinstance(size, str) else size for size in shape]
    return {"name": name, "datatype": datatype, "shape": sizes}
