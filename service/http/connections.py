"""HTTP connections: what a slow, rude or greedy client may do, decided in front of uvicorn's protocol.

uvicorn waits for headers, body and reader without limit, parses ahead whatever arrives, reads a body that follows
`Connection: Upgrade` as another request, and reports errors in plain text. A `Connection` stands between the transport
and uvicorn's protocol, which it uses as an `asyncio.Protocol` and nothing more. It hands over one request at a time: a
checked head without Upgrade headers (an upgrade that is not taken changes nothing, RFC 9110, section 7.8), then a body
without chunk extensions and trailers. Every refusal is a problem document and is counted.
"""

import asyncio
import contextlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote
from uuid import uuid4

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from service.errors import Kind, ProblemError
from service.http.access import ALWAYS_ANSWERED
from service.http.context import CONNECTION
from service.metrics import Metrics
from service.settings import Settings

RESERVED = 16
"""Connections accepted beyond the limit to answer health checks and metrics."""

_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.02, 2.0  # between two interim responses to a client that may be gone
_FRAMING = 16  # bytes that may surround each byte of a body: a chunk of one byte needs 5
_LINGER_S = 2.0  # time for a client to read a refusal before its connection is reset
_END = b"\r\n\r\n"
_HEADERS = ((b"connection", b"close"), (b"x-content-type-options", b"nosniff"))
_FIRST_LINE = re.compile(rb"(?!CONNECT )[A-Z-]+ ([^ ]+) HTTP/1\.([01])\r\n")
_UPGRADE = re.compile(rb"(?i)(?<=\r\n)upgrade:[\t -~\x80-\xff]*\r\n")
_EXPECT = re.compile(rb"(?i)(?<=\r\n)expect:[^\r]*\r\n")
_ROOT = re.compile(rb"(?i)\A([A-Z-]+ https?://[^/? ]+)(?=[? ])")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)")
_CHUNKED_LINE = re.compile(rb"(?i)\r\ntransfer-encoding: chunked(?=\r\n)")
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(;.*)?")

_OVER = {
    Kind.SLOW: ("receive_s", "the request did not arrive within {:g} s ({}); send it again, all at once"),
    Kind.HEAD_TOO_LARGE: (
        "max_header_bytes",
        "the first line and headers exceed {} bytes ({}); send fewer or shorter ones",
    ),
    Kind.TOO_LARGE: ("max_body_bytes", "the body has more than {} bytes ({}); send less at once"),
    Kind.BAD_REQUEST: (
        "max_header_bytes",
        "over {} bytes ({}) are neither head nor body: chunk extensions, trailers or empty lines; send the request "
        "without them",
    ),
    Kind.CONNECTIONS: ("max_connections", "all {} connections ({}) are in use; try again in a second"),
}
"""What is over a limit: the setting, and what the client is told."""


class _WithoutChunks:
    """A transport for a response to HTTP/1.0, which knows no chunks: they are taken off, and closing ends the body."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._chunked = transport, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._chunked:  # uvicorn writes each chunk in one piece, the last one with the end
            size, _, data = data.partition(b"\r\n")
            data = data[: int(size or b"0", 16)]
        elif _CHUNKED_LINE.search(data):  # a head, which comes in one piece, too
            data, self._chunked = _CHUNKED_LINE.sub(b"", data), True
        self._transport.write(data)


class Slots:
    """The connections that may be open at the same time.

    A connection is idle unless a request on it is being answered. When all slots are taken, the connection that has
    been idle longest is closed, so that unused sockets do not keep clients out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: OrderedDict[Connection, bool] = OrderedDict()  # whether each is idle; of the idle, longest first

    def take(self, connection: "Connection") -> bool:
        """Take a slot, idle at first; return whether there is one."""
        if len(self.held) >= self.limit:
            longest = next((holder for holder, idle in self.held.items() if idle), None)
            if longest is None:
                return False
            self.release(longest)
            longest.give_way()
        self.held[connection] = True
        return True

    def mark_idle(self, connection: "Connection") -> None:
        """Mark a connection as idle from now on."""
        if connection in self.held:
            self.held[connection] = True
            self.held.move_to_end(connection)

    def mark_busy(self, connection: "Connection") -> None:
        """Mark a connection as no longer idle."""
        if connection in self.held:
            self.held[connection] = False

    def release(self, connection: "Connection") -> None:
        """Free the slot of a connection, if it has one."""
        self.held.pop(connection, None)


def protocol(settings: Settings, metrics: Metrics | None = None) -> "type[Connection]":
    """Return the protocol class with these settings as limits; it counts refusals in the metrics."""
    slots = (Slots(settings.max_connections), Slots(RESERVED))
    return type("Limited", (Connection,), {"limits": settings, "slots": slots, "metrics": metrics or Metrics()})


class Connection(asyncio.Protocol):
    """One connection; settings, slots and metrics are shared by all connections.

    Attributes:
        limits: The settings.
        slots: For all connections, and for those that get no such slot and may only ask for health and metrics.
        metrics: Counts refusals.
    """

    limits: Settings
    slots: tuple[Slots, Slots]
    metrics: Metrics

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._http = HttpToolsProtocol(config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._slots = self.slots[0]
        self._unread, self._passed = bytearray(), bytearray()  # what arrived, and what of it uvicorn gets next
        self._reading = self._requests()
        self._around = 0  # bytes that may still be around the data of this body
        self._arriving = False  # a request has begun to arrive, and has not arrived as a whole
        self._answering = self._responding = False  # a request is being answered; its response has begun
        self._last = False  # it is of HTTP/1.0
        self._refused = self._half_closed = False
        self._timer: asyncio.TimerHandle | None = None  # until when the client must send something
        self._slow_reader: asyncio.TimerHandle | None = None

    # Opening and closing.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection, or answer 503 if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self._http.connection_made(self._transport)
        for slots in self.slots:
            if slots.take(self):
                self._slots = slots
                self._after(self.limits.receive_s, self._give_up, Kind.SLOW)
                return
        self._refuse(self._over(Kind.CONNECTIONS))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._refused = True
        self._unread.clear()
        self._timer, self._slow_reader = _stop(self._timer), _stop(self._slow_reader)
        self._slots.release(self)
        self._http.connection_lost(None)  # whatever the cause: only so does it stop its own timer

    def give_way(self) -> None:
        """Close an idle connection, as another one needs its slot."""
        if self._refused or self._transport.get_write_buffer_size():  # the client does not read what was sent
            self._transport.abort()
            return
        if not self._arriving:
            self.metrics.refused("idle")
        self._give_up(Kind.CONNECTIONS)

    def farewell(self) -> None:
        """Tell a waiting client that the process ends now, bypassing all buffers, as nothing runs after this."""
        if self._answering and not (self._refused or self._responding or self._transport.get_write_buffer_size()):
            detail = "the service was stopped; send the request to another instance"
            raw = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                os.write(raw.fileno(), self._message(ProblemError(Kind.DRAINING, detail)))

    def _give_up(self, kind: Kind) -> None:
        """Refuse the request that is arriving; without one, just close."""
        if self._arriving:
            self._refuse(self._over(kind))
        else:
            self._close()

    def _close(self) -> None:
        self._refused = True
        self._transport.close()
        self._watch_reader()

    # Receiving requests, one at a time.

    def data_received(self, data: bytes) -> None:
        """Read received data; after a refusal it is dropped."""
        if self._refused:
            return
        self._unread += data
        try:
            next(self._reading)
        except ProblemError as problem:
            self._refuse(problem)
        except (ValueError, httptools.HttpParserError):
            detail = "a line, a header or the length of the body cannot be parsed"
            self._refuse(ProblemError(Kind.BAD_REQUEST, f"this is not a valid HTTP/1.1 request: {detail}"))
        else:
            if self._passed:
                passed, self._passed = bytes(self._passed), bytearray()
                self._http.data_received(passed)

    def eof_received(self) -> bool:
        """Close, unless a whole request has arrived whose response the client may still read.

        A client that is gone looks the same until something is sent to it: it then resets the connection. So it gets
        interim responses (RFC 9110, section 15.2) until the response begins. HTTP/1.0 has none, so it is taken as gone.
        """
        stays = self._answering and not (self._arriving or self._responding or self._refused or self._last)
        if stays:
            self._half_closed = True
            self._ask_whether_gone(_FIRST_PROBE_S)
        return stays

    def _ask_whether_gone(self, next_s: float) -> None:
        self._transport.write(b"HTTP/1.1 102 Processing" + _END)
        self._after(next_s, self._ask_whether_gone, min(4 * next_s, _LONGEST_PROBE_S))

    def _requests(self) -> Iterator[None]:
        """Read one request after the other; each yield waits for more to arrive, or for a response to end.

        Raises:
            ProblemError: something is over a limit.
            ValueError, HttpParserError: this is no HTTP.
        """
        unread, limit = self._unread, self.limits.max_header_bytes
        while True:
            blank = checked = searched = 0
            while not unread or unread[0] in b"\r\n":  # empty lines before a head
                if not unread:
                    yield
                    continue
                del unread[0]
                blank += 1
                if blank > limit:
                    raise self._over(Kind.BAD_REQUEST)
            self._arriving = True
            self._after(self.limits.receive_s, self._give_up, Kind.SLOW)
            parser = httptools.HttpRequestParser(self)
            while (size := unread.find(_END, searched) + 4) < 4 and len(unread) <= limit:
                parser.feed_data(bytes(unread[checked:]))  # of a TLS hello, for example, no end comes
                checked, searched = len(unread), max(0, len(unread) - 3)
                yield
            if not 4 <= size <= limit:
                raise self._over(Kind.HEAD_TOO_LARGE)
            length = self._begin(self._take(size))
            yield from self._chunks() if length is None else self._data(length)
            self._arriving, self._timer = False, _stop(self._timer)  # from here on the engine's time limits apply
            while self._answering:
                if unread:
                    self._transport.pause_reading()
                yield
            self._responding = False
            self._after(self.limits.keep_alive_s, self._give_up, Kind.SLOW)

    def _take(self, size: int) -> bytes:
        """Remove at most so many bytes from what has arrived."""
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    def _begin(self, head: bytes) -> int | None:
        """Pass a sound head on; return the length of its body, or None for chunks.

        Raises:
            ValueError: its first line is not one of a request to a service, or it names two hosts.
            HttpParserError: it is malformed.
            ProblemError: all connections are in use.
        """
        lower = head.lower()  # far faster than patterns that ignore case
        if b"\r\nupgrade:" in lower:
            head = _UPGRADE.sub(b"", head)
        first, length = _FIRST_LINE.match(head), _LENGTH.search(lower)
        hosts, chunked = lower.count(b"\r\nhost:"), b"\r\ntransfer-encoding:" in lower
        if first is None or hosts > 1 or (not hosts and first[2] == b"1"):
            raise ValueError
        if chunked and (lower.count(b"\r\ntransfer-encoding:") > 1 or not _CHUNKED.search(lower)):
            raise ValueError
        httptools.HttpRequestParser(self).feed_data(head)
        path = httptools.parse_url(first[1]).path
        if path is None:  # the root in absolute form, http://host or http://host?query
            head, roots = _ROOT.subn(rb"\1/", head)
            path = b"/" * roots
        if not path or not path.isascii():
            raise ValueError
        if b" \r\n" in head or b"\t\r\n" in head:  # spaces after a value are no part of it, and httptools leaves them
            head = b"\r\n".join(line.rstrip(b" \t") for line in head.split(b"\r\n"))
        if self._slots is self.slots[1]:
            if unquote(path.decode()) not in ALWAYS_ANSWERED:
                raise self._over(Kind.CONNECTIONS)
            head = head[:-2] + b"Connection: close\r\n\r\n"
        self._last = first[2] == b"0"
        if self._last:  # uvicorn closes the connection after it, and writes it to another transport
            head = _EXPECT.sub(b"", head)  # HTTP/1.0 knows no 100 Continue
            self._http.connection_made(cast(asyncio.Transport, _WithoutChunks(self._transport)))
        self._passed += head
        self._answering = True
        self._slots.mark_busy(self)
        return None if chunked else int(length[1]) if length else 0

    def _data(self, size: int) -> Iterator[None]:
        """Pass data of a body on as it arrives."""
        while size:
            if not self._unread:
                yield
            part = self._take(size)
            arrived = len(part)
            self._passed += part
            self._around += _FRAMING * arrived
            size -= arrived

    def _chunks(self) -> Iterator[None]:
        """Pass a body in chunks on (RFC 9112, section 7.1), but no extensions and trailers."""
        claimed, self._around = 0, self.limits.max_header_bytes
        while True:
            digits = _CHUNK_SIZE.fullmatch((yield from self._line()))
            if digits is None:
                raise ValueError
            size = int(digits[1], 16)
            claimed += size
            if claimed > self.limits.max_body_bytes:  # the data need not arrive to be too much
                raise self._over(Kind.TOO_LARGE)
            if not size:
                break
            self._passed += b"%x\r\n" % size
            yield from self._data(size)
            self._passed += b"\r\n"
            if (yield from self._line()):
                raise ValueError
        while (yield from self._line()):  # trailers
            pass
        self._passed += b"0\r\n\r\n"

    def _line(self) -> Generator[None, None, bytes]:
        """Return the next line around the data of a body, without its end."""
        unread, limit, searched = self._unread, self.limits.max_header_bytes, 0
        while not (size := unread.find(b"\n", searched) + 1) and len(unread) <= limit:
            searched = len(unread)
            yield
        self._around -= size
        if not 0 < size <= limit or self._around < 0:
            raise self._over(Kind.BAD_REQUEST)
        line = self._take(size)
        if not line.endswith(b"\r\n"):
            raise ValueError
        return line[:-2]

    # Sending a response; the application calls the first two.

    def response_begins(self) -> None:
        """Note that nothing else can be sent in its place."""
        self._responding = True
        if self._half_closed:
            self._timer = _stop(self._timer)

    def response_ends(self) -> None:
        """End a request; the client must still read a closing connection to its end in time."""
        self._answering = False
        if self._refused:
            return
        self._slots.mark_idle(self)
        if self._transport.is_closing():
            self._watch_reader()
            return
        self._transport.resume_reading()
        self.data_received(b"")
        if self._half_closed and not self._answering:
            self._close()

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read."""
        self._http.pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Stop the timer: the client has read. What is left for a closing connection has a time of its own."""
        self._http.resume_writing()
        self._slow_reader = _stop(self._slow_reader)
        if self._transport.is_closing():
            self._watch_reader()

    # Timers and refusals.

    def _after(self, seconds: float, do: Callable[..., None], *arguments: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, do, *arguments)

    def _watch_reader(self) -> None:
        if self._slow_reader is None:
            self._slow_reader = self._loop.call_later(self.limits.send_s, self._reader_is_late)

    def _reader_is_late(self) -> None:
        self.metrics.refused("slow-reader")
        self._transport.abort()

    def _over(self, kind: Kind) -> ProblemError:
        setting, detail = _OVER[kind]
        limit = getattr(self.limits, setting)
        members = {"limit": limit} if kind in (Kind.HEAD_TOO_LARGE, Kind.TOO_LARGE) else {}
        headers = {"Retry-After": "1"} if kind is Kind.CONNECTIONS else {}
        return ProblemError(kind, detail.format(limit, f"PATHLINE_{setting.upper()}"), headers=headers, **members)

    def _refuse(self, problem: ProblemError) -> None:
        """Send a problem, unless this request has a response already, and close once the client could read it.

        If the application is already handling the request, it finds its client gone.
        """
        self._refused = True
        self._unread.clear()
        self.metrics.refused(problem.kind.slug)
        if self._answering:
            self._http.connection_lost(ConnectionAbortedError())
        if not self._responding:
            self._transport.write(self._message(problem))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._slots.mark_idle(self)
        self._after(_LINGER_S, self._transport.abort)

    def _message(self, problem: ProblemError) -> bytes:
        """Return a complete HTTP response."""
        identity = uuid4().hex
        response = problem.response(identity, self.limits.url_path)
        status = HTTPStatus(response.status_code)
        headers = [*response.raw_headers, (b"x-request-id", identity.encode()), *_HEADERS]
        lines = [b"HTTP/1.1 %d %b" % (status, status.phrase.encode()), *(b"%b: %b" % header for header in headers)]
        return b"\r\n".join(lines) + _END + bytes(response.body)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
