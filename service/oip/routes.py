"""The addresses of the Open Inference Protocol. What an infer request means is decided where /v1/sample is."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from starlette.responses import StreamingResponse

from service.engine.job import Job
from service.errors import Kind, ProblemError
from service.http.access import from_a_browser
from service.http.context import context_of
from service.oip import description
from service.oip.metadata import metadata
from service.oip.outputs import Wanted, wanted, write
from service.oip.wire import BINARY, HEADER, header_of, take_apart
from service.oip.wishes import to_wish
from service.registry.served import Served
from service.requests.parsing import LARGE_BODY, read_body
from service.requests.prepare import prepare
from service.requests.schemas import SampleRequest
from service.responses.answers import Answer
from service.responses.encoders import NUMBERS_A_PIECE
from service.routes.reading import ModelName, read
from service.routes.sample import beside, draw, without_numbers
from service.state import VERSION, model_of, service_of

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
    found = await service.model(name, version)
    return metadata(found, service.models.describe(name)["versions"])


def _ready(request: Request, name: str, version: int | None) -> dict[str, Any]:
    service = service_of(request)
    fault = service.fault()
    if fault is not None:
        raise ProblemError(*fault)
    service.models.check_ready(name, version)
    return {"name": name, "ready": True}


async def _infer(request: Request, name: str, version: int | None) -> Response:
    wish, model, job, want = await _understand(request, name, version)
    return await _respond(request, await draw(request, wish, model, job), want)


async def _understand(request: Request, name: str, version: int | None) -> tuple[SampleRequest, Served, Job, Wanted]:
    service = service_of(request)
    # Triton's client names no type. Nor does a page that wants to get by the preflight of its browser.
    allowed = _MEDIA if from_a_browser(request.headers) else (*_MEDIA, "")
    body = await read_body(request, service.settings.max_body_bytes, service.bodies, allowed)
    header, large = header_of(request), len(body) > LARGE_BODY
    asked = await service.parse(large, take_apart, body, header)
    wish = to_wish(name, version, *asked)
    want = wanted(asked[0], wish)
    model = await model_of(request, wish, name, version)
    dtypes = {key: tensor.dtype for key, tensor in asked[1].items()}
    context = context_of(request.scope)
    arguments = (wish, model, service.settings, want.encoder, service.taking(context), dtypes)
    job = await asyncio.to_thread(prepare, *arguments) if large else prepare(*arguments)
    context.understood()
    context.solver = job.solve.name
    return without_numbers(wish), model, job, want


async def _respond(request: Request, answer: Answer, want: Wanted) -> Response:
    context, large = context_of(request.scope), answer.numbers > NUMBERS_A_PIECE
    begun = time.perf_counter()
    length, pieces = await asyncio.to_thread(write, answer, want) if large else write(answer, want)
    context.timings["encode"] = time.perf_counter() - begun
    headers = {"X-Pathline-Seed": str(answer.head["seed"]), "X-Pathline-Status": answer.head["status"]}
    headers |= {HEADER: str(length)} if want.binary else {}
    media = BINARY if want.binary else "application/json"
    if large:
        return StreamingResponse(beside(pieces, context), media_type=media, headers=headers)
    return Response(b"".join(pieces), media_type=media, headers=headers)
