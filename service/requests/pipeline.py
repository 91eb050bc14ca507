"""The request pipeline: a body is read, parsed, validated and made into a `Job`; its result becomes a response.

    BodyRoute -> endpoint: make_job -> solve -> build_response -> respond

Every endpoint that solves declares its body, and supplies the validation of its fields and the function that builds the
response from the result.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeVar

from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from engine.job import SAMPLE, EngineFailed, Job, JobResult, TooLate
from service.errors import ClientGoneError, check_limit
from service.http.context import Context, context_of
from service.http.events import until_disconnect
from service.http.negotiation import choose
from service.registry.version import ModelVersion
from service.requests.npz_body import claimed_bytes, is_npz
from service.requests.parsing import LARGE_BODY, parse, read_body, set_aside
from service.requests.replays import asked_of, header_of
from service.requests.schemas import SampleRequest, Subject
from service.requests.validation import MAX_ALIKE, Validated, sample_request
from service.responses.arrays import ENCODERS, JSON, NPZ, NUMBERS_PER_PIECE, ArrayResponse, Encoder, Pieces
from service.responses.samples import sample_response
from service.settings import Settings
from service.state import Service
from service.written import WrittenResponse

LATE_S = 5.0
"""Extra seconds to wait for a partial result: the engine sees a deadline only after the current network call."""

WATCH_AFTER_S = 0.1
"""Seconds after which a client is watched for disconnecting: most jobs finish sooner, and a watcher is a task."""

R = TypeVar("R", bound=Subject)
V = TypeVar("V", bound=Validated)
Validate = Callable[[R, ModelVersion, Settings, Encoder, Context], V]


class BodyRoute(APIRoute):
    """A route that reads and parses the body that its endpoint declares, within the limits of the service.

    It is a plain ASGI application: the framework describes it, but is not between a request and its endpoint, which is
    called with the `Context` of the request, the parsed body and the names in its path.

    Attributes:
        media: content types of the body; empty is none.
        max_bytes: limit of the body; None for that of the settings.
        negotiates: whether a body is read only if the client accepts a format that the route declares for its response.
            The context notes the chosen one.
    """

    media: tuple[str, ...] = (JSON, NPZ)
    max_bytes: int | None = None
    negotiates = True

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        [declared] = self.dependant.body_params
        self._names = self.dependant.request_param_name or "", declared.name
        self.body_model: Any = declared.field_info.annotation
        self._offered = tuple(self.responses[200]["content"]) if self.negotiates else ()

    def parse(self, http: Context, body: bytes) -> Any:
        """Return the parsed body; errors as in `parsing.parse`."""
        return parse(self.body_model, body)

    def allowed(self, http: Context) -> Sequence[str]:
        """Return the content types that the body of a request may have."""
        return self.media

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # that the method is not allowed
            return
        http = context_of(scope)
        values: dict[str, Any] = {}
        if self.dependant.path_params:
            values, errors = request_params_to_args(self.dependant.path_params, scope["path_params"])
            if errors:
                raise RequestValidationError(errors)
        if self._offered:
            http.media_type = self._offered[0]
            if b"accept" in http.sent:
                http.media_type = choose(http.sent[b"accept"].decode("latin-1"), self._offered)
        name, declared = self._names
        values[name], values[declared] = http, await self._parsed(http)
        answer = await self.endpoint(**values)
        written = type(answer) is WrittenResponse or isinstance(answer, Response)
        await (answer if written else JSONResponse(answer))(scope, receive, send)

    async def _parsed(self, http: Context) -> Any:
        """Read and parse a body, a large one in a worker thread.

        Raises:
            ProblemError: 400, 413, 415, 422 or 429, depending on the body and the load.
            ClientGoneError: The client disconnected before the body was complete.
        """
        service: Service = http.service
        max_bytes = self.max_bytes or service.settings.max_body_bytes
        body = await read_body(http, max_bytes, service.bodies, self.allowed(http))
        size = len(body)
        if size <= MAX_ALIKE and self.body_model is SampleRequest and body[:1] == b"{":
            request = sample_request(http, body)
            http.parsed = time.monotonic()
            return request
        if is_npz(body):
            size += claimed_bytes(body, max_bytes)
            set_aside(http, size, service.bodies)
        http.large = size > LARGE_BODY
        if http.large:  # one at a time: parsed lists take many times the memory of their text, and responses need
            async with service.parsing:  # threads too
                request = await asyncio.to_thread(self.parse, http, body)
        else:
            request = self.parse(http, body)
        http.parsed = time.monotonic()
        return request


async def make_job(
    http: Context, request: R, validate: Validate[R, V], name: str = "", encoder: Encoder | None = None
) -> V:
    """Find the model of a request, and make its job.

    Args:
        http: the HTTP request.
        request: its parsed body.
        validate: makes the job; see `validation.validate_sample`.
        name: the model in the address, if the body does not name it. Such requests are about data or many solvers, so
            they are validated in a worker thread however small they are.
        encoder: the format of the response; None for the one that the client prefers.

    Raises:
        ProblemError: 400 to 504, depending on the fields, the model and the limits.
    """
    service: Service = http.service
    limit_s = request.timeout_s or service.settings.timeout_s
    check_limit("timeout_s", limit_s, service.settings.max_timeout_s)
    http.deadline = http.parsed + limit_s
    named = request.model if isinstance(request, SampleRequest) else name
    lease = await service.lease(named, request.version, http.deadline)
    http.keep_lease(lease.release)
    model = lease.model
    http.model, http.fallback_from = model.name, lease.fallback_from
    arguments = (request, model, service.settings, encoder or ENCODERS[http.media_type], http)
    valid = await asyncio.to_thread(validate, *arguments) if name or http.large else validate(*arguments)
    operation, sizes = valid.job.operation, valid.job.sizes
    if (sizes or operation is not SAMPLE) and not await service.registry.prepare(
        valid.model, operation, http.deadline, sizes
    ):
        valid = replace(valid, model=replace(valid.model, deterministic=False))  # its own arena is not
    http.drop_body()
    http.solver = valid.job.plan.name
    return valid


def abandon(http: Context, future: asyncio.Future[JobResult]) -> None:
    """Cancel a job if it is not done; its memory is kept until the engine has let go of it."""
    future.add_done_callback(lambda _: future.cancelled() or future.exception())  # nobody else looks at it
    if not future.done():
        http.service.engine.cancel(future)
        if http.hold is not None:
            http.hold.until(future)


async def solve(http: Context, job: Job) -> JobResult:
    """Submit a job and wait for its result, or for the client to disconnect; the body must have been read.

    Memory reserved for the request is kept until the engine has let go of the job. The exceptions of the engine pass
    through: the door answers them.

    Raises:
        ClientGoneError: The client disconnected; the job is cancelled.
    """
    loop, left_s = asyncio.get_running_loop(), patience(http, job)
    future = http.service.engine.submit(job, loop.create_future())
    ended: asyncio.Future[None] = loop.create_future()
    gone: asyncio.Task[None] | None = None

    def end(_: object = None) -> None:
        if not ended.done():
            ended.set_result(None)

    def watch() -> None:
        nonlocal gone, timer
        gone = loop.create_task(until_disconnect(http.receive))
        gone.add_done_callback(end)
        timer = loop.call_later(left_s - first_s, end)

    future.add_done_callback(end)
    first_s = WATCH_AFTER_S if left_s > WATCH_AFTER_S else left_s
    timer = loop.call_later(first_s, watch)
    try:
        await ended
    finally:
        timer.cancel()
        done, left = future.done(), gone is not None and gone.done()
        if gone is not None:
            gone.cancel()
        if not done:  # the client disconnected, it is too late, or this request is being cancelled
            abandon(http, future)
    if not done:
        raise ClientGoneError if left else TooLate
    if (turn := http.service.burst_limiter.place()) is not None:  # many jobs may finish in the same tick
        await turn
    return outcome_of(future)


def outcome_of(future: asyncio.Future[JobResult]) -> JobResult:
    """Return the result of a job that was waited for long enough.

    Raises:
        TooLate, EngineFailed: or another exception of the engine.
    """
    if not future.done():
        raise TooLate
    if future.cancelled():  # by the engine: its CancelledError must not look like ours
        raise EngineFailed("the job was given up")
    return future.result()


def patience(http: Context, job: Job) -> float:
    """Return the maximum seconds to wait for a job, whatever the engine does."""
    left_s = http.deadline + (LATE_S if job.partial else 0.0) - time.monotonic()
    return left_s if left_s > 0.0 else 0.0


async def build_response(http: Context, valid: Validated, result: JobResult) -> ArrayResponse:
    """Count samples and return their response, built in a worker thread if it is large."""
    count(http, valid.job, result)
    arguments = (http, valid.model, valid.job, result, valid.decode, valid.constant, valid.choice, asked_of)
    saved = 0 if result.saved is None else result.saved.numel()
    most = max(result.x.numel(), len(result.trace.sample), saved)
    if most <= NUMBERS_PER_PIECE and not valid.job.log_prob:
        return sample_response(*arguments)
    return await asyncio.to_thread(sample_response, *arguments)


def count(http: Context, job: Job, result: JobResult) -> None:
    """Count a finished job in the metrics and in the timings of its request."""
    metrics, timings = http.service.metrics, http.timings
    timings["queue"], timings["solve"], timings["network"] = result.queue_s, result.solve_s, result.network_s
    if result.prelude_s is not None:
        timings["prelude"] = result.prelude_s
    if result.decoder_s is not None:
        timings["decoder"] = result.decoder_s
    metrics.solved(http.model, http.solver, result)
    if job.plan.adaptive:
        metrics.stepped(http.solver, result.trace.h, result.trace.accepted)


async def respond(
    http: Context, valid: Validated, response: ArrayResponse, headers: Mapping[str, str] = MappingProxyType({})
) -> Response:
    """Write a small response at once; a large one in a worker thread, piece by piece as it is sent."""
    encoder = valid.encoder
    pieces = encoder.encode(response)
    all_headers = {"x-pathline-status": response.document["status"], **headers}
    if http.media_type:
        all_headers["vary"] = "Accept"
    if encoder.bare and (text := header_of(response.document)) is not None:
        all_headers["x-pathline-replay"] = text
    begun = time.perf_counter()
    if response.numbers > NUMBERS_PER_PIECE or encoder.slow:
        if encoder.headers is not None:
            first = await asyncio.to_thread(next, pieces)
            all_headers, pieces = all_headers | dict(encoder.headers(first)), chain((first,), pieces)
        return StreamingResponse(_timed(pieces, http, begun), media_type=encoder.media_type, headers=all_headers)
    parts = list(pieces)
    if encoder.headers is not None:
        all_headers |= encoder.headers(parts[0])
    http.timings["encode"] = time.perf_counter() - begun
    return WrittenResponse(b"".join(parts), encoder.media_type, all_headers)


async def _timed(pieces: Pieces, http: Context, begun: float) -> AsyncIterator[bytes | memoryview]:
    """Yield the pieces of a large response, and note how long making them takes."""
    sent = 0.0
    async for piece in one_by_one(pieces):
        http.timings["encode"] = time.perf_counter() - begun - sent
        paused = time.perf_counter()
        yield piece
        sent += time.perf_counter() - paused


async def one_by_one(pieces: Pieces) -> AsyncIterator[bytes | memoryview]:
    """Yield pieces, each made in a worker thread once the previous one is sent."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
