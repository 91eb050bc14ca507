"""What the OpenAPI description says about bodies that are read and written by hand."""

from typing import Any

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
