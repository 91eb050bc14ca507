"""The addresses of the Open Inference Protocol. What an infer request means is decided where /v1/sample is."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from service.errors import Kind, ProblemError
from service.http.access import from_a_browser
from service.oip import description
from service.oip.metadata import metadata
from service.oip.outputs import wanted
from service.oip.wire import BINARY, header_of, take_apart
from service.oip.wishes import to_wish
from service.requests import pipeline
from service.requests.schemas import SampleRequest
from service.requests.validation import validate_sample
from service.responses.arrays import Encoder
from service.routes.reading import ModelName, read
from service.state import VERSION, service_of

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol v2"])

Version = Annotated[int, Path(ge=1, description="version of the model", openapi_examples={"1": {"value": 1}})]

_MEDIA = ("application/json", BINARY)


@read(router, "", responses=description.SERVER)
async def server_metadata() -> Any:
    """Say who answers, and what of the protocol's extensions is here."""
    return {"name": "pathline", "version": VERSION, "extensions": ["binary_tensor_data"]}


@read(router, "/health/live", responses=description.LIVE)
async def server_live(request: Request) -> Any:
    """Answer 200 while the process can work, like /livez."""
    ailment = service_of(request).ailment()
    if ailment is not None:
        raise ProblemError(Kind.NOT_READY, ailment)
    return {"live": True}


@read(router, "/health/ready", responses=description.READY)
async def server_ready(request: Request) -> Any:
    """Answer 200 while requests are welcome, like /readyz."""
    fault = service_of(request).unready()
    if fault is not None:
        raise fault
    return {"ready": True}


@read(router, "/models/{model_name}", responses=description.MODEL)
async def model_metadata(request: Request, model_name: ModelName) -> Any:
    """Show the inputs and outputs of a model; one that is not in memory is loaded."""
    return await _metadata(request, model_name, None)


@read(router, "/models/{model_name}/versions/{version}", responses=description.MODEL)
async def version_metadata(request: Request, model_name: ModelName, version: Version) -> Any:
    """Show the inputs and outputs of one version."""
    return await _metadata(request, model_name, version)


@read(router, "/models/{model_name}/ready", responses=description.MODEL_READY)
async def model_ready(request: Request, model_name: ModelName) -> Any:
    """Answer 200 where the model can be asked for samples."""
    return _ready(request, model_name, None)


@read(router, "/models/{model_name}/versions/{version}/ready", responses=description.MODEL_READY)
async def version_ready(request: Request, model_name: ModelName, version: Version) -> Any:
    """Answer 200 where this version can be asked for samples."""
    return _ready(request, model_name, version)


@router.post("/models/{model_name}/infer", **description.INFER)
async def infer(request: Request, model_name: ModelName) -> Response:
    """Draw samples, as POST /v1/sample does; the parameters are its scalar members, tensors come and go by name."""
    return await _infer(request, model_name, None)


@router.post("/models/{model_name}/versions/{version}/infer", **description.INFER)
async def infer_version(request: Request, model_name: ModelName, version: Version) -> Response:
    """Draw samples of one version."""
    return await _infer(request, model_name, version)


async def _metadata(request: Request, name: str, version: int | None) -> dict[str, Any]:
    service = service_of(request)
    async with service.lease(name, version) as model:
        return metadata(model, service.registry.describe(name)["versions"])


def _ready(request: Request, name: str, version: int | None) -> dict[str, Any]:
    service = service_of(request)
    fault = service.fault()
    if fault is not None:
        raise ProblemError(*fault)
    service.registry.check_ready(name, version)
    return {"name": name, "ready": True}


async def _infer(request: Request, name: str, version: int | None) -> Response:
    def read(body: bytes) -> tuple[SampleRequest, Encoder]:
        asked, tensors = take_apart(body, header_of(request))
        wish = to_wish(name, version, asked, tensors)
        return wish, wanted(asked, wish).encoder

    # Triton's client names no type. Nor does a page that wants to get by the preflight of its browser.
    allowed = _MEDIA if from_a_browser(request.headers) else (*_MEDIA, "")
    valid = await pipeline.receive(request, read, validate_sample, allowed=allowed)
    response = await pipeline.draw(request, valid)
    return await pipeline.respond(request, response, valid.encoder, {"X-Pathline-Seed": str(valid.job.seed)})
