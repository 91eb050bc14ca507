"""Routers, and what their OpenAPI description takes besides the signatures of endpoints: groups, examples, errors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Path, Response

from service import examples
from service.errors import MEDIA_TYPE, Kind

ModelName = Annotated[str, Path(description="name of the model", openapi_examples={"moons": {"value": "moons"}})]
Responses = dict[int | str, dict[str, Any]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

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

BINARY = {"schema": {"type": "string", "format": "binary"}}


class Router(APIRouter):
    """A router that describes what its endpoints answer: the schema that they return, examples of it, and their errors.

    Args:
        errors: returns the `responses` of a route for kinds of errors.
        settings: of the router.
    """

    def __init__(self, errors: Callable[..., Responses] | None = None, **settings: Any) -> None:
        # Endpoints have the names of their functions in generated clients.
        super().__init__(generate_unique_id_function=lambda route: route.name, **settings)
        self._errors = errors or problems

    def read(
        self, path: str, summary: str, *kinds: Kind, responses: Responses | None = None
    ) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that makes a function answer GET and HEAD at a path; the server leaves out HEAD's body.

        Args:
            path: of the route.
            summary: of what it does.
            kinds: errors that it may answer with.
            responses: its answers, if they are no JSON.
        """
        return self._adding(path, ("GET", "HEAD"), summary, kinds, responses)

    def act(self, path: str, summary: str, *kinds: Kind) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that makes a function answer POST with JSON at a path; arguments as for `read`."""
        return self._adding(path, ("POST",), summary, kinds)

    def _adding(
        self, path: str, methods: Sequence[str], summary: str, kinds: Sequence[Kind], responses: Responses | None = None
    ) -> Callable[[Endpoint], Endpoint]:
        def add(endpoint: Endpoint) -> Endpoint:
            returned = endpoint.__annotations__["return"]
            is_json = returned is not Response
            answers = shown(examples.answers(methods[0], self.prefix + path)) if is_json else {}
            json: Responses = {200: {"model": returned, "content": {"application/json": answers}}}
            # Any: what an answer has is checked where it is built, by the type checker.
            kind: dict[str, Any] = {"response_model": Any} if is_json else {"response_class": Response}
            described = (json if responses is None else responses) | self._errors(*kinds)
            if len(methods) > 1:  # OpenAPI would give both methods of one route the same id: this one only answers
                self.add_api_route(path, endpoint, methods=[*methods], include_in_schema=False, **kind)
            self.add_api_route(path, endpoint, methods=[methods[0]], summary=summary, responses=described, **kind)
            return endpoint

        return add


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `examples` member of a body or parameter, from examples by name."""
    return {"examples": {name: {"value": value} for name, value in values.items()}}


def requested(values: Mapping[str, Any]) -> Any:
    """Return the annotation of a parameter that is the body, with examples by name."""
    return Body(openapi_examples={name: {"value": value} for name, value in values.items()})


def problems(*kinds: Kind) -> Responses:
    """Return the `responses` of a route for these kinds of errors, each with an example, and for all others."""
    # FastAPI would describe a `model` under the media type of the answer; `/problems/{slug}` declares this one.
    schema = {"schema": {"$ref": "#/components/schemas/ProblemBody"}}

    def described(title: str, *same: Kind) -> dict[str, Any]:
        values = shown({kind.slug: examples.ERRORS[kind] for kind in same})
        return {"description": title, "content": {MEDIA_TYPE: schema | values}}

    return by_status(kinds, lambda kind: kind.status, described)


def by_status(
    kinds: Iterable[Kind], status_of: Callable[[Kind], int], described: Callable[..., dict[str, Any]]
) -> Responses:
    """Return the `responses` of a route for kinds of errors: one for each status, and one for all other errors.

    Without that one, the framework would describe a form of its own, which the service does not answer with.

    Args:
        kinds: of errors.
        status_of: kind -> status.
        described: title, kinds -> response.
    """
    groups: dict[int | str, list[Kind]] = {}
    for kind in kinds:
        groups.setdefault(status_of(kind), []).append(kind)
    listed = {status: described("; ".join(kind.title for kind in same), *same) for status, same in groups.items()}
    return listed | {"default": described("Any other error", Kind.INTERNAL)}


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


def solved(path: str, model: Any, what: str, media: Iterable[str], *kinds: Kind) -> Responses:
    """Return the `responses` of a route that solves.

    Args:
        path: of the route.
        model: the schema of the JSON response.
        what: contents of the response, as in "The samples, in the format that Accept asks for".
        media: its formats; the route answers with the one that the client prefers.
        kinds: errors besides those common to all requests that solve.
    """
    values = shown(examples.answers("POST", path))
    content = {kind: values if kind == "application/json" else BINARY for kind in media}
    described = {"model": model, "description": f"{what}, in the format that Accept asks for", "content": content}
    return {200: described, **problems(*kinds), **SOLVING_PROBLEMS}
