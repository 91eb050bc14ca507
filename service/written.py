"""Responses with exactly the headers that they are given; one may be sent before the request's body has arrived."""

import asyncio
from collections.abc import Mapping
from functools import lru_cache

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_IDLE_S = 2.0
_MAX_DRAINED = 1 << 28  # bytes of a refused body to read, so that its sender gets to see the response


@lru_cache(maxsize=64)
def _raw(text: str) -> bytes:
    return text.lower().encode("latin-1")


class WrittenResponse(Response):
    """A whole response with these headers and no others, made with fewer calls than the framework's."""

    def __init__(self, content: bytes, media_type: str, headers: Mapping[str, str], status: int = 200) -> None:
        self.body, self.media_type, self.status_code, self.background = content, media_type, status, None
        self.raw_headers = [(_raw(name), value.encode("latin-1")) for name, value in headers.items()]
        self.raw_headers += [(b"content-length", b"%d" % len(content)), (b"content-type", _raw(media_type))]


class EarlyResponse(WrittenResponse):
    """A response to a request with a body still arriving: sends it, then reads and drops the rest of the body.

    A connection that is closed while data arrives is reset, and the sender may lose the response with it. Reading stops
    at the end of the body, after 2 s of silence, or after 256 MiB; the server's time limit for a request applies, too.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, then drain the body."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        if not any(name == b"expect" for name, _ in scope["headers"]):  # a client that awaits "continue" sends nothing
            await _drain(receive)
        await send({"type": "http.response.body", "body": b""})


async def _drain(receive: Receive) -> None:
    size, more = 0, True
    try:
        while more and size < _MAX_DRAINED:
            async with asyncio.timeout(_IDLE_S):
                message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)  # a disconnect has none
    except TimeoutError:
        return
