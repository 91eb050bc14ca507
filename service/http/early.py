"""An answer to a request whose body is still on its way."""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_IDLE_S = 2.0
_MOST_BYTES = 1 << 28  # of a body that are taken in only so that its sender sees why it is refused


class EarlyResponse(Response):
    """Sends the whole answer at once, then reads and drops what still comes, and only then closes.

    A connection that is closed while data arrives is reset, and the sender may lose the answer with it. It ends when
    the body does, after 2 s in which nothing came, or after 256 MiB; the server's time for a request bounds it too.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then drain."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        if not any(name == b"expect" for name, _ in scope["headers"]):  # who waits for a "continue" sends nothing
            await _drain(receive)
        await send({"type": "http.response.body", "body": b""})


async def _drain(receive: Receive) -> None:
    size, more = 0, True
    try:
        while more and size < _MOST_BYTES:
            async with asyncio.timeout(_IDLE_S):
                message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)  # a disconnect has none
    except TimeoutError:
        return
