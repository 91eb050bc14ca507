"""The OpenAPI description, completed where the framework falls short: hand-parsed bodies, problems, examples, HEAD."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, Path
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service import examples
from service.errors import MEDIA_TYPE, Kind
from service.responses.schemas import ProblemBody

ModelName = Annotated[str, Path(description="name of the model", openapi_examples={"moons": {"value": "moons"}})]

SAMPLING, ANALYSIS, CATALOGUE = "Sampling", "Analysis", "Models and solvers"
ADMIN, OPERATION, PAGES = "Administration", "Health and metrics", "Pages"
PROTOCOL = "Open Inference Protocol v2"

TAGS = [
    {"name": SAMPLING, "description": "Draw samples from a model, at once or as a stream of events."},
    {"name": ANALYSIS, "description": "Map data to noise, compute log-densities, and inspect the velocity field."},
    {"name": CATALOGUE, "description": "What can be requested: the models of the repository and the solvers."},
    {"name": ADMIN, "description": "Change the running service; requires the key in `PATHLINE_ADMIN_KEY`."},
    {"name": OPERATION, "description": "Liveness, readiness, and metrics for Prometheus."},
    {"name": PAGES, "description": "The playground, and explanations of the errors."},
    {"name": PROTOCOL, "description": "The same models for clients of KServe and Triton."},
]
"""Groups of endpoints, in the order in which ``/docs`` shows them."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

BINARY = {"schema": {"type": "string", "format": "binary"}}
_PLACE = "#/components/schemas/{model}"

BY_HAND: dict[type[BaseModel], Any] = {ProblemBody: "serialization"}
"""Models that no route declares, and whether the description shows their request or response form."""


def read(router: APIRouter, path: str, **described: Any) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that makes a function answer GET and HEAD at a path; the server leaves out HEAD's body.

    Args:
        router: gets the route.
        path: of the route.
        described: arguments of the route that its OpenAPI description shows.
    """

    def add(endpoint: Endpoint) -> Endpoint:
        # The first route answers. The second describes: OpenAPI would give both methods of one route the same id.
        router.add_api_route(path, endpoint, methods=["GET", "HEAD"], include_in_schema=False)
        router.add_api_route(path, endpoint, methods=["GET"], **described)
        return endpoint

    return add


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Return the reference to the schema of a model in `BY_HAND`."""
    return {"$ref": _PLACE.format(model=model.__name__)}


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `examples` member of a body or parameter, from examples by name."""
    return {"examples": {name: {"value": value} for name, value in values.items()}}


def answered(model: type[BaseModel] | None = None, **values: Any) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that answers 200 with JSON: its model, and examples by name."""
    described: dict[str, Any] = {"content": {"application/json": shown(values)}}
    return {200: described | ({} if model is None else {"model": model})}


def json_body(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that parses its JSON body by hand, and add the model to `BY_HAND`."""
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
            "content": {
                MEDIA_TYPE: {"schema": schema} | shown({kind.value.slug: examples.ERRORS[kind] for kind in found})
            },
        }
        for status, found in by_status.items()
    }


def complete(app: FastAPI) -> None:
    """Add the models of `BY_HAND` to the description, and drop statuses that no route declares."""
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
    """Drop the 422 that the framework adds where a route declares none; under /v2, for example, it is a 400."""
    for operations in document["paths"].values():
        for operation in operations.values():
            if "HTTPValidationError" in str(operation["responses"].get("422")):
                del operation["responses"]["422"]
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
    Kind.ENGINE,
    Kind.DRAINING,
    Kind.BROKEN_MODEL,
    Kind.DEADLINE,
)
"""Error responses common to all requests that solve."""


def solving(
    tag: str,
    summary: str,
    body: type[BaseModel],
    response: type[BaseModel],
    *,
    requests: Mapping[str, Any],
    responses: Mapping[str, Any],
    media: Iterable[str],
    what: str,
    kinds: Sequence[Kind] = (),
) -> dict[str, Any]:
    """Return the arguments of a route that solves: its OpenAPI description, with examples that tests send.

    Args:
        tag, summary: of the route.
        body, response: schemas.
        requests, responses: examples by name.
        media: formats of the response.
        what: contents of the response, as in "The samples, in the format that Accept asks for".
        kinds: errors besides those common to all requests that solve.
    """
    content = {each: shown(responses) if each == "application/json" else BINARY for each in media}
    found = {"model": response, "description": f"{what}, in the format that Accept asks for", "content": content}
    described = {"tags": [tag], "summary": summary, "openapi_extra": json_body(body, requests)}
    return described | {"responses": {200: found, **problems(*kinds), **SOLVING_PROBLEMS}}
