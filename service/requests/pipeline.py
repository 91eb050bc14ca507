"""The request pipeline: a body is read, parsed, validated and made into a `Job`; its result becomes a response.

    BodyRoute -> endpoint: make_job -> solve -> respond

Every endpoint that solves declares its body, and supplies the validation of its fields and the function that builds the
response from the result.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Any, TypeVar

from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive

from engine.job import SAMPLE, DeadlineExceeded, EngineFailed, Job, JobResult, Operation
from service.errors import REFUSALS, ClientGoneError, Kind, ProblemError, problem_of
from service.http.context import Context, context_of
from service.http.events import until_disconnect
from service.http.negotiation import choose, joined
from service.ledger import Hold, Take
from service.ports import Engine
from service.registry.version import ModelVersion
from service.replay import header_of
from service.requests.early import note
from service.requests.npz_body import claimed_bytes, is_npz
from service.requests.parsing import JSON, LARGE_BODY, NPZ, parse, read_body, set_aside
from service.requests.schemas import Named, Subject
from service.requests.validation import Validated, deadline_of
from service.responses.arrays import NUMBERS_PER_PIECE, ArrayResponse, Encoder, Pieces
from service.responses.samples import sample_response
from service.settings import Settings
from service.state import Service, service_of

LATE_S = 5.0
"""Extra seconds to wait for a partial result: the engine sees a deadline only after the current network call."""

WATCH_AFTER_S = 0.1
"""Seconds after which a client is watched for disconnecting: most jobs finish sooner, and a watcher is a task."""

R = TypeVar("R", bound=Subject)
V = TypeVar("V", bound=Validated)
Validate = Callable[[R, ModelVersion, Settings, Encoder, Take], V]


class BodyRoute(APIRoute):
    """A route that reads and parses the body that its endpoint declares, within the limits of the service.

    The endpoint is called with the HTTP request, the parsed body and its path parameters.

    Attributes:
        media: content types of the body; empty is none.
        max_bytes: limit of the body; None for that of the settings.
        negotiates: whether a body is read only if the client accepts a format that the route declares for its response.
            The context notes the chosen one.
    """

    media: tuple[str, ...] = (JSON, NPZ)
    max_bytes: int | None = None
    negotiates = True

    def parse(self, http: Request, model: type[BaseModel], body: bytes) -> Any:
        """Return the parsed body; errors as in `parsing.parse`."""
        return parse(model, body)

    def allowed(self, http: Request) -> Sequence[str]:
        """Return the content types that the body of a request may have."""
        return self.media

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        [declared], path = self.dependant.body_params, self.dependant.path_params
        model: Any = declared.field_info.annotation
        names = self.dependant.request_param_name or "", declared.name
        offered = tuple(self.responses[200]["content"]) if self.negotiates else ()

        async def handle(http: Request) -> Response:
            values, errors = request_params_to_args(path, http.path_params) if path else ({}, [])
            if errors:
                raise RequestValidationError(errors)
            if offered:
                context_of(http.scope).media_type = choose(joined(http.headers, "accept"), offered)
            values |= zip(names, (http, await self._parsed(http, model)), strict=True)
            answer = await self.endpoint(**values)
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        return handle

    async def _parsed(self, http: Request, model: type[BaseModel]) -> Any:
        """Read and parse a body, a large one in a worker thread.

        Raises:
            ProblemError: 400, 413, 415, 422 or 429, depending on the body and the load.
            ClientGoneError: The client disconnected before the body was complete.
        """
        service, context = service_of(http), context_of(http.scope)
        max_bytes = self.max_bytes or service.settings.max_body_bytes
        body = await read_body(http, max_bytes, service.bodies, self.allowed(http))
        size = len(body)
        if is_npz(body):
            size += claimed_bytes(body, max_bytes)
            set_aside(context, size, service.bodies)
        context.large = size > LARGE_BODY
        if context.large:  # one at a time: parsed lists take many times the memory of their text, and responses need
            async with service.parsing:  # threads too
                return await asyncio.to_thread(self.parse, http, model, body)
        context.text = body
        return self.parse(http, model, body)


async def make_job(
    http: Request, request: R, validate: Validate[R, V], encoder: Encoder, name: str = "", in_thread: bool = False
) -> V:
    """Find the model of a request, and make its job.

    Args:
        http: the HTTP request.
        request: its parsed body.
        validate: makes the job; see `validation.validate_sample`.
        encoder: the format of the response.
        name: the model in the address, if the body does not name it.
        in_thread: whether to validate in a worker thread even if the body is small.

    Raises:
        ProblemError: 400 to 504, depending on the fields, the model and the limits.
    """
    service, context = service_of(http), context_of(http.scope)
    model = await _model_of(service, context, request, request.model if isinstance(request, Named) else name)

    def take(size: int, deadline: float, conditions: int) -> Hold:
        hold = service.reserve(size, deadline, conditions)
        context.keep(hold)
        return hold

    arguments = (request, model, service.settings, encoder, take)
    in_thread = in_thread or context.large
    valid = await asyncio.to_thread(validate, *arguments) if in_thread else validate(*arguments)
    if valid.job.sizes and valid.job.operation is SAMPLE:
        await ready(http, valid)
    context.drop_body()
    context.solver = valid.job.plan.name
    return valid


async def ready(http: Request, valid: Validated, operation: Operation | None = None) -> bool:
    """Prepare an operation, by default that of the job; return whether its responses are deterministic."""
    job = valid.job
    deadline = job.deadline or time.monotonic()
    return await service_of(http).registry.ready(valid.model, operation or job.operation, deadline, job.sizes)


async def _model_of(service: Service, context: Context, request: Subject, name: str) -> ModelVersion:
    """Lease the requested model until the request is over, loading it within the time limit; the context notes it."""
    lease = service.lease(name, request.version, deadline_of(request, service.settings))
    model = await lease.acquire()
    context.keep_lease(lease)
    context.model, context.fallback_from = model.name, lease.fallback_from
    return model


async def solve(http: Request, job: Job) -> JobResult:
    """Submit a job and wait for its result, or for the client to disconnect; the body must have been read.

    Memory reserved for the request is kept until the engine has let go of the job.

    Raises:
        ProblemError: 422, 429, 503, 504 or 500, as the engine says.
        ClientGoneError: The client disconnected; the job is cancelled.
    """
    service, context = service_of(http), context_of(http.scope)
    try:
        future = submit(service.engine, job, context.hold)
    except ProblemError as problem:
        if problem.kind is Kind.OVERLOADED:
            note(service, http.scope, job)
        raise
    try:
        result = await _result(service.engine, job, future, http.receive)
    except REFUSALS as error:
        raise problem_of(error) from None
    await service.burst_limiter.enter()  # many jobs may finish in the same tick
    return result


def submit(engine: Engine, job: Job, hold: Hold | None) -> Future[JobResult]:
    """Submit a job, and keep the hold until it is done; the caller must cancel it if the client disconnects.

    Raises:
        ProblemError: 422, 429, 503 or 500, as the engine says.
    """
    try:
        future = engine.submit(job)
    except REFUSALS as error:
        raise problem_of(error) from None
    if hold is not None:
        hold.until(future)
    return future


async def _result(engine: Engine, job: Job, future: Future[JobResult], receive: Receive) -> JobResult:
    """Wait until the job is done, its time is up or the client disconnects, whichever comes first."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    gone: list[asyncio.Task[None]] = []

    def end(_: object = None) -> None:
        if not ended.done():
            ended.set_result(None)

    def watch() -> None:
        gone.append(asyncio.ensure_future(until_disconnect(receive)))
        gone[0].add_done_callback(end)
        if left_s is not None:
            timers.append(loop.call_later(max(0.0, left_s - WATCH_AFTER_S), end))

    future.add_done_callback(end)  # on this event loop: see `Engine.deliver_on`
    left_s, done, left = patience(job), False, False
    timers = [loop.call_later(WATCH_AFTER_S if left_s is None else min(WATCH_AFTER_S, left_s), watch)]
    try:
        await ended
    finally:
        done, left = future.done(), any(task.done() for task in gone)
        for each in (*timers, *gone):
            each.cancel()
        if not done:  # the client disconnected, it is too late, or this request is being cancelled
            engine.cancel(future)
    if not done:
        raise ClientGoneError if left else DeadlineExceeded
    if future.cancelled():  # by the engine: its CancelledError must not look like ours
        raise EngineFailed("the job was given up")
    return future.result()


def patience(job: Job) -> float | None:
    """Return the maximum seconds to wait for a job, whatever the engine does; None for no limit."""
    if job.deadline is None:
        return None
    return max(0.0, job.deadline + (LATE_S if job.partial else 0.0) - time.monotonic())


async def draw(http: Request, valid: Validated) -> ArrayResponse:
    """Solve for samples, count them and build the response, in a worker thread if it is large.

    Raises:
        ProblemError, ClientGoneError: as in `solve`.
    """
    result = await solve(http, valid.job)
    count(http, valid.job, result)
    chosen = None if valid.choice is None else valid.choice.document()
    context, environment = context_of(http.scope), service_of(http).environment
    arguments = (valid.model, valid.job, result, context, valid.decode, environment, chosen)
    if is_small(result) and not valid.job.log_prob:
        return sample_response(*arguments)
    return await asyncio.to_thread(sample_response, *arguments)


def is_small(result: JobResult) -> bool:
    """Whether a result becomes a response quickly enough to build it on the event loop."""
    saved = 0 if result.saved is None else result.saved.numel()
    return max(result.x.numel(), saved, len(result.trace)) <= NUMBERS_PER_PIECE


def count(http: Request, job: Job, result: JobResult) -> None:
    """Count a finished job in the metrics and in the timings of its request."""
    context, metrics = context_of(http.scope), service_of(http).metrics
    stages = {"prelude": result.prelude_s, "decoder": result.decoder_s}
    context.timings.update(queue=result.queue_s, solve=result.solve_s, network=result.network_s)
    context.timings.update({name: seconds for name, seconds in stages.items() if seconds is not None})
    metrics.solved(context.model, context.solver, result.nfe, result.queue_s, result.solve_s, result.network_s)
    metrics.ran_programs(context.model, result.prelude_s, result.decoder_s)
    if job.plan.adaptive:
        metrics.stepped(context.solver, result.trace.h, result.trace.accepted)


async def respond(http: Request, response: ArrayResponse, encoder: Encoder, headers: Mapping[str, str]) -> Response:
    """Write a small response at once; a large one in a worker thread, piece by piece as it is sent."""
    context, pieces = context_of(http.scope), encoder.encode(response)
    all_headers = {"X-Pathline-Status": str(response.document["status"]), **headers}
    if encoder.bare and (text := header_of(response.document)) is not None:
        all_headers["X-Pathline-Replay"] = text
    begun = time.perf_counter()
    if response.numbers > NUMBERS_PER_PIECE or encoder.slow:
        if encoder.headers is not None:
            first = await asyncio.to_thread(next, pieces)
            all_headers, pieces = all_headers | dict(encoder.headers(first)), chain((first,), pieces)
        return StreamingResponse(
            _stream_pieces(pieces, context, begun), media_type=encoder.media_type, headers=all_headers
        )
    parts = list(pieces)
    if encoder.headers is not None:
        all_headers |= encoder.headers(parts[0])
    context.timings["encode"] = time.perf_counter() - begun
    return Response(b"".join(parts), media_type=encoder.media_type, headers=all_headers)


async def _stream_pieces(pieces: Pieces, context: Context, begun: float) -> AsyncIterator[bytes | memoryview]:
    """Yield the pieces of a large response, each made in a worker thread once the previous one is sent."""
    sent = 0.0
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        context.timings["encode"] = time.perf_counter() - begun - sent
        given = time.perf_counter()
        yield piece
        sent += time.perf_counter() - given
