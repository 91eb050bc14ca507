"""Endpoints of the Open Inference Protocol, on the request pipeline of ``/v1/sample``."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from service.errors import Kind, ProblemError
from service.http.access import from_browser
from service.oip import description, triton
from service.oip.description import metadata
from service.oip.outputs import select_outputs
from service.oip.requests import to_sample_request
from service.oip.tensors import BINARY, header_of, parse_body
from service.openapi import PROTOCOL, ModelName, read
from service.requests import pipeline
from service.requests.parsing import JSON, read_body
from service.requests.parsing import parse as read_json
from service.requests.schemas import SampleRequest
from service.requests.validation import validate_sample
from service.responses.arrays import Encoder
from service.state import VERSION, service_of

router = APIRouter(prefix="/v2", tags=[PROTOCOL])

Version = Annotated[int, Path(ge=1, description="version of the model", openapi_examples={"1": {"value": 1}})]

_MEDIA = (JSON, BINARY)
_MAX_INDEX_BYTES = 1024


@read(router, "", summary="Describe the server", responses=description.SERVER)
async def server_metadata() -> Any:
    """Return the name and version of the server, and the protocol extensions it supports."""
    return {"name": "pathline", "version": VERSION, "extensions": description.EXTENSIONS}


@read(router, "/health/live", summary="Liveness (v2)", responses=description.LIVE)
async def server_live(request: Request) -> Any:
    """Answer 200 while the process works, like /livez."""
    fatal_fault = service_of(request).fatal_fault()
    if fatal_fault is not None:
        raise ProblemError(Kind.NOT_READY, fatal_fault)
    return {"live": True}


@read(router, "/health/ready", summary="Readiness (v2)", responses=description.READY)
async def server_ready(request: Request) -> Any:
    """Answer 200 while the service takes requests, like /readyz."""
    fault = service_of(request).unready()
    if fault is not None:
        raise fault
    return {"ready": True}


@read(router, "/models/stats", summary="Statistics of all models", responses=triton.STATISTICS)
async def statistics(request: Request) -> Any:
    """Return counts and times of all models that answer, as Triton's tools read them."""
    service = service_of(request)
    return triton.statistics(service, service.registry.current())


@router.post("/repository/index", summary="List all versions (v2)", **triton.INDEX)
async def repository_index(request: Request) -> Any:
    """Return all versions of all models, and whether they answer."""
    service = service_of(request)
    body = await read_body(request, _MAX_INDEX_BYTES, service.bodies, (JSON, ""))
    asked = read_json(triton.IndexRequest, body) if body.strip() else triton.IndexRequest()
    return triton.index(service.registry, asked.ready)


@read(router, "/models/{model_name}", summary="Describe a model's tensors", responses=description.MODEL)
async def model_metadata(request: Request, model_name: ModelName) -> Any:
    """Return the inputs and outputs of a model, loading it if needed."""
    return await _metadata(request, model_name, None)


@read(
    router,
    "/models/{model_name}/versions/{version}",
    summary="Describe the tensors of a version",
    responses=description.MODEL,
)
async def version_metadata(request: Request, model_name: ModelName, version: Version) -> Any:
    """Return the inputs and outputs of one version."""
    return await _metadata(request, model_name, version)


@read(router, "/models/{model_name}/config", summary="Configuration of a model", responses=triton.CONFIG)
async def model_config(request: Request, model_name: ModelName) -> Any:
    """Return a model's tensors as a configuration of Triton, loading it if needed."""
    return await _config(request, model_name, None)


@read(
    router,
    "/models/{model_name}/versions/{version}/config",
    summary="Configuration of a version",
    responses=triton.CONFIG,
)
async def version_config(request: Request, model_name: ModelName, version: Version) -> Any:
    """Return the configuration of one version."""
    return await _config(request, model_name, version)


@read(router, "/models/{model_name}/stats", summary="Statistics of a model", responses=triton.MODEL_STATISTICS)
async def model_statistics(request: Request, model_name: ModelName) -> Any:
    """Return counts and times of a model, as Triton's tools read them."""
    return _statistics(request, model_name, None)


@read(
    router,
    "/models/{model_name}/versions/{version}/stats",
    summary="Statistics of a version",
    responses=triton.MODEL_STATISTICS,
)
async def version_statistics(request: Request, model_name: ModelName, version: Version) -> Any:
    """Return the counts and times of the model that a version belongs to."""
    return _statistics(request, model_name, version)


@read(router, "/models/{model_name}/ready", summary="Readiness of a model", responses=description.MODEL_READY)
async def model_ready(request: Request, model_name: ModelName) -> Any:
    """Answer 200 if the model can draw samples."""
    return _ready(request, model_name, None)


@read(
    router,
    "/models/{model_name}/versions/{version}/ready",
    summary="Readiness of a version",
    responses=description.MODEL_READY,
)
async def version_ready(request: Request, model_name: ModelName, version: Version) -> Any:
    """Answer 200 if this version can draw samples."""
    return _ready(request, model_name, version)


@router.post("/models/{model_name}/infer", summary="Draw samples (v2)", **description.INFER)
async def infer(request: Request, model_name: ModelName) -> Response:
    """Draw samples like POST /v1/sample; scalar members are parameters, arrays are named tensors."""
    return await _infer(request, model_name, None)


@router.post(
    "/models/{model_name}/versions/{version}/infer", summary="Draw samples of a version (v2)", **description.INFER
)
async def infer_version(request: Request, model_name: ModelName, version: Version) -> Response:
    """Draw samples of one version."""
    return await _infer(request, model_name, version)


async def _metadata(request: Request, name: str, version: int | None) -> dict[str, Any]:
    service = service_of(request)
    async with service.lease(name, version) as model:
        return metadata(model, service.registry.describe(name)["versions"])


async def _config(request: Request, name: str, version: int | None) -> dict[str, Any]:
    service = service_of(request)
    async with service.lease(name, version) as model:
        return triton.configuration(model, service.registry.describe(name)["versions"])


def _statistics(request: Request, name: str, version: int | None) -> dict[str, Any]:
    service = service_of(request)
    _ready(request, name, version)
    shown = version if version is not None else service.registry.describe(name)["serving"]
    return triton.statistics(service, [(name, shown)])


def _ready(request: Request, name: str, version: int | None) -> dict[str, Any]:
    service = service_of(request)
    fault = service.fault()
    if fault is not None:
        raise ProblemError(*fault)
    service.registry.check_ready(name, version)
    return {"name": name, "ready": True}


async def _infer(request: Request, name: str, version: int | None) -> Response:
    def parse(body: bytes) -> tuple[SampleRequest, Encoder]:
        infer_request, tensors = parse_body(body, header_of(request))
        sample = to_sample_request(name, version, infer_request, tensors)
        return sample, select_outputs(infer_request, sample).encoder

    # Triton's client sends no Content-Type. Neither does a page that wants to avoid its browser's preflight.
    allowed = _MEDIA if from_browser(request.headers) else (*_MEDIA, "")
    valid = await pipeline.receive(request, parse, validate_sample, allowed=allowed)
    response = await pipeline.draw(request, valid)
    return await pipeline.respond(request, response, valid.encoder, {"X-Pathline-Seed": str(valid.job.seed)})
