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
from functools import partial
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
from service.http.chunks import Chunks
from service.http.context import CONNECTION
from service.metrics import Metrics
from service.settings import Settings

RESERVED = 16
"""Connections accepted beyond the limit to answer health checks and metrics."""

_FIRST_PROBE_S, _LONGEST_PROBE_S = 0.02, 2.0  # between two interim responses to a client that may be gone
_LINGER_S = 2.0  # time for a client to read a refusal before its connection is reset
_END = b"\r\n\r\n"
_HEADERS = ((b"connection", b"close"), (b"x-content-type-options", b"nosniff"))
_UPGRADE = re.compile(rb"(?i)(?<=\r\n)upgrade:[^\r]*\r\n")
_EXPECT = re.compile(rb"(?i)(?<=\r\n)expect:[^\r]*\r\n")
_ORIGIN = re.compile(rb"(?i)https?://[^/?]+")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)")
_CHUNKED_LINE = re.compile(rb"(?i)\r\ntransfer-encoding: chunked(?=\r\n)")
_FIRST_LINE = re.compile(rb"(?!CONNECT )[A-Z-]+ ([^ ]+) HTTP/1\.([01])\r\n")


_OVER = {
    Kind.SLOW: (
        "receive_s",
        "the request did not arrive within {:g} s (PATHLINE_RECEIVE_S); send it again, all at once",
    ),
    Kind.HEAD_TOO_LARGE: (
        "max_header_bytes",
        "the first line and headers exceed {} bytes (PATHLINE_MAX_HEADER_BYTES); send fewer or shorter ones",
    ),
    Kind.TOO_LARGE: (
        "max_body_bytes",
        "the body has more than {} bytes (PATHLINE_MAX_BODY_BYTES); send less at once",
    ),
    Kind.BAD_REQUEST: (
        "max_header_bytes",
        "over {} bytes (PATHLINE_MAX_HEADER_BYTES) are neither head nor body: chunk extensions, trailers or empty "
        "lines; send the request without them",
    ),
    Kind.CONNECTIONS: (
        "max_connections",
        "all {} connections (PATHLINE_MAX_CONNECTIONS) are in use; try again in a second",
    ),
}
"""What is over a limit: the setting, and what the client is told."""


class _WithoutChunks:
    """A transport for a response to HTTP/1.0, which knows no chunks: they are taken off, and closing ends the body."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._chunks: Chunks | None = None
        self._unread = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._chunks is not None:
            self._unread += data
            data = self._chunks.take(self._unread)
        elif _CHUNKED_LINE.search(data):  # a head, which comes in one piece
            data = _CHUNKED_LINE.sub(b"", data)
            self._chunks = Chunks(len(data), bare=True)
        self._transport.write(data)


class Slots:
    """The connections that may be open at the same time.

    A connection is idle unless a request on it is being answered. When all slots are taken, the connection that has
    been idle longest is closed, so that unused sockets do not keep clients out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: set[Connection] = set()
        self._idle: OrderedDict[Connection, None] = OrderedDict()  # longest first

    def take(self, connection: "Connection") -> bool:
        """Take a slot, idle at first; return whether there is one."""
        if len(self.held) >= self.limit:
            if not self._idle:
                return False
            longest = next(iter(self._idle))
            self.release(longest)
            longest.give_way()
        self.held.add(connection)
        self._idle[connection] = None
        return True

    def mark_idle(self, connection: "Connection") -> None:
        """Mark a connection as idle from now on."""
        if connection in self.held:
            self._idle[connection] = None

    def mark_busy(self, connection: "Connection") -> None:
        """Mark a connection as no longer idle."""
        self._idle.pop(connection, None)

    def release(self, connection: "Connection") -> None:
        """Free the slot of a connection, if it has one."""
        self.held.discard(connection)
        self._idle.pop(connection, None)


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
        self._make_http = partial(HttpToolsProtocol, config, server_state, {**app_state, CONNECTION: self}, _loop)
        self._http = self._make_http()
        self._loop = _loop or asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._slots: Slots | None = None
        self._unread = bytearray()
        self._blank = self._checked = 0  # bytes of empty lines before a head; bytes of this head that were checked
        self._head: httptools.HttpRequestParser | None = None  # checks the head that is arriving
        self._body: int | Chunks | None = None  # what is still to come of a body
        self._answering = self._responding = False  # a request is being answered; its response has begun
        self._last = False  # it is of HTTP/1.0
        self._refused = self._half_closed = False
        self._probe: asyncio.TimerHandle | None = None
        self._slow_sender: asyncio.TimerHandle | None = None
        self._slow_reader: asyncio.TimerHandle | None = None

    # Opening and closing.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection, or answer 503 if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self._slots = next((slots for slots in self.slots if slots.take(self)), None)
        if self._slots is None:
            self._refuse(self._over(Kind.CONNECTIONS))
            self._transport.close()
            return
        self._http.connection_made(self._transport)
        self._watch_sender(self.limits.receive_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self._refused = True
        self._unread.clear()
        self._slow_sender, self._slow_reader = _stop(self._slow_sender), _stop(self._slow_reader)
        self._probe = _stop(self._probe)
        if self._slots is not None:
            self._slots.release(self)
            self._http.connection_lost(None)  # whatever the cause: only so does it stop its own timer

    def give_way(self) -> None:
        """Close an idle connection, as another one needs its slot."""
        if self._refused or self._transport.get_write_buffer_size():  # the client does not read what was sent
            self._transport.abort()
        elif self._head is not None or self._body is not None:
            self._refuse(self._over(Kind.CONNECTIONS))
        else:
            self.metrics.refused("idle")
            self._close()

    def farewell(self) -> None:
        """Tell a waiting client that the process ends now, bypassing all buffers, as nothing runs after this."""
        if self._answering and not (self._refused or self._responding or self._transport.get_write_buffer_size()):
            detail = "the service was stopped; send the request to another instance"
            raw = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                os.write(raw.fileno(), self._message(ProblemError(Kind.DRAINING, detail)))

    def _close(self) -> None:
        self._refused = True
        self._transport.close()
        self._watch_reader()

    # Receiving requests, one at a time.

    def data_received(self, data: bytes) -> None:
        """Read received data; after a refusal it is dropped."""
        if not self._refused:
            self._unread += data
            self._read()

    def eof_received(self) -> bool:
        """Close, unless a whole request has arrived whose response the client may still read.

        A client that is gone looks the same until something is sent to it: it then resets the connection. So it gets
        interim responses (RFC 9110, section 15.2) until the response begins. HTTP/1.0 has none, so it is taken as gone.
        """
        stays = self._answering and self._body is None and not (self._responding or self._refused or self._last)
        if stays:
            self._half_closed = True
            self._ask_whether_gone(_FIRST_PROBE_S)
        return stays

    def _ask_whether_gone(self, next_s: float) -> None:
        self._transport.write(b"HTTP/1.1 102 Processing" + _END)
        self._probe = self._loop.call_later(next_s, self._ask_whether_gone, min(4 * next_s, _LONGEST_PROBE_S))

    def _read(self) -> None:
        """Read up to a request that has to wait for the one before it, or for more to arrive."""
        whole = True
        while self._unread and whole and not self._refused:
            if self._body is None and self._answering:
                self._transport.pause_reading()
                return
            try:
                whole = self._read_head() if self._body is None else self._read_body(self._body)
            except OverflowError:
                self._refuse(self._over(Kind.BAD_REQUEST))
            except (ValueError, httptools.HttpParserError):
                detail = "a line, a header or the length of the body cannot be parsed"
                self._refuse(ProblemError(Kind.BAD_REQUEST, f"this is not a valid HTTP/1.1 request: {detail}"))

    def _read_head(self) -> bool:
        """Read a head; return whether it is complete."""
        unread, limit = self._unread, self.limits.max_header_bytes
        if self._head is None:
            if unread[0] in b"\r\n":
                blank = len(unread) - len(unread.lstrip(b"\r\n"))
                del unread[:blank]
                self._blank += blank
                if self._blank > limit:
                    raise OverflowError
                if not unread:
                    return False
            self._head, self._checked, self._blank = httptools.HttpRequestParser(self), 0, 0
            self._watch_sender(self.limits.receive_s)
        end = unread.find(_END, self._checked - 4 if self._checked > 4 else 0)
        size = len(unread) if end < 0 else end + 4
        if size > limit:
            self._refuse(self._over(Kind.HEAD_TOO_LARGE))
            return False
        try:  # noqa: SIM105  (this is on every request's way)
            self._head.feed_data(bytes(unread[self._checked : size]))
        except httptools.HttpParserUpgrade:
            pass  # no upgrade is taken
        self._checked = size
        if end >= 0:
            text = bytes(unread[:size])
            del unread[:size]
            self._begin(text)
        return end >= 0

    def _begin(self, head: bytes) -> None:
        """Hand over a head that was checked.

        Raises:
            ValueError: its first line is not one of a request to a service, or it names two hosts.
            HttpParserError: without its upgrade it is malformed.
        """
        lower = head.lower()  # far faster than patterns that ignore case
        first, length = _FIRST_LINE.match(head), _LENGTH.search(lower)
        if first is None:
            raise ValueError
        if (hosts := lower.count(b"\r\nhost:")) > 1 or (not hosts and first[2] == b"1"):
            raise ValueError
        path = httptools.parse_url(first[1]).path
        if path is None:  # the root in absolute form, http://host or http://host?query
            path, origin = b"/", _ORIGIN.match(first[1])
            if origin is None:
                raise ValueError
            place = first.start(1) + origin.end()
            head = head[:place] + b"/" + head[place:]
        if not path.isascii():
            raise ValueError
        if (codings := lower.count(b"\r\ntransfer-encoding:")) > 1 or (codings and not _CHUNKED.search(lower)):
            raise ValueError
        if b" \r\n" in head or b"\t\r\n" in head:  # spaces after a value are no part of it, and httptools leaves them
            head = b"\r\n".join(line.rstrip(b" \t") for line in head.split(b"\r\n"))
        if b"\r\nupgrade:" in lower:
            head = _UPGRADE.sub(b"", head)
            httptools.HttpRequestParser(self).feed_data(head)  # before an upgrade the coding of a body is not checked
        if self._slots is self.slots[1]:
            if unquote(path.decode()) not in ALWAYS_ANSWERED:
                self._refuse(self._over(Kind.CONNECTIONS))
                return
            head = head[:-2] + b"Connection: close\r\n\r\n"
        self._head, self._body = None, 0 if length is None else int(length[1])
        if codings:
            self._body = Chunks(self.limits.max_header_bytes)
        self._last = first[2] == b"0"
        if self._last:  # its last request: uvicorn closes the connection after it
            head = _EXPECT.sub(b"", head)  # HTTP/1.0 knows no 100 Continue
            self._http.connection_lost(ConnectionAbortedError())
            self._http = self._make_http()
            self._http.connection_made(cast(asyncio.Transport, _WithoutChunks(self._transport)))
        self._answering, self._responding = True, False
        if self._slots is not None:
            self._slots.mark_busy(self)
        self._http.data_received(head)
        if self._body == 0:
            self._end_request()

    def _read_body(self, body: int | Chunks) -> bool:
        """Hand over what has arrived of a body; return whether it is complete."""
        if isinstance(body, Chunks):
            part = body.take(self._unread)
            complete = body.complete
            if body.claimed_bytes > self.limits.max_body_bytes:  # the data need not arrive to be too much
                self._refuse(self._over(Kind.TOO_LARGE))
                return False
        else:
            part = bytes(self._unread[:body])
            del self._unread[:body]
            self._body = body - len(part)
            complete = not self._body
        if part:
            self._http.data_received(part)
        if complete:
            self._end_request()
        return complete

    def _end_request(self) -> None:
        """All of a request has arrived; from here on the engine's time limits apply."""
        self._body, self._slow_sender = None, _stop(self._slow_sender)
        if not self._answering:  # it was answered early
            self._watch_sender(self.limits.keep_alive_s)

    # Sending a response; the application calls the first two.

    def response_begins(self) -> None:
        """Note that nothing else can be sent in its place."""
        self._responding = True
        if self._probe is not None:
            self._probe = _stop(self._probe)

    def response_ends(self) -> None:
        """End a request; the client must still read a closing connection to its end in time."""
        self._answering = False
        if self._slots is None or self._refused:
            return
        self._slots.mark_idle(self)
        if self._transport.is_closing():
            self._watch_reader()
            return
        if self._body is None:
            self._watch_sender(self.limits.keep_alive_s)
        self._transport.resume_reading()
        self._read()
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

    def _watch_sender(self, seconds: float) -> None:
        if self._slow_sender is not None:
            self._slow_sender.cancel()
        self._slow_sender = self._loop.call_later(seconds, self._sender_is_late)

    def _watch_reader(self) -> None:
        if self._slow_reader is None:
            self._slow_reader = self._loop.call_later(self.limits.send_s, self._reader_is_late)

    def _reader_is_late(self) -> None:
        self.metrics.refused("slow-reader")
        self._transport.abort()

    def _sender_is_late(self) -> None:
        if self._head is None and self._body is None:
            self._close()
        else:
            self._refuse(self._over(Kind.SLOW))

    def _over(self, kind: Kind) -> ProblemError:
        setting, detail = _OVER[kind]
        limit = getattr(self.limits, setting)
        members = {"limit": limit} if kind in (Kind.HEAD_TOO_LARGE, Kind.TOO_LARGE) else {}
        headers = {"Retry-After": "1"} if kind is Kind.CONNECTIONS else {}
        return ProblemError(kind, detail.format(limit), headers=headers, **members)

    def _refuse(self, problem: ProblemError) -> None:
        """Send a problem, unless this request has a response already, and close once the client could read it.

        If the application is already handling the request, it finds its client gone.
        """
        self._refused = True
        self._unread.clear()
        self.metrics.refused(problem.kind.slug)
        self._slow_sender = _stop(self._slow_sender)
        if self._answering:
            self._http.connection_lost(ConnectionAbortedError())
        if self._body is None or (self._answering and not self._responding):
            self._transport.write(self._message(problem))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        if self._slots is not None:
            self._slots.mark_idle(self)
        self._loop.call_later(_LINGER_S, self._transport.abort)

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
