"""What the OpenAPI description says about bodies that are read and written by hand."""

from typing import Any

from starlette.responses import Response

from service.encoders import ENCODERS
from service.errors import MEDIA_TYPE, Kind
from service.schemas import ProblemBody, SampleRequest, SampleResponse

_BINARY = {"schema": {"type": "string", "format": "binary"}}


def problems(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for these kinds of errors."""
    content = {MEDIA_TYPE: {"schema": ProblemBody.model_json_schema()}}
    titles: dict[int, list[str]] = {}
    for kind in kinds:
        titles.setdefault(kind.value.status, []).append(kind.value.title)
    return {status: {"description": "; ".join(found), "content": content} for status, found in titles.items()}


SAMPLE_OPERATION: dict[str, Any] = {
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": SampleRequest.model_json_schema()}},
        }
    },
    "responses": {
        200: {
            "model": SampleResponse,
            "description": "The samples, in the format that Accept asks for",
            "content": {media: _BINARY for media in ENCODERS if media != "application/json"},
        },
        **problems(
            Kind.MALFORMED,
            Kind.UNKNOWN_MODEL,
            Kind.UNKNOWN_VERSION,
            Kind.NOT_ACCEPTABLE,
            Kind.TOO_LARGE,
            Kind.MEDIA,
            Kind.INVALID,
            Kind.OVERLOADED,
            Kind.INTERNAL,
            Kind.DRAINING,
            Kind.BROKEN_MODEL,
            Kind.DEADLINE,
        ),
    },
}
"""Arguments of the route of ``POST /v1/sample``."""

STREAM_OPERATION: dict[str, Any] = {
    "openapi_extra": SAMPLE_OPERATION["openapi_extra"],
    "response_class": Response,
    "responses": {
        **SAMPLE_OPERATION["responses"],
        200: {
            "description": "Server-sent events: start, progress and sample on the way, completed or error at the end",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
}
"""Arguments of the route of ``POST /v1/sample/stream``."""
