"""What the OpenAPI description says of the addresses under ``/v2``."""

from typing import Any

from service.errors import Kind
from service.oip.schemas import ErrorBody, InferRequest, InferResponse
from service.oip.wire import BINARY, HEADER

_BYTES = {"schema": {"type": "string", "format": "binary"}}

_ANSWERED: Any = {
    "model_name": "moons",
    "model_version": "1",
    "parameters": {"seed": 0, "status": "success", "solver": "rk4", "network_rows": 160, "failed": 0},
    "outputs": [
        {"name": "samples", "shape": [2, 2], "datatype": "FP32", "data": [0.9, 0.4, -0.3, 0.8]},
        {"name": "nfe", "shape": [2], "datatype": "INT64", "data": [80, 80]},
    ],
}


def errors(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for these kinds of errors, as the protocol writes them."""
    content = {"application/json": {"schema": ErrorBody.model_json_schema(), "example": {"error": "what is wrong"}}}
    titles: dict[int, list[str]] = {}
    for kind in kinds:
        titles.setdefault(400 if kind is Kind.INVALID else kind.value.status, []).append(kind.value.title)
    return {status: {"description": "; ".join(found), "content": content} for status, found in titles.items()}


MODEL_ERRORS = errors(
    Kind.INVALID, Kind.UNKNOWN_MODEL, Kind.UNKNOWN_VERSION, Kind.NOT_READY, Kind.DRAINING, Kind.BROKEN_MODEL
)

INFER_OPERATION: dict[str, Any] = {
    "openapi_extra": {
        "parameters": [
            {
                "name": HEADER,
                "in": "header",
                "required": False,
                "description": "bytes of the JSON part, where the bytes of tensors follow it",
                "schema": {"type": "integer", "minimum": 0},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": InferRequest.model_json_schema()}, BINARY: _BYTES},
        },
    },
    "responses": {
        200: {
            "model": InferResponse,
            "description": "The tensors; with any of them binary, JSON and their bytes behind it",
            "content": {"application/json": {"example": _ANSWERED}, BINARY: _BYTES},
            "headers": {
                HEADER: {"description": "bytes of the JSON part, if bytes follow", "schema": {"type": "integer"}}
            },
        },
        **errors(
            Kind.MALFORMED,
            Kind.BAD_REQUEST,
            Kind.INVALID,
            Kind.UNKNOWN_MODEL,
            Kind.UNKNOWN_VERSION,
            Kind.TOO_LARGE,
            Kind.MEDIA,
            Kind.OVERLOADED,
            Kind.INTERNAL,
            Kind.DRAINING,
            Kind.BROKEN_MODEL,
            Kind.DEADLINE,
        ),
    },
}
"""Arguments of the route of ``POST /v2/models/{model}/infer``."""
