"""Server-sent events: one event as bytes, and the response that sends them until they end or the client disconnects."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import problem_of
from service.http.context import Context, context_of
from service.metrics import CLIENT_GONE

MEDIA_TYPE = "text/event-stream"

KEEP_ALIVE_S = 10.0
"""Seconds without an event after which a comment is sent, so that no proxy takes the connection for dead."""

KEEP_ALIVE = b": keep-alive\n\n"


def event(name: str, document: dict[str, Any]) -> bytes:
    """Return one event; arrays of the document become lists."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY))


def failed(http: Context, error: Exception) -> bytes:
    """Return the event of a problem or a refusal of the engine, and note it as the outcome of the request."""
    problem = problem_of(error)
    http.problem, http.outcome = problem.kind, str(problem.kind.status)
    return event("error", problem.body(http.request_id, http.url_path))


async def until_disconnect(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except OSError:
        return


class EventStream(Response):
    """Sends events until they end or the client disconnects.

    Args:
        events: the events, whole or in parts.
        cancel: called at the end, and when the client disconnects: ends what still runs for them.
        keep_alive: returns what to send after `KEEP_ALIVE_S` without an event.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        events: AsyncGenerator[bytes | memoryview],
        cancel: Callable[[], None],
        keep_alive: Callable[[], Iterable[bytes]] = lambda: (KEEP_ALIVE,),
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._cancel, self._keep_alive = events, cancel, keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, as an ASGI application."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(until_disconnect(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sent = sending.done()
            if not sent:  # the client disconnected, or this request is being cancelled
                sending.cancel()
                context_of(scope).outcome = CLIENT_GONE
            self._cancel()
            if not sent:
                with contextlib.suppress(asyncio.CancelledError):
                    await sending
        if sent:
            sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        upcoming: asyncio.Future[bytes | memoryview] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(self._events, b""))
                await asyncio.wait((upcoming,), timeout=KEEP_ALIVE_S)
                if not upcoming.done():
                    for part in self._keep_alive():
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                    continue
                part, upcoming = upcoming.result(), None
                await send({"type": "http.response.body", "body": part, "more_body": bool(part)})
                if not part:
                    return
        finally:
            if upcoming is not None:
                upcoming.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await upcoming
            await self._events.aclose()
