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
from typing import Annotated, Any

import orjson
import torch
from fastapi import Response

from engine.job import JobProgress, JobResult
from service import examples
from service.errors import REFUSALS
from service.http.context import Context
from service.http.events import KEEP_ALIVE, MEDIA_TYPE, EventStream, event, failed
from service.openapi import SAMPLING, SOLVING_PROBLEMS, Responses, Router, requested, shown
from service.requests import pipeline
from service.requests.schemas import SampleRequest
from service.requests.validation import Validated, validate_sample
from service.responses.arrays import ENCODERS, JSON, NPZ, NUMBERS_PER_PIECE, ArrayResponse, array_json
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


@router.post(
    "/v1/sample/stream", summary="Draw samples and follow their progress", response_class=Response, responses=_RESPONSES
)
async def stream(
    http: Context, request: Annotated[SampleRequest, requested({_EXAMPLE: examples.REQUESTS[_EXAMPLE]})]
) -> Response:
    """Draw samples like `/v1/sample`, and send events on the way: progress, states at `save_at`, the result."""
    npz = b"completed=npz" in http.sent.get(b"accept", b"").replace(b" ", b"").lower()
    valid = await pipeline.make_job(http, request, validate_sample, encoder=_EVENTS)
    followed = _Followed(http, valid, npz)
    return EventStream(followed.events(), followed.cancel, followed.keep_alive)


class _Followed:
    """A job under way, and its events. Only its newest progress is kept, so a slow reader costs no memory."""

    def __init__(self, http: Context, valid: Validated, npz: bool) -> None:
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        self._newest: JobProgress | None = None
        self._http, self._valid, self._npz = http, valid, npz
        self._decoder = decoder_of(valid.model, valid.decode)
        self._job, self._sent_states = valid.job, 0
        # bytes for optional events: progress and comments
        self._room = http.service.settings.max_answer_bytes - valid.max_bytes
        # Only the engine has the job that reports here: kept here, too, it would be a cycle that the result hangs on.
        job = replace(valid.job, on_progress=self._put, progress_s=PROGRESS_S)
        self._future = http.service.engine.submit(job, self._loop.create_future())
        self._future.add_done_callback(lambda _: self._news.set())

    def _put(self, progress: JobProgress) -> None:
        """Replace the newest progress, in the engine's thread."""
        self._newest = progress
        with contextlib.suppress(RuntimeError):  # the loop has been closed: no reader is left
            self._loop.call_soon_threadsafe(self._news.set)

    def cancel(self) -> None:
        """Cancel the job if it still waits or runs."""
        pipeline.abandon(self._http, self._future)

    def keep_alive(self) -> Iterator[bytes]:
        """Yield a comment if there is room for it."""
        return self._fitting(KEEP_ALIVE)

    async def events(self) -> AsyncGenerator[bytes | memoryview]:
        """Yield the events in parts; the last is completed or error."""
        yield event("start", self._start())
        while not self._future.done() and (left_s := pipeline.patience(self._http, self._job)) != 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            self._news.clear()
            progress, self._newest = self._newest, None
            if progress is not None:
                if not self._job.decode:  # else states are decoded at the end, in turn with the networks
                    async for part in self._states(progress.saved, progress.complete):
                        yield part
                for part in self._fitting(event("progress", self._progress(progress))):
                    yield part
        try:
            result = pipeline.outcome_of(self._future)
        except REFUSALS as error:
            yield failed(self._http, error)
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
        model, job, choice = self._valid.model, self._job, self._valid.choice
        return {
            "request_id": self._http.request_id,
            **origin(model, self._http),
            "seed": job.seed,
            "first_index": job.first_index,
            "num_samples": job.num_samples,
            "deterministic": model.deterministic,
            "solver": job.plan.settings,
            **({} if choice is None else {"budget": choice.document()}),
            "nfe_bound": job.plan.nfe_bound,
        }

    def _progress(self, progress: JobProgress) -> dict[str, Any]:
        members = ("nfe", "t", "share", "done", "queued")
        return {name: getattr(progress, name) for name in members} | {"elapsed_s": self._http.elapsed()}

    async def _states(self, saved: torch.Tensor | None, complete: int) -> AsyncIterator[bytes | memoryview]:
        """Yield the states at save times that every sample has passed and that have not been sent yet."""
        while saved is not None and self._job.save_at is not None and self._sent_states < complete:
            place = self._sent_states
            self._sent_states += 1
            pieces = self._encoded(place, float(self._job.save_at[place]), saved[:, place : place + 1])
            if saved[:, place].numel() <= NUMBERS_PER_PIECE:
                yield b"".join(pieces)
                continue
            async for piece in pipeline.one_by_one(pieces):
                yield piece

    def _encoded(self, place: int, t: float, states: torch.Tensor) -> Iterator[bytes]:
        yield b"event: sample\ndata: " + orjson.dumps({"t": t, "index": place})[:-1] + b',"states":'
        yield from map(bytes, array_json(saved_to_data(states, self._decoder)[:, 0], axes=1))
        yield b"}\n\n"

    async def _completed(self, result: JobResult) -> AsyncIterator[bytes | memoryview]:
        least = float(result.t.min() if self._job.plan.t_span[0] < self._job.plan.t_span[1] else result.t.max())
        done = int((result.status == "success").sum())
        share = done / len(result.t)
        response = await pipeline.build_response(self._http, self._valid, result)
        yield event("progress", self._progress(JobProgress(int(result.nfe.max()), least, share, done)))
        if self._npz:
            yield await asyncio.to_thread(_completed_npz, response)
            return
        yield b"event: completed\ndata: "
        pieces = _JSON.encode(response)
        if response.numbers <= NUMBERS_PER_PIECE:
            yield b"".join(pieces)
        else:
            async for piece in pipeline.one_by_one(pieces):
                yield piece
        yield b"\n\n"


def _completed_npz(response: ArrayResponse) -> bytes:
    return b'event: completed\ndata: {"npz":"' + b64encode(b"".join(_NPZ.encode(response))) + b'"}\n\n'
