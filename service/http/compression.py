"""Responses in gzip for clients that accept it: all kinds of text, from a size on at which it saves time."""

import asyncio
import zlib
from collections.abc import Iterable
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

LEAST_BYTES = 4096
"""Smaller responses are sent as they are: compressing one takes longer than sending it."""

_LEVEL = 1  # numbers as text hardly get smaller at higher levels
_LARGE = 1 << 16  # pieces from this size on are compressed in a worker thread
_TYPES = (b"application/json", b"text/plain", b"text/html", b"text/css", b"text/javascript", b"image/svg+xml")
_GZIP_FORMAT = 16 + zlib.MAX_WBITS


def is_text(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a response is of a type to compress and is not compressed yet."""
    text = False
    for name, value in headers:
        if name == b"content-type":
            text = value in _TYPES or value.partition(b";")[0] in _TYPES
        elif name == b"content-encoding":
            return False
    return text


def with_vary(headers: list[tuple[bytes, bytes]]) -> None:
    """Note in the headers of a response that it depends on ``Accept-Encoding``."""
    for place, (name, value) in enumerate(headers):
        if name == b"vary":
            headers[place] = (name, value + b", Accept-Encoding")
            return
    headers.append((b"vary", b"Accept-Encoding"))


class Compressor:
    """Compresses a response piece by piece if it is text; other formats are sent as they are."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None  # held back until the first piece shows the size
        self._packer: Any = None  # none: pieces are sent as they are

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            if is_text(message["headers"]):
                self._start = message
                return
        elif self._start is not None:
            message = await self._begin(self._start, message)
        elif self._packer is not None:
            message = await self._packed(message)
        await self._send(message)

    async def _begin(self, start: Message, message: Message) -> Message:
        """Send the head, and return the first piece."""
        self._start = None
        whole = not message.get("more_body", False)
        if not whole or len(message.get("body", b"")) >= LEAST_BYTES:
            self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
            message = await self._packed(message)
            start["headers"] = raw = [*start["headers"]]
            with_vary(raw)
            headers = MutableHeaders(raw=raw)
            headers["Content-Encoding"] = "gzip"
            if whole:
                headers["Content-Length"] = str(len(message["body"]))
            else:
                del headers["Content-Length"]
        await self._send(start)
        return message

    async def _packed(self, message: Message) -> Message:
        body, more = message.get("body", b""), message.get("more_body", False)

        def pack() -> bytes:
            return self._packer.compress(body) + (b"" if more else self._packer.flush())

        packed = await asyncio.to_thread(pack) if len(body) >= _LARGE else pack()
        return {"type": "http.response.body", "body": packed, "more_body": more}
