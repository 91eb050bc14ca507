"""HTTP connections: uvicorn's protocol with limits on number, size and time, and with problems as error responses.

uvicorn waits for headers, body and reader without limit, stores whatever surrounds a body, and reports parse errors in
plain text. Here a connection has a time limit for sending its request and for reading its response, and a size limit
for the head and for everything that is neither head nor body; every refusal is a problem document and is counted.
"""

import asyncio
import contextlib
import os
from collections import OrderedDict
from typing import Any, Protocol
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.errors import Kind, ProblemError
from service.http.access import ALWAYS_ANSWERED
from service.metrics import Metrics
from service.settings import Settings

_LINGER_S = 2.0  # time for a client to read a refusal before its connection is reset
_PIECE = 4096  # bytes parsed at once, which bounds the number of requests parsed ahead
_FRAMING = 16  # framing bytes allowed for each byte of a body: a chunk of one byte needs 5


RESERVED = 16
"""Connections accepted beyond the limit to answer health checks and metrics."""


class Holder(Protocol):
    """A connection that occupies a slot."""

    def give_way(self) -> None:
        """Close now: the slot goes to another connection."""
        ...


class ConnectionLimit:
    """Tracks the connections that hold one of `limit` slots or a reserved one.

    A connection is idle unless a request on it is being answered. When all slots are taken, the connection that has
    been idle longest is closed, so that unused sockets do not keep clients out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._common, self._reserved = _Slots(limit), _Slots(RESERVED)

    def take(self, holder: Holder) -> bool | None:
        """Take a slot; return whether it is a reserved one, or None if no slot is free."""
        for slots in (self._common, self._reserved):
            if slots.take(holder):
                return slots is self._reserved
        return None

    def mark_idle(self, holder: Holder) -> None:
        """Mark a connection as idle from now on."""
        for slots in (self._common, self._reserved):
            slots.mark_idle(holder)

    def mark_busy(self, holder: Holder) -> None:
        """Mark a connection as no longer idle."""
        for slots in (self._common, self._reserved):
            slots.idle.pop(holder, None)

    def release(self, holder: Holder) -> None:
        """Free the slot of a connection, if it has one."""
        for slots in (self._common, self._reserved):
            slots.release(holder)


class _Slots:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: set[Holder] = set()
        self.idle: OrderedDict[Holder, None] = OrderedDict()  # longest first

    def take(self, holder: Holder) -> bool:
        if len(self.held) >= self.limit:
            if not self.idle:
                return False
            longest = next(iter(self.idle))
            self.release(longest)
            longest.give_way()
        self.held.add(holder)
        self.idle[holder] = None
        return True

    def mark_idle(self, holder: Holder) -> None:
        if holder in self.held:
            self.idle[holder] = None

    def release(self, holder: Holder) -> None:
        self.held.discard(holder)
        self.idle.pop(holder, None)


def protocol(settings: Settings, metrics: Metrics | None = None) -> type[HttpToolsProtocol]:
    """Return the protocol class with these settings as limits; it counts refusals in the metrics."""
    shared = {"limits": settings, "slots": ConnectionLimit(settings.max_connections), "metrics": metrics or Metrics()}
    return type("Limited", (Connection,), shared)


class Connection(HttpToolsProtocol):
    """One connection; settings, slots and metrics are shared by all connections.

    Attributes:
        limits: The settings.
        slots: Which connections are open, and which of them are idle.
        metrics: Counts refusals.
    """

    limits: Settings
    slots: ConnectionLimit
    metrics: Metrics

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = self._in_message = self._refused = self._reserved = False
        self._unread = b""  # received after requests that wait for an earlier one
        self._boundaries = 0  # starts and ends of messages and heads in this piece
        self._body_in_piece = self._body_bytes = self._overhead = 0
        self._running: RequestResponseCycle | None = None  # `cycle` is the newest, which may wait for this one
        self._final_problem: ProblemError | None = None
        self._slow_sender: asyncio.TimerHandle | None = None
        self._slow_reader: asyncio.TimerHandle | None = None

    # Opening and closing.

    def connection_made(self, transport: Any) -> None:  # type: ignore[override]
        """Accept a connection, or answer 503 if there are too many."""
        reserved = self.slots.take(self)
        if reserved is None:
            self.transport, self._refused = transport, True
            self.metrics.refused(Kind.CONNECTIONS.value.slug)
            transport.write(self._message(self._too_many()))
            transport.close()
            return
        self._reserved = reserved
        super().connection_made(transport)
        self._watch_sender()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers."""
        self.slots.release(self)
        self._unread = b""
        self._slow_sender = _stop(self._slow_sender)
        self._slow_reader = _stop(self._slow_reader)
        self._unset_keepalive_if_required()
        if self._running is not None and not self._running.response_complete:
            _disconnect(self._running)
        if self.flow is not None:  # else the connection was refused at once and never started
            super().connection_lost(exc)

    def give_way(self) -> None:
        """Close an idle connection, as another one needs its slot."""
        if self._refused or self.transport.get_write_buffer_size():  # the client does not read what was sent
            self.transport.abort()
        elif self._in_message:
            self._refuse(self._too_many())
        else:
            self._refused = True
            self.metrics.refused("idle")
            self.transport.close()

    def farewell(self) -> None:
        """Tell a waiting client that the process ends now, bypassing all buffers, as nothing runs after this."""
        running = self._running
        if running is None or running.response_started or self.transport.get_write_buffer_size():
            return
        detail = "the service was stopped; send the request to another instance"
        with contextlib.suppress(OSError):
            os.write(
                self.transport.get_extra_info("socket").fileno(), self._message(ProblemError(Kind.DRAINING, detail))
            )

    # Receiving a request.

    def data_received(self, data: bytes) -> None:
        """Parse received data; after a refusal it is dropped."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._unread += data
        self._read()

    def _read(self) -> None:
        """Parse piece by piece, up to a request that has to wait for the one before it."""
        data, place = self._unread, 0
        while place < len(data) and not self.pipeline and not self._refused:
            place += self._parse(data[place : place + _PIECE])
        self._unread = b"" if self._refused else data[place:]
        if self._refused or self.transport.is_closing():
            return
        if self._unread:
            self.flow.pause_reading()
        idle = self.cycle is None or self.cycle.response_complete
        if self._in_message or (idle and self.timeout_keep_alive_task is None):
            self._watch_sender()
        else:
            self._slow_sender = _stop(self._slow_sender)

    def _parse(self, piece: bytes) -> int:
        """Parse a piece; return how many of its bytes were parsed."""
        self._boundaries, self._body_in_piece, between = 0, 0, not self._in_message
        if (parser := self.parser) is None:  # the connection is lost
            return len(piece)
        try:
            parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:  # not offered: it is answered as HTTP/1.1
            return upgrade.args[0] or len(piece)
        except httptools.HttpParserError:
            detail = "this is not a valid HTTP/1.1 request: a line, a header or the length of the body cannot be parsed"
            self._refuse(ProblemError(Kind.BAD_REQUEST, detail))
        else:
            if not self._boundaries or (between and self._boundaries == 1):  # else its parts cannot be distinguished
                self._check_overhead(len(piece))
        return len(piece)

    def _check_overhead(self, size: int) -> None:
        """Limit all that is not body: an unfinished head, chunk sizes and extensions, trailers, empty lines."""
        self._overhead += size - self._body_in_piece
        limit = self.limits.max_header_bytes
        if self._overhead <= limit + _FRAMING * self._body_bytes:
            return
        if self._in_head:
            self._refuse(self._too_large())
            return
        detail = f"over {limit} bytes (PATHLINE_MAX_HEADER_BYTES) are neither head nor body: chunk extensions, trailers"
        self._refuse(ProblemError(Kind.BAD_REQUEST, f"{detail} or empty lines; send the request without them"))

    def _boundary(self) -> None:
        self._boundaries += 1
        self._overhead = 0

    def on_message_begin(self) -> None:
        """Start a request and its time limit."""
        self._boundary()
        self._in_head = self._in_message = True
        self._body_bytes = 0
        if self.cycle is not None:
            self._slow_sender = _stop(self._slow_sender)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; one that follows the body (a trailer) is dropped."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse a complete head that is too large, or a request that must not use a reserved slot."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.max_header_bytes:
            self._refuse(self._too_large())
        elif self._reserved and self.url.partition(b"?")[0].decode("latin-1") not in ALWAYS_ANSWERED:
            self._refuse(self._too_many())
        if self._refused:
            raise ValueError  # stops the parser
        super().on_headers_complete()
        if self._reserved:
            self.cycle.keep_alive = False
        self._boundary()
        self._in_head = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self.slots.mark_busy(self)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Store a part of the body."""
        self._body_in_piece += len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; from here on the engine's time limits apply."""
        self._boundary()
        self._in_message = False
        super().on_message_complete()

    # Sending a response.

    def pause_writing(self) -> None:
        """Start the timer of a client that does not read."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Stop the timer: the client has read."""
        super().resume_writing()
        self._slow_reader = _stop(self._slow_reader)

    def on_response_complete(self) -> None:
        """End a request; the client must still read a closing connection to its end in time."""
        self.slots.mark_idle(self)
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif self._final_problem is not None and not self.pipeline and self._running_is_done():
            self._send_and_close(self._final_problem)
        elif self._unread:
            self._unset_keepalive_if_required()
            self._read()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if the client never read its last response."""
        super().timeout_keep_alive_handler()
        self._watch_reader()

    # Timers and refusals.

    def _watch_sender(self) -> None:
        if self._slow_sender is None:
            self._slow_sender = self.loop.call_later(self.limits.receive_s, self._sender_is_late)

    def _watch_reader(self) -> None:
        if self._slow_reader is None:
            self._slow_reader = self.loop.call_later(self.limits.send_s, self._reader_is_late)

    def _reader_is_late(self) -> None:
        self.metrics.refused("slow-reader")
        self.transport.abort()

    def _sender_is_late(self) -> None:
        self._slow_sender = None
        if self.pipeline:  # reading is paused until earlier requests are answered
            self._watch_sender()
        elif not self._in_message:  # no part of a request has arrived
            self.transport.close()
            self._watch_reader()
        else:
            limit = self.limits.receive_s
            detail = f"the request did not arrive within {limit:g} s (PATHLINE_RECEIVE_S); send it again, all at once"
            self._refuse(ProblemError(Kind.SLOW, detail))

    def _too_large(self) -> ProblemError:
        limit = self.limits.max_header_bytes
        detail = (
            f"the first line and headers exceed {limit} bytes (PATHLINE_MAX_HEADER_BYTES); send fewer or shorter ones"
        )
        return ProblemError(Kind.HEAD_TOO_LARGE, detail, limit=limit)

    def _too_many(self) -> ProblemError:
        limit = self.slots.limit
        detail = f"all {limit} connections (PATHLINE_MAX_CONNECTIONS) are in use; try again in a second"
        return ProblemError(Kind.CONNECTIONS, detail, headers={"Retry-After": "1"})

    def _running_is_done(self) -> bool:
        return self._running is None or self._running.response_complete

    def _refuse(self, problem: ProblemError) -> None:
        """Stop reading. Earlier requests are answered first, then the problem is sent and the connection closed.

        If the application is already handling the refused request, it finds its client gone.
        """
        if self._refused:
            return
        self._refused = True
        self.metrics.refused(problem.kind.value.slug)
        in_body = self._in_message and not self._in_head
        if in_body and self.pipeline:  # it has not started
            self.pipeline.popleft()
            in_body = False
        running = self._running
        busy = running is not None and not running.response_complete
        if busy and not in_body:
            self._final_problem = problem
        elif running is not None and in_body:
            if busy:
                _disconnect(running)
            self._send_and_close(None if running.response_started else problem)
        else:
            self._send_and_close(problem)

    def _send_and_close(self, problem: ProblemError | None) -> None:
        """Send a problem in place of the application, and close once the client has had time to read."""
        self._unset_keepalive_if_required()
        if problem is not None:
            self.transport.write(self._message(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.slots.mark_idle(self)
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _message(self, problem: ProblemError) -> bytes:
        """Return a complete HTTP response."""
        identity = uuid4().hex
        response = problem.response(identity, self.limits.url_path)
        headers = [*response.raw_headers, (b"x-request-id", identity.encode()), (b"connection", b"close")]
        lines = [
            STATUS_LINE[response.status_code],
            *(name + b": " + value + b"\r\n" for name, value in headers),
            b"\r\n",
        ]
        return b"".join(lines) + bytes(response.body)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Make the application find its client gone."""
    cycle.disconnected = True
    cycle.message_event.set()


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
