"""Endpoints of the Open Inference Protocol, on the request pipeline of ``/v1/sample``."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import Path, Request, Response

from service import examples
from service.errors import Kind, ProblemError
from service.http.access import from_browser
from service.http.context import Context
from service.oip import description
from service.oip.outputs import encoder_of
from service.oip.requests import to_sample_request
from service.oip.schemas import (
    REQUESTS,
    ErrorBody,
    IndexEntry,
    IndexRequest,
    InferRequest,
    InferResponse,
    ModelConfig,
    ModelMetadata,
    ModelReady,
    ServerMetadata,
    Statistics,
)
from service.oip.tensors import BINARY, HEADER, parse_body
from service.openapi import BINARY as BINARY_BODY
from service.openapi import PROTOCOL, ModelName, Responses, Router, by_status, requested, shown
from service.requests import pipeline
from service.requests.validation import validate_sample
from service.responses.arrays import JSON
from service.state import VERSION, service_of


def _errors(*kinds: Kind) -> Responses:
    """Return the `responses` of a route for these kinds of errors, each with an example, and for all others."""
    return by_status(kinds, lambda kind: kind.oip_status, _error)


def _error(title: str, *kinds: Kind) -> dict[str, Any]:
    shown_by_slug = shown({kind.slug: {"error": examples.ERRORS[kind]["detail"]} for kind in kinds})
    return {"model": ErrorBody, "description": title, "content": {JSON: shown_by_slug}}


router = Router(errors=_errors, prefix="/v2", tags=[PROTOCOL])

Version = Annotated[int, Path(ge=1, description="version of the model", openapi_examples={"1": {"value": 1}})]

EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics"]
_UNKNOWN = (Kind.UNKNOWN_MODEL, Kind.UNKNOWN_VERSION, Kind.INVALID)
_UNREADY = (Kind.BROKEN_MODEL, Kind.NOT_READY, Kind.DRAINING)

Answer = Callable[[Request, str, int | None], Awaitable[Any]]


def _read_of_model(path: str, summary: str) -> Callable[[Answer], Answer]:
    """Return a decorator that makes a function answer for a model and for one version; arguments as `Router.read`."""

    def add(answer: Answer) -> Answer:
        async def of_model(request: Request, model_name: ModelName) -> Any:
            return await answer(request, model_name, None)

        async def of_version(request: Request, model_name: ModelName, version: Version) -> Any:
            return await answer(request, model_name, version)

        for place, endpoint, subject in (("", of_model, "model"), ("/versions/{version}", of_version, "version")):
            endpoint.__name__, endpoint.__doc__ = f"{subject}_{answer.__name__}", answer.__doc__
            endpoint.__annotations__["return"] = answer.__annotations__["return"]
            described = f"{summary} of a {subject}"
            router.read(f"/models/{{model_name}}{place}{path}", described, *_UNKNOWN, *_UNREADY)(endpoint)
        return answer

    return add


@router.read("", "Describe the server")
async def server_metadata() -> ServerMetadata:
    """Return the name and version of the server, and the protocol extensions it supports."""
    return {"name": "pathline", "version": VERSION, "extensions": EXTENSIONS}


@router.read("/health/live", "Liveness (v2)", Kind.NOT_READY)
async def server_live(request: Request) -> dict[str, bool]:
    """Answer 200 while the process works, like /livez."""
    fatal_fault = service_of(request).fatal_fault()
    if fatal_fault is not None:
        raise ProblemError(Kind.NOT_READY, fatal_fault)
    return {"live": True}


@router.read("/health/ready", "Readiness (v2)", Kind.NOT_READY, Kind.DRAINING)
async def server_ready(request: Request) -> dict[str, bool]:
    """Answer 200 while the service takes requests, like /readyz."""
    fault = service_of(request).unready()
    if fault is not None:
        raise fault
    return {"ready": True}


@router.read("/models/stats", "Statistics of all models")
async def statistics_of_all(request: Request) -> Statistics:
    """Return counts and times of all models that answer, as Triton's tools read them."""
    service = service_of(request)
    return {"model_stats": [description.statistics(service, *current) for current in service.registry.current()]}


@_read_of_model("", "Tensors")
async def metadata(request: Request, name: str, version: int | None) -> ModelMetadata:
    """Return inputs and outputs, loading the model if needed."""
    service = service_of(request)
    with await service.lease(name, version) as model:
        return description.metadata(model, list(service.registry.entry(name).versions))


@_read_of_model("/config", "Configuration")
async def config(request: Request, name: str, version: int | None) -> ModelConfig:
    """Return inputs and outputs as a configuration of Triton, loading the model if needed."""
    with await service_of(request).lease(name, version) as model:
        return description.configuration(model)


@_read_of_model("/stats", "Statistics")
async def statistics(request: Request, name: str, version: int | None) -> Statistics:
    """Return counts and times of a model, all versions together, as Triton's tools read them."""
    await ready(request, name, version)
    service = service_of(request)
    named = version if version is not None else service.registry.entry(name).current or 0
    return {"model_stats": [description.statistics(service, name, named)]}


@_read_of_model("/ready", "Readiness")
async def ready(request: Request, name: str, version: int | None) -> ModelReady:
    """Answer 200 if samples can be drawn."""
    service = service_of(request)
    fault = service.fault()
    if fault is not None:
        raise ProblemError(*fault)
    service.registry.check_ready(name, version)
    return {"name": name, "ready": True}


class _IndexRoute(pipeline.BodyRoute):
    media = (JSON, "")
    max_bytes = 1024
    negotiates = False

    def parse(self, http: Context, body: bytes) -> Any:
        return super().parse(http, body) if body.strip() else IndexRequest()


class _InferRoute(pipeline.BodyRoute):
    media = (JSON, BINARY)
    negotiates = False

    def allowed(self, http: Context) -> Sequence[str]:
        # Triton's client sends no Content-Type. Neither does a page that wants to avoid its browser's preflight.
        return self.media if from_browser(http.sent) else (*self.media, "")

    def parse(self, http: Context, body: bytes) -> InferRequest:
        return parse_body(body, http.headers.get(HEADER))


_index = Router(errors=_errors, prefix="/v2", tags=[PROTOCOL], route_class=_IndexRoute)
_infer = Router(errors=_errors, prefix="/v2", tags=[PROTOCOL], route_class=_InferRoute)


_ALL = IndexRequest()


@_index.act("/repository/index", "List all versions (v2)", *(Kind.MALFORMED, Kind.INVALID, Kind.TOO_LARGE, Kind.MEDIA))
async def repository_index(
    http: Context, request: Annotated[IndexRequest, requested({"all": {}, "ready": {"ready": True}})] = _ALL
) -> list[IndexEntry]:
    """Return all versions of all models, and whether they answer."""
    return description.index(http.service.registry, request.ready)


_INFERRED: Responses = {
    200: {
        "model": InferResponse,
        "description": "The output tensors; with binary_data_output or binary_data their bytes follow the JSON",
        "content": {JSON: shown(examples.answers("POST", "/v2/models/{model_name}/infer")), BINARY: BINARY_BODY},
    }
}
_INFER: dict[str, Any] = {
    "responses": _INFERRED
    | _errors(
        *(Kind.MALFORMED, Kind.BAD_REQUEST, *_UNKNOWN, Kind.TOO_LARGE, Kind.JOB_TOO_LARGE, Kind.MEDIA),
        *(Kind.OVERLOADED, Kind.INTERNAL, *_UNREADY, Kind.DEADLINE),
    ),
    "openapi_extra": {"requestBody": {"content": {BINARY: BINARY_BODY}}},  # its JSON part, then bytes of its tensors
}
_InferBody = Annotated[InferRequest, requested(REQUESTS)]


@_infer.post("/models/{model_name}/infer", summary="Draw samples (v2)", **_INFER)
async def infer(http: Context, model_name: ModelName, request: _InferBody) -> Response:
    """Draw samples like POST /v1/sample; scalar members are parameters, arrays are named tensors."""
    return await _drawn(http, model_name, None, request)


@_infer.post("/models/{model_name}/versions/{version}/infer", summary="Draw samples of a version (v2)", **_INFER)
async def infer_version(http: Context, model_name: ModelName, version: Version, request: _InferBody) -> Response:
    """Draw samples of one version."""
    return await _drawn(http, model_name, version, request)


async def _drawn(http: Context, name: str, version: int | None, request: InferRequest) -> Response:
    arguments = (name, version, request, request.tensors)
    sample = await asyncio.to_thread(to_sample_request, *arguments) if http.large else to_sample_request(*arguments)
    valid = await pipeline.make_job(http, sample, validate_sample, encoder=encoder_of(request, sample))
    response = await pipeline.build_response(http, valid, await pipeline.solve(http, valid.job))
    return await pipeline.respond(http, valid, response, {"x-pathline-seed": str(valid.job.seed)})


router.routes += [*_index.routes, *_infer.routes]
