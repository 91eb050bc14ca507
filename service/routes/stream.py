"""``POST /v1/sample/stream``: the progress and result of a request as server-sent events.

    start, then progress and, for each time of `save_at`, sample; last completed or error

A client that reads slowly gets fewer progress events, and so does one with a response close to the size limit; states
and the result are sent in full. When the client disconnects, its job is cancelled, queued or running.
sse-starlette is not used: it takes events as whole strings, but a result of many megabytes is written here in pieces.

``Accept: text/event-stream; completed=npz`` asks for the result as npz: ``{"npz": "<base64>"}`` in place of the JSON.
"""

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import orjson
import torch
from fastapi import Response

from engine.job import JobProgress, JobResult
from service import examples
from service.errors import REFUSALS, problem_of
from service.http.context import Context
from service.http.events import KEEP_ALIVE, MEDIA_TYPE, EventStream, event, failed
from service.openapi import SAMPLING, SOLVING_PROBLEMS, Responses, Router, requested, shown
from service.requests import pipeline
from service.requests.schemas import SampleRequest
from service.requests.validation import Validated, validate_sample
from service.responses.arrays import ENCODERS, JSON, NPZ, NUMBERS_PER_PIECE, ArrayResponse, Pieces, array_json
from service.responses.samples import decoder_of, saved_to_data
from service.responses.solved import origin

router = Router(tags=[SAMPLING], route_class=pipeline.BodyRoute)

PROGRESS_S = 0.05
"""Minimum seconds between two progress events."""

_EXAMPLE = "adaptive"
_RESPONSES: Responses = {
    **SOLVING_PROBLEMS,
    200: {
        "description": "Server-sent events: start, then progress and sample, finally completed or error",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}} | shown({_EXAMPLE: examples.STREAM})},
    },
}
_JSON, _NPZ = ENCODERS[JSON], ENCODERS[NPZ]
_EVENTS = replace(_JSON, media_type=MEDIA_TYPE, followed=True)


class Feed:
    """The newest progress of a job, from the engine's thread to one coroutine: a slow reader costs no memory.

    Created in the event loop in which it is read.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._newest: JobProgress | None = None
        self._notified = False

    def put(self, progress: JobProgress) -> None:
        """Put newer progress, from any thread; older progress that was not read is dropped."""
        self._newest = progress
        self._notify()

    def watch(self, future: asyncio.Future[JobResult]) -> None:
        """Wake the reader when the future is done."""
        future.add_done_callback(lambda _: self._notify())

    def _notify(self) -> None:
        if not self._notified:
            self._notified = True
            with contextlib.suppress(RuntimeError):  # the loop has been closed: no reader is left
                self._loop.call_soon_threadsafe(self._news.set)

    async def wait(self, seconds: float | None) -> bool:
        """Wait for news, at most for this time; return False if none came."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> JobProgress | None:
        """Return the newest progress, once; None if there is none since the last call."""
        self._news.clear()
        self._notified = False
        newest, self._newest = self._newest, None
        return newest


@router.post(
    "/v1/sample/stream",
    summary="Draw samples and follow their progress",
    response_class=Response,
    responses=_RESPONSES,
)
async def stream(
    http: Context, request: Annotated[SampleRequest, requested({_EXAMPLE: examples.REQUESTS[_EXAMPLE]})]
) -> Response:
    """Draw samples like `/v1/sample`, and send events on the way: progress, states at `save_at`, the result."""
    npz = b"completed=npz" in http.sent.get(b"accept", b"").replace(b" ", b"").lower()
    valid = await pipeline.make_job(http, request, partial(validate_sample, kind=http.alike), _EVENTS)
    feed = Feed()
    future = pipeline.submit(
        http, replace(valid.job, on_progress=feed.put, progress_s=PROGRESS_S), asyncio.get_running_loop()
    )
    feed.watch(future)
    followed = _Followed(http, valid, future, feed, npz)
    return EventStream(followed.events(), followed.cancel, followed.keep_alive)


class _Followed:
    """The events of one job."""

    def __init__(
        self, http: Context, valid: Validated, future: asyncio.Future[JobResult], feed: Feed, npz: bool
    ) -> None:
        self._http, self.future, self._valid = http, future, valid
        self._model, self._job, self._feed = valid.model, valid.job, feed
        self._choice = None if valid.choice is None else valid.choice.document()
        self._decoder = decoder_of(valid.model, valid.decode)
        self._waits = valid.job.decode  # states are decoded at the end, in turn with the networks
        self._npz, self._sent_states = npz, 0
        # bytes for optional events: progress and comments
        self._room = http.service.settings.max_answer_bytes - valid.max_bytes

    def cancel(self) -> None:
        """Cancel the job if it still waits or runs."""
        pipeline.abandon(self._http, self.future)

    def keep_alive(self) -> Iterator[bytes]:
        """Yield a comment if there is room for it."""
        return self._fitting(KEEP_ALIVE)

    async def events(self) -> AsyncGenerator[bytes | memoryview]:
        """Yield the events in parts; the last is completed or error."""
        yield event("start", self._start())
        while not self.future.done():
            left = pipeline.patience(self._job)
            if left == 0:
                break
            if not await self._feed.wait(left):
                continue
            progress = self._feed.take()
            if progress is not None:
                if not self._waits:
                    async for part in self._states(progress.saved, progress.complete):
                        yield part
                for part in self._fitting(event("progress", self._progress(progress))):
                    yield part
        try:
            result = pipeline.outcome_of(self.future)
        except REFUSALS as error:
            yield failed(self._http, problem_of(error))
            return
        saved = result.saved if result.saved_data is None else result.saved_data
        async for part in self._states(saved, 0 if self._job.save_at is None else len(self._job.save_at)):
            yield part
        async for part in self._completed(result):
            yield part

    def _fitting(self, event: bytes) -> Iterator[bytes]:
        """Yield an optional event if the size limit of the response leaves room for it."""
        if len(event) <= self._room:
            self._room -= len(event)
            yield event

    def _start(self) -> dict[str, Any]:
        model, job = self._model, self._job
        return {
            "request_id": self._http.request_id,
            **origin(model, self._http),
            "seed": job.seed,
            "first_index": job.first_index,
            "num_samples": job.num_samples,
            "deterministic": model.deterministic,
            "solver": job.plan.settings,
            **({} if self._choice is None else {"budget": self._choice}),
            "nfe_bound": job.plan.nfe_bound,
        }

    def _progress(self, progress: JobProgress) -> dict[str, Any]:
        return {
            "nfe": progress.nfe,
            "t": progress.t,
            "share": progress.share,
            "done": progress.done,
            "queued": progress.queued,
            "elapsed_s": self._http.elapsed(),
        }

    async def _states(self, saved: torch.Tensor | None, complete: int) -> AsyncIterator[bytes]:
        """Yield the states at save times that every sample has passed and that have not been sent yet."""
        while saved is not None and self._job.save_at is not None and self._sent_states < complete:
            place = self._sent_states
            self._sent_states += 1
            head = orjson.dumps({"t": float(self._job.save_at[place]), "index": place})[:-1]
            states = saved[:, place : place + 1]
            pieces = self._encoded(head, states)
            if states.numel() <= NUMBERS_PER_PIECE:
                yield b"".join(pieces)
                continue
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield piece

    def _encoded(self, head: bytes, states: torch.Tensor) -> Iterator[bytes]:
        yield b"event: sample\ndata: " + head + b',"states":'
        yield from map(bytes, array_json(saved_to_data(states, self._decoder)[:, 0], axes=1))
        yield b"}\n\n"

    async def _completed(self, result: JobResult) -> AsyncIterator[bytes | memoryview]:
        pipeline.count(self._http, self._job, result)
        least = float(result.t.min() if self._job.plan.t_span[0] < self._job.plan.t_span[1] else result.t.max())
        done = int((result.status == "success").sum())
        share = done / len(result.t)
        yield event("progress", self._progress(JobProgress(int(result.nfe.max()), least, share, done)))
        arguments = (self._http, self._valid, result)
        if self._npz:
            yield await asyncio.to_thread(lambda: _completed_npz(pipeline.response_of(*arguments)))
            return
        if pipeline.is_small(result) and not self._job.log_prob:
            yield b"event: completed\ndata: " + b"".join(_JSON.encode(pipeline.response_of(*arguments))) + b"\n\n"
            return
        pieces: Pieces = _JSON.encode(await asyncio.to_thread(pipeline.response_of, *arguments))
        yield b"event: completed\ndata: "
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece
        yield b"\n\n"


def _completed_npz(response: ArrayResponse) -> bytes:
    return b'event: completed\ndata: {"npz":"' + b64encode(b"".join(_NPZ.encode(response))) + b'"}\n\n'
