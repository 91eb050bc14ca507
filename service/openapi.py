"""What the OpenAPI description says that the framework does not: bodies read by hand, problems, and examples."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from service import examples
from service.errors import MEDIA_TYPE, Kind
from service.requests.schemas import ProblemBody, SampleRequest, SampleResponse
from service.responses.encoders import ENCODERS

BINARY = {"schema": {"type": "string", "format": "binary"}}
_PLACE = "#/components/schemas/{model}"

BY_HAND: dict[type[BaseModel], Any] = {ProblemBody: "serialization"}
"""Models that no route declares, and whether the description shows what is sent or what is answered."""


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Return the schema that stands for a model of `BY_HAND`."""
    return {"$ref": _PLACE.format(model=model.__name__)}


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `examples` member of a body or parameter, from examples by name."""
    return {"examples": {name: {"value": value} for name, value in values.items()}}


def answered(model: type[BaseModel] | None = None, **values: Any) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that answers 200 with JSON: its model, and examples by name."""
    described: dict[str, Any] = {"content": {"application/json": shown(values)}}
    return {200: described | ({} if model is None else {"model": model})}


def asked(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads its JSON body by hand, and put the model into `BY_HAND`."""
    BY_HAND[model] = "validation"
    content = {"schema": reference(model)} | shown(values)
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def problems(*kinds: Kind) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route for these kinds of errors, each with an example."""
    by_status: dict[int, list[Kind]] = {}
    for kind in kinds:
        by_status.setdefault(kind.value.status, []).append(kind)
    schema = reference(ProblemBody)
    return {
        status: {
            "description": "; ".join(kind.value.title for kind in found),
            "content": {MEDIA_TYPE: {"schema": schema} | shown({kind.value.slug: _problem(kind) for kind in found})},
        }
        for status, found in by_status.items()
    }


def _problem(kind: Kind) -> dict[str, Any]:
    status, title = kind.value.status, kind.value.title
    body = {"type": kind.type, "title": title, "status": status, "detail": examples.DETAILS.get(kind, title)}
    body["request_id"] = "13ab3e9823504b96a0b98c09289534c0"
    return body | ({"errors": [{"field": "steps", "message": body["detail"]}]} if kind is Kind.INVALID else {})


def complete(app: FastAPI) -> None:
    """Let the description of an application have the models of `BY_HAND`, and no status that its routes do not name."""
    made = app.openapi

    def described(app: FastAPI) -> dict[str, Any]:
        if app.openapi_schema is None:
            _, top = models_json_schema(list(BY_HAND.items()), ref_template=_PLACE)
            document = made()
            document["components"]["schemas"].update(top["$defs"])
            _drop_framework_errors(document)
        return made()

    app.openapi = partial(described, app)  # type: ignore[method-assign]


def _drop_framework_errors(document: dict[str, Any]) -> None:
    """Take out the 422 that the framework adds where a route names none: under /v2 it is a 400."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/v2"):
                operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


SOLVING_PROBLEMS = problems(
    Kind.MALFORMED,
    Kind.UNKNOWN_MODEL,
    Kind.UNKNOWN_VERSION,
    Kind.NOT_ACCEPTABLE,
    Kind.TOO_LARGE,
    Kind.JOB_TOO_LARGE,
    Kind.MEDIA,
    Kind.INVALID,
    Kind.OVERLOADED,
    Kind.INTERNAL,
    Kind.DRAINING,
    Kind.BROKEN_MODEL,
    Kind.DEADLINE,
)
"""What can be wrong with a request to solve."""

SAMPLE_OPERATION: dict[str, Any] = {
    "openapi_extra": asked(SampleRequest, examples.REQUESTS),
    "responses": {
        200: {
            "model": SampleResponse,
            "description": "The samples, in the format that Accept asks for",
            "content": {"application/json": shown(examples.SAMPLES)}
            | {media: BINARY for media in ENCODERS if media != "application/json"},
        },
        **SOLVING_PROBLEMS,
    },
}
"""Arguments of the route of ``POST /v1/sample``."""

STREAM_OPERATION: dict[str, Any] = {
    "openapi_extra": asked(SampleRequest, {"adaptive": examples.REQUESTS["adaptive"]}),
    "response_class": Response,
    "responses": {
        **SAMPLE_OPERATION["responses"],
        200: {
            "description": "Server-sent events: start, progress and sample on the way, completed or error at the end",
            "content": {
                "text/event-stream": {"schema": {"type": "string"}} | shown({"adaptive": examples.STREAM}),
            },
        },
    },
}
"""Arguments of the route of ``POST /v1/sample/stream``."""
