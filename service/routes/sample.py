"""``POST /v1/sample`` and ``/sample``: one request, one answer in the format that is asked for."""

import asyncio
import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from starlette.responses import StreamingResponse

from service.engine.job import Job, JobResult
from service.http.context import Context, context_of
from service.http.negotiation import choose
from service.openapi import SAMPLE_OPERATION
from service.registry.served import Served
from service.requests.parsing import LARGE_BODY, parse, read_body
from service.requests.prepare import prepare
from service.requests.schemas import SampleRequest
from service.responses.answers import Answer, outcome, saved_to_data, to_data
from service.responses.encoders import ENCODERS, NUMBERS_A_PIECE, Encoder, Pieces
from service.responses.traces import view
from service.solving import solve
from service.state import Service, model_of, service_of

router = APIRouter()


@router.post("/v1/sample", **SAMPLE_OPERATION)
@router.post("/sample", include_in_schema=False)
async def sample(request: Request) -> Response:
    """Draw samples: solve dx/dt = v(x, t) from noise to data with the solver that the request names."""
    context = context_of(request.scope)
    encoder = ENCODERS[choose(request.headers.get("accept"), list(ENCODERS))]
    answer = await draw(request, *await understand(request, encoder))
    return await _respond(answer, encoder, context)


async def draw(request: Request, wish: SampleRequest, model: Served, job: Job) -> Answer:
    """Solve for what was understood, count it and make the answer, beside the event loop where it is large.

    Raises:
        ProblemError: 429, 503, 504 or 500, as the engine says.
        ClientGoneError: The client left.
    """
    service, context = service_of(request), context_of(request.scope)
    result = await solve(service.engine, job, request.receive, context.hold)
    await service.turnstile.enter()  # many may be done in the same tick
    count(service, context, job, result)
    if is_small(result):
        return answer_of(wish, model, job, result, context)
    return await asyncio.to_thread(answer_of, wish, model, job, result, context)


async def understand(request: Request, encoder: Encoder) -> tuple[SampleRequest, Served, Job]:
    """Read and check a request: what is wished, the model, and the job for the engine.

    Raises:
        ProblemError: What is wrong with it.
        ClientGoneError: The client left before the body was complete.
    """
    service, context = service_of(request), context_of(request.scope)
    body = await read_body(request, service.settings.max_body_bytes, service.bodies)
    large = len(body) > LARGE_BODY
    wish = await service.parse(large, parse, SampleRequest, body)
    model = await model_of(request, wish, wish.model, wish.version)
    arguments = (wish, model, service.settings, encoder, service.taking(context))
    job = await asyncio.to_thread(prepare, *arguments) if large else prepare(*arguments)
    context.understood()
    context.solver = job.solve.name
    return without_numbers(wish), model, job


def is_small(result: JobResult) -> bool:
    """Whether a result becomes an answer in so short a time that the event loop can wait for it."""
    saved = 0 if result.saved is None else result.saved.numel()
    return max(result.x.numel(), saved, len(result.trace)) <= NUMBERS_A_PIECE


def without_numbers(wish: SampleRequest) -> SampleRequest:
    """Return what the answer needs of a request; its lists take many times the memory of the tensors made of them."""
    return wish.model_copy(update={"x0": None, "condition": None})


def answer_of(wish: SampleRequest, model: Served, job: Job, result: JobResult, context: Context) -> Answer:
    """Return the answer to a request whose job is done, for any encoder."""
    decode = model.decode if wish.decode and not model.plain else None
    samples = to_data(result.x, decode)
    head = {
        "model": model.name,
        "version": model.version,
        "checkpoint": model.digest,
        **context.fallback(),
        "seed": job.seed,
        "first_index": job.first_index,
        "deterministic": model.deterministic,
        "noise": model.card.noise,
        "solver": job.solve.settings,
        "shape": list(samples.shape),
        **outcome(result),
    }
    return Answer(
        head=head,
        samples=samples,
        nfe=result.nfe,
        t=result.t,
        status=result.status,
        elapsed=context.elapsed,
        trace=view(wish.trace, job.solve, result.trace),
        save_at=() if job.save_at is None else tuple(job.save_at.tolist()),
        limits=model.card.decoder.clip if wish.decode else None,
        saved=None if result.saved is None else saved_to_data(result.saved, decode),
        timings={"queue_s": result.queue_s, "solve_s": result.solve_s, "network_s": result.network_s},
    )


def count(service: Service, context: Context, job: Job, result: JobResult) -> None:
    """Take a finished job into the metrics and the timings of its request."""
    context.timings.update(queue=result.queue_s, solve=result.solve_s, network=result.network_s)
    metrics, name = service.metrics, context.solver
    metrics.solved(context.model, name, result.nfe, result.queue_s, result.solve_s, result.network_s)
    if job.solve.adaptive:
        metrics.stepped(name, result.trace.h, result.trace.accepted)


async def _respond(answer: Answer, encoder: Encoder, context: Context) -> Response:
    """Encode small answers at once; large ones beside the event loop, piece by piece as they are sent."""
    headers = {
        "X-Pathline-Seed": str(answer.head["seed"]),
        "X-Pathline-Status": answer.head["status"],
        "Vary": "Accept",
    }
    pieces = encoder.encode(answer)
    if answer.numbers <= NUMBERS_A_PIECE and not encoder.slow:
        begun = time.perf_counter()
        content = b"".join(pieces)
        context.timings["encode"] = time.perf_counter() - begun
        return Response(content, media_type=encoder.media_type, headers=headers)
    return StreamingResponse(beside(pieces, context), media_type=encoder.media_type, headers=headers)


async def beside(pieces: Pieces, context: Context) -> AsyncIterator[bytes | memoryview]:
    """Yield the pieces of a large answer, each made beside the event loop when the one before it is sent."""
    begun, sent = time.perf_counter(), 0.0
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        context.timings["encode"] = time.perf_counter() - begun - sent
        given = time.perf_counter()
        yield piece
        sent += time.perf_counter() - given
