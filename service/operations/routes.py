"""``POST /v1/models/{name}/encode``, ``log_prob`` and ``diagnose``."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from service.engine.job import DeadlineExceeded, Job, JobResult
from service.engine.operation import Operation
from service.errors import ClientGoneError
from service.http.context import context_of
from service.http.negotiation import choose
from service.ledger import Take
from service.operations import diagnose as diagnosis
from service.operations import encode as encoding
from service.operations import log_prob as density
from service.operations.description import DIAGNOSE, ENCODE, LOG_PROB
from service.operations.schemas import DiagnoseRequest, EncodeRequest, LogProbRequest
from service.registry.served import Served
from service.requests.parsing import LARGE_BODY, parse, read_body
from service.responses.encoders import NUMBERS_A_PIECE
from service.responses.findings import FORMATS, Findings
from service.responses.traces import Array
from service.routes.reading import ModelName
from service.routes.sample import beside, count
from service.settings import Settings
from service.solving import problem_of, solve, until_disconnect
from service.state import model_of, service_of

router = APIRouter()

Wish = TypeVar("Wish", EncodeRequest, LogProbRequest, DiagnoseRequest)
Made = TypeVar("Made")
Prepare = Callable[[Wish, Served, Settings, str, Take], Made]


@router.post("/v1/models/{name}/encode", **ENCODE)
async def encode(request: Request, name: ModelName) -> Response:
    """Find the noise that data come from: solve dx/dt = v(x, t) from data back to noise."""
    media, model, (job, states) = await _understand(request, name, EncodeRequest, encoding.prepare)
    result = await _solve(request, job)
    count(service_of(request), context_of(request.scope), job, result)
    head, arrays = await asyncio.to_thread(encoding.found, model, job, states, result)
    return await _respond(request, media, head, arrays, result)


@router.post("/v1/models/{name}/log_prob", **LOG_PROB)
async def log_prob(request: Request, name: ModelName) -> Response:
    """Find the log-density of data: solve for x and log p together, from data back to noise."""
    media, model, (job, states) = await _understand(request, name, LogProbRequest, density.prepare)
    deterministic = await _ready(request, model, job.operation, job)
    result = await _solve(request, job)
    by_sample = await asyncio.to_thread(density.worst, result, len(states.x))
    count(service_of(request), context_of(request.scope), job, by_sample)
    head, arrays = await asyncio.to_thread(density.found, model, job, states, result, deterministic)
    return await _respond(request, media, head, arrays, result)


@router.post("/v1/models/{name}/diagnose", **DIAGNOSE)
async def diagnose(request: Request, name: ModelName) -> Response:
    """Take the Jacobian of the velocity along paths from noise to data: its eigenvalues, condition and stiffness."""
    media, model, job = await _understand(request, name, DiagnoseRequest, diagnosis.prepare)
    deterministic = await _ready(request, model, Operation.JACOBIAN, job)
    result = await _solve(request, job)
    paths = await asyncio.to_thread(diagnosis.Paths, job, result)
    second = await asyncio.to_thread(paths.jacobian_job)
    rows = None if second is None else await _solve(request, second)
    spectra = await asyncio.to_thread(diagnosis.Spectra, paths, rows)
    await _take(spectra, job, request)
    result = diagnosis.together(result, rows)
    count(service_of(request), context_of(request.scope), job, result)
    head = diagnosis.head(model, job, result, paths.width, deterministic)
    return await _respond(request, media, head, spectra.arrays(), result)


async def _understand(
    request: Request, name: str, body: type[Wish], prepare: "Prepare[Wish, Made]"
) -> tuple[str, Served, Made]:
    """Read and check a request: the format of its answer, the model, and the job that `prepare` makes."""
    service = service_of(request)
    media = choose(request.headers.get("accept"), list(FORMATS))
    content = await read_body(request, service.settings.max_body_bytes, service.bodies)
    large = len(content) > LARGE_BODY
    wish = await service.parse(large, parse, body, content)
    model = await model_of(request, wish, name, wish.version)
    context = context_of(request.scope)
    made = await asyncio.to_thread(prepare, wish, model, service.settings, media, service.taking(context))
    context.understood()
    return media, model, made


async def _ready(request: Request, model: Served, operation: Operation, job: Job) -> bool:
    """Make an operation ready; return whether its answers are deterministic."""
    ready = await service_of(request).ready(model, operation, job.deadline or time.monotonic())
    return model.deterministic and ready.deterministic


async def _solve(request: Request, job: Job) -> JobResult:
    context = context_of(request.scope)
    context.solver = context.solver or job.solve.name
    return await solve(service_of(request).engine, job, request.receive, context.hold)


async def _take(spectra: diagnosis.Spectra, job: Job, request: Request) -> None:
    """Decompose Jacobians beside the event loop until they are done, it is too late, or nobody waits any more."""
    gone = asyncio.ensure_future(until_disconnect(request.receive))
    try:
        for part in spectra.slices():
            await asyncio.to_thread(spectra.take, part)
            if gone.done():
                raise ClientGoneError
            if job.deadline is not None and time.monotonic() > job.deadline:
                raise problem_of(DeadlineExceeded())
    finally:
        gone.cancel()


async def _respond(
    request: Request, media: str, head: dict[str, Any], arrays: dict[str, Array | None], result: JobResult
) -> Response:
    context = context_of(request.scope)
    timings = {"queue_s": result.queue_s, "solve_s": result.solve_s, "network_s": result.network_s}
    answer = Findings(head | context.fallback(), arrays, context.elapsed, timings=timings)
    headers = {"X-Pathline-Status": str(head["status"]), "Vary": "Accept"}
    pieces = FORMATS[media](answer)
    if answer.numbers > NUMBERS_A_PIECE:
        return StreamingResponse(beside(pieces, context), media_type=media, headers=headers)
    begun = time.perf_counter()
    content = b"".join(pieces)
    context.timings["encode"] = time.perf_counter() - begun
    return Response(content, media_type=media, headers=headers)
