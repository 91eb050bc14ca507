"""``POST /v1/sample/stream``: a request followed on its way, as server-sent events.

    start, then progress and, for each time of `save_at`, sample; last completed or error

A client that reads slowly gets fewer progress events, and so does one whose answer comes close to the size limit;
states and the result are sent whole. When the client disconnects, its job is cancelled, waiting or running.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import orjson
import torch
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from service.engine.job import DeadlineExceeded, Job, JobResult, Progress
from service.feed import Feed
from service.http.context import Context, context_of
from service.http.middleware import CLIENT_GONE
from service.http.negotiation import choose
from service.openapi import STREAM_OPERATION
from service.registry.served import Served
from service.requests.schemas import SampleRequest
from service.requests.sizes import predict_bytes
from service.responses.answers import saved_to_data
from service.responses.encoders import ENCODERS, NUMBERS_A_PIECE, Pieces, states_json
from service.routes.sample import answer_of, count, is_small, understand
from service.solving import REFUSALS, look_at, patience, problem_of, submit, until_disconnect
from service.state import Service, service_of

router = APIRouter()

MEDIA_TYPE = "text/event-stream"
KEEP_ALIVE_S = 10.0
"""A comment is sent after so long without an event, so that nothing on the way takes the connection for dead."""

_KEEP_ALIVE = b": keep-alive\n\n"

PROGRESS_S = 0.05
"""Least time between two progress events."""

_JSON = ENCODERS["application/json"]
_EVENTS = replace(_JSON, media_type=MEDIA_TYPE, followed=True)


@router.post("/v1/sample/stream", **STREAM_OPERATION)
async def stream(request: Request) -> Response:
    """Draw samples like `/v1/sample`, and tell how far they are: progress, states at `save_at`, the result."""
    choose(request.headers.get("accept"), [MEDIA_TYPE])
    service, context = service_of(request), context_of(request.scope)
    wish, model, job = await understand(request, _EVENTS)
    feed = Feed()
    job = replace(job, on_progress=feed.put, progress_s=PROGRESS_S)
    future = submit(service.engine, job, context.hold)
    feed.watch(future)
    room = service.settings.max_answer_bytes - predict_bytes(wish, model, job.solve, _EVENTS)
    return _Events(_Followed(service, context, wish, model, job, future, feed, room))


class _Events(Response):
    """Sends events until they end or the client leaves; then the job is given up."""

    media_type = MEDIA_TYPE

    def __init__(self, followed: "_Followed") -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._followed = followed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        followed = self._followed
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(until_disconnect(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sent = sending.done()
            if not sent:  # the client left, or this request is being cancelled
                sending.cancel()
                followed.context.outcome = CLIENT_GONE
            if not followed.future.done():
                followed.service.engine.cancel(followed.future)
            followed.future.add_done_callback(look_at)
        if sent:
            sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._followed.events():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class _Followed:
    """One job and what is told of it."""

    def __init__(
        self,
        service: Service,
        context: Context,
        wish: SampleRequest,
        model: Served,
        job: Job,
        future: Future[JobResult],
        feed: Feed,
        room: int,
    ) -> None:
        self.service, self.context, self.future = service, context, future
        self._wish, self._model, self._job, self._feed = wish, model, job, feed
        self._told_states = 0
        self._room = room  # bytes for what can be left out: progress, and that the connection lives

    async def events(self) -> AsyncIterator[bytes | memoryview]:
        yield _event("start", self._start())
        while not self.future.done():
            left = patience(self._job)
            if left == 0:
                break
            if not await self._feed.wait(KEEP_ALIVE_S if left is None else min(left, KEEP_ALIVE_S)):
                for part in self._fitting(_KEEP_ALIVE):
                    yield part
                continue
            progress = self._feed.take()
            if progress is not None:
                async for part in self._states(progress.saved, progress.complete):
                    yield part
                for part in self._fitting(_event("progress", self._progress(progress))):
                    yield part
        try:
            if not self.future.done():
                raise DeadlineExceeded
            result = self.future.result()
        except REFUSALS as error:
            problem = problem_of(error)
            self.context.outcome = str(problem.kind.value.status)
            yield _event("error", problem.body(self.context.request_id))
            return
        async for part in self._states(result.saved, len(self._wish.save_at or ())):
            yield part
        async for part in self._completed(result):
            yield part

    def _fitting(self, event: bytes) -> Iterator[bytes]:
        """Yield an event that can be left out if the limit of the answer leaves room for it."""
        if len(event) <= self._room:
            self._room -= len(event)
            yield event

    def _start(self) -> dict[str, Any]:
        model, job = self._model, self._job
        return {
            "request_id": self.context.request_id,
            "model": model.name,
            "version": model.version,
            "checkpoint": model.digest,
            **self.context.fallback(),
            "seed": job.seed,
            "first_index": job.first_index,
            "num_samples": job.num_samples,
            "deterministic": model.deterministic,
            "solver": job.solve.settings,
            "nfe_bound": job.solve.nfe_bound,
        }

    def _progress(self, progress: Progress) -> dict[str, Any]:
        return {
            "nfe": progress.nfe,
            "t": progress.t,
            "share": progress.share,
            "done": progress.done,
            "queued": progress.queued,
            "elapsed_s": self.context.elapsed(),
        }

    async def _states(self, saved: torch.Tensor | None, complete: int) -> AsyncIterator[bytes]:
        """Tell the states at save times that every sample has passed and that were not told yet."""
        while saved is not None and self._job.save_at is not None and self._told_states < complete:
            place = self._told_states
            self._told_states += 1
            head = orjson.dumps({"t": float(self._job.save_at[place]), "index": place})[:-1]
            states = saved[:, place : place + 1]
            pieces = self._encoded(head, states)
            if states.numel() <= NUMBERS_A_PIECE:
                yield b"".join(pieces)
                continue
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece

    def _encoded(self, head: bytes, states: torch.Tensor) -> Iterator[bytes]:
        yield b"event: sample\ndata: " + head + b',"states":'
        yield from map(
            bytes,
            states_json(
                saved_to_data(states, self._model.decode if self._wish.decode and not self._model.plain else None)[:, 0]
            ),
        )
        yield b"}\n\n"

    async def _completed(self, result: JobResult) -> AsyncIterator[bytes | memoryview]:
        count(self.service, self.context, self._job, result)
        least = float(result.t.min() if self._job.solve.t_span[0] < self._job.solve.t_span[1] else result.t.max())
        done = int((result.status == "success").sum())
        share = done / len(result.t)
        yield _event("progress", self._progress(Progress(int(result.nfe.max()), least, share, done)))
        arguments = (self._wish, self._model, self._job, result, self.context)
        if is_small(result):
            yield b"event: completed\ndata: " + b"".join(_JSON.encode(answer_of(*arguments))) + b"\n\n"
            return
        pieces: Pieces = _JSON.encode(await asyncio.to_thread(answer_of, *arguments))
        yield b"event: completed\ndata: "
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece
        yield b"\n\n"


def _event(name: str, content: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY))
