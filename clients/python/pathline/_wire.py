"""What a server may send in answer to one request, as it comes from the socket.

httpcore gives each read its own time, skips interim responses (1xx) without end, and reads on in a chunk of any size.
A connection of this module ends an answer that takes too long as a whole, and one that claims too much.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import httpcore
import httpx

from pathline.errors import ProtocolError

MAX_BYTES = 1 << 30
"""Most bytes of a response, as sent and as unpacked: a server is not trusted with this process's memory."""

_LEAST_RATE = 1 << 16  # bytes a second, past a response's time limit

T = TypeVar("T", httpx.HTTPTransport, httpx.AsyncHTTPTransport)


class Arrival:
    """The answer to one request, followed as far as to know its time and what its framing claims (RFC 9112).

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A request is being sent; its answer may take the time of one read, and once more after its head."""
        self._since, self._bytes = self._clock(), 0
        self._line, self._skip = b"", 0
        self._lines: Generator[None, bytes, None] | None = self._follow()
        next(self._lines)

    def left(self, seconds: float | None) -> float | None:
        """Return the seconds that the next read may take: longer than the limit, if at least 64 KiB arrive a second.

        Raises:
            httpcore.ReadTimeout: There are none.
        """
        if seconds is None:
            return None
        left = seconds + self._bytes / _LEAST_RATE - (self._clock() - self._since)
        if left <= 0:
            raise httpcore.ReadTimeout("it arrives too slowly")
        return min(seconds, left)

    def add(self, data: bytes) -> bytes:
        """Follow bytes that arrived, and return them.

        Raises:
            ProtocolError: The answer claims to be too long.
        """
        self._bytes, place = self._bytes + len(data), 0
        while place < len(data) and self._lines is not None:
            if self._skip:
                step = min(self._skip, len(data) - place)
                self._skip, place = self._skip - step, place + step
                continue
            end = data.find(b"\n", place) + 1 or len(data)
            self._line, place = self._line + data[place:end], end
            if self._line.endswith(b"\n"):
                line, self._line = self._line.strip(), b""
                try:
                    self._lines.send(line)
                except StopIteration:
                    self._lines = None
        return data

    def _follow(self) -> Generator[None, bytes, None]:
        """Receive the lines of an answer's head and of its chunks, whose bytes are skipped."""
        interim, chunked = True, False
        while interim:
            while not (status := (yield)):
                pass
            interim, chunked = status[9:10] == b"1", False
            while header := (yield):
                name, _, value = header.lower().partition(b":")
                if name == b"content-length":
                    self._claim(value, 10)
                elif name == b"transfer-encoding":
                    chunked = b"chunked" in value
        self._since, self._bytes = self._clock(), 0
        while chunked and (size := self._claim((yield).partition(b";")[0], 16)):
            self._skip = size + 2

    def _claim(self, text: bytes, base: int) -> int:
        try:
            size = int(text, base)
        except ValueError:  # which httpcore refuses
            return 0
        if size > MAX_BYTES:
            raise ProtocolError(
                f"the server claims to send {size:,} bytes, and at most {MAX_BYTES:,} are accepted; ask for fewer "
                "samples at a time, with iter_samples or bulk"
            )
        return size


class _Watched:
    """A connection; what is not read or written is that of httpcore."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._arrival = inner, Arrival()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Stream(_Watched):
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._arrival.add(self._inner.read(max_bytes, self._arrival.left(timeout)))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._arrival.begin()
        self._inner.write(buffer, timeout)

    def start_tls(self, *args: Any, **kwargs: Any) -> _Stream:
        return _Stream(self._inner.start_tls(*args, **kwargs))


class _AsyncStream(_Watched):
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._arrival.add(await self._inner.read(max_bytes, self._arrival.left(timeout)))

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._arrival.begin()
        await self._inner.write(buffer, timeout)

    async def start_tls(self, *args: Any, **kwargs: Any) -> _AsyncStream:
        return _AsyncStream(await self._inner.start_tls(*args, **kwargs))


def watched(transport: T) -> T:
    """Return a transport whose connections follow what arrives. httpx has no option for it, so its pool is told."""
    pool: Any = transport._pool
    connect = pool._network_backend.connect_tcp

    def connected(*args: Any, **kwargs: Any) -> _Stream:
        return _Stream(connect(*args, **kwargs))

    async def connected_async(*args: Any, **kwargs: Any) -> _AsyncStream:
        return _AsyncStream(await connect(*args, **kwargs))

    is_async = isinstance(transport, httpx.AsyncHTTPTransport)
    pool._network_backend.connect_tcp = connected_async if is_async else connected
    return transport
