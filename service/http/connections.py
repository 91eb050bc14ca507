"""One HTTP connection: uvicorn's protocol with limits on how many, how large, how slow, and problems as answers.

uvicorn waits for a head, a body and a reader without end, keeps whatever comes around a body, and answers what it
cannot parse as plain text. Here each connection has a time to send its request and to take its answer, a size of its
head and of all that is neither head nor body, and every refusal is a problem and is counted.
"""

import asyncio
import contextlib
import os
from typing import Any
from uuid import uuid4

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.errors import Kind, ProblemError
from service.http.access import WATCHED
from service.http.places import Places
from service.metrics import Metrics
from service.settings import Settings

_LINGER_S = 2.0  # time for a client to read a refusal before its connection is reset
_PIECE = 4096  # bytes that are parsed at once: more requests than these hold are never in hand
_FRAMING = 16  # bytes that a byte of a body may need around it: a chunk of one has 5


def protocol(settings: Settings, metrics: Metrics | None = None) -> type[HttpToolsProtocol]:
    """Return the protocol class with the limits of these settings; it counts refusals in the metrics."""
    shared = {"limits": settings, "places": Places(settings.max_connections), "metrics": metrics or Metrics()}
    return type("Limited", (Connection,), shared)


class Connection(HttpToolsProtocol):
    """A connection; `limits` are the settings, `places` and `metrics` those of all connections."""

    limits: Settings
    places: Places
    metrics: Metrics

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = self._in_message = self._refused = self._watching = False
        self._unread = b""  # came behind requests that wait for the one before them
        self._turns = 0  # beginnings and ends of messages and heads in this piece
        self._body_in_piece = self._body_bytes = self._beside = 0
        self._running: RequestResponseCycle | None = None  # `cycle` is the newest, which may wait for this one
        self._last_words: ProblemError | None = None
        self._slow_sender: asyncio.TimerHandle | None = None
        self._slow_reader: asyncio.TimerHandle | None = None

    # A connection comes and goes.

    def connection_made(self, transport: Any) -> None:  # type: ignore[override]
        """Take a connection, or answer 503 where there are too many."""
        kept = self.places.take(self)
        if kept is None:
            self.transport, self._refused = transport, True
            self.metrics.refused(Kind.CONNECTIONS.value.slug)
            transport.write(_message(self._too_many()))
            transport.close()
            return
        self._watching = kept
        super().connection_made(transport)
        self._watch_sender()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self.places.leave(self)
        self._unread = b""
        self._slow_sender = _stop(self._slow_sender)
        self._slow_reader = _stop(self._slow_reader)
        self._unset_keepalive_if_required()
        if self._running is not None and not self._running.response_complete:
            _leave(self._running)
        if self.flow is not None:  # otherwise it was one too many and never began
            super().connection_lost(exc)

    def give_way(self) -> None:
        """End a connection on which nothing is answered, as another one needs its place."""
        if self._refused or self.transport.get_write_buffer_size():  # it does not read what it was sent
            self.transport.abort()
        elif self._in_message:
            self._refuse(self._too_many())
        else:
            self._refused = True
            self.metrics.refused("idle")
            self.transport.close()

    def farewell(self) -> None:
        """Tell whoever waits for an answer that the process ends now: past all buffers, nothing runs after this."""
        running = self._running
        if running is None or running.response_started or self.transport.get_write_buffer_size():
            return
        detail = "the service was stopped at once; send the request to another instance"
        with contextlib.suppress(OSError):
            os.write(self.transport.get_extra_info("socket").fileno(), _message(ProblemError(Kind.DRAINING, detail)))

    # A request arrives.

    def data_received(self, data: bytes) -> None:
        """Parse what came; what comes after a refusal is read and dropped."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._unread += data
        self._read()

    def _read(self) -> None:
        """Parse what came, piece by piece, up to a request that has to wait for the one before it."""
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
        """Parse a piece; return how many of its bytes."""
        self._turns, self._body_in_piece, between = 0, 0, not self._in_message
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
            if not self._turns or (between and self._turns == 1):  # else it is not known to what its parts belong
                self._weigh(len(piece))
        return len(piece)

    def _weigh(self, size: int) -> None:
        """Bound what is no body: an unfinished head, chunk sizes and extensions, trailers, empty lines."""
        self._beside += size - self._body_in_piece
        most = self.limits.max_header_bytes
        if self._beside <= most + _FRAMING * self._body_bytes:
            return
        if self._in_head:
            self._refuse(self._too_large())
            return
        detail = f"over {most} bytes (PATHLINE_MAX_HEADER_BYTES) are neither head nor body: chunk extensions, trailers"
        self._refuse(ProblemError(Kind.BAD_REQUEST, f"{detail} or empty lines; send the request without them"))

    def _turn(self) -> None:
        self._turns += 1
        self._beside = 0

    def on_message_begin(self) -> None:
        """Begin a request: it has a time of its own."""
        self._turn()
        self._in_head = self._in_message = True
        self._body_bytes = 0
        if self.cycle is not None:
            self._slow_sender = _stop(self._slow_sender)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one that follows the body (a trailer) is dropped."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse a head that came whole but is too large, or for which no place is left."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.max_header_bytes:
            self._refuse(self._too_large())
        elif self._watching and self.url.partition(b"?")[0].decode("latin-1") not in WATCHED:
            self._refuse(self._too_many())
        if self._refused:
            raise ValueError  # stops the parser
        super().on_headers_complete()
        if self._watching:
            self.cycle.keep_alive = False
        self._turn()
        self._in_head = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        self.places.work(self)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body_in_piece += len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; the engine's time begins."""
        self._turn()
        self._in_message = False
        super().on_message_complete()

    # An answer leaves.

    def pause_writing(self) -> None:
        """Begin the time of a client that does not read."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """End it: the client has read."""
        super().resume_writing()
        self._slow_reader = _stop(self._slow_reader)

    def on_response_complete(self) -> None:
        """End a request; a connection that closes must still be read to its end in time."""
        self.places.rest(self)
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif self._last_words is not None and not self.pipeline and self._running_is_done():
            self._say(self._last_words)
        elif self._unread:
            self._unset_keepalive_if_required()
            self._read()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also one that has never read its last answer."""
        super().timeout_keep_alive_handler()
        self._watch_reader()

    # Clocks and refusals.

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
        if self.pipeline:  # we stopped reading, to answer what came before
            self._watch_sender()
        elif not self._in_message:  # nothing of a request has come
            self.transport.close()
            self._watch_reader()
        else:
            most = self.limits.receive_s
            detail = f"the request did not arrive within {most:g} s (PATHLINE_RECEIVE_S); send it again, all at once"
            self._refuse(ProblemError(Kind.SLOW, detail))

    def _too_large(self) -> ProblemError:
        most = self.limits.max_header_bytes
        detail = f"the first line and headers have more than {most} bytes, the limit (PATHLINE_MAX_HEADER_BYTES)"
        return ProblemError(Kind.HEAD_TOO_LARGE, detail, limit=most)

    def _too_many(self) -> ProblemError:
        most = self.places.most
        detail = f"{most} connections are open, the limit (PATHLINE_MAX_CONNECTIONS); try again in a second"
        return ProblemError(Kind.CONNECTIONS, detail, headers={"Retry-After": "1"})

    def _running_is_done(self) -> bool:
        return self._running is None or self._running.response_complete

    def _refuse(self, problem: ProblemError) -> None:
        """Read no more. Whoever asked before gets an answer first, then the problem is told and the connection closed.

        The application may already answer the very request that is refused: it finds its client gone.
        """
        if self._refused:
            return
        self._refused = True
        self.metrics.refused(problem.kind.value.slug)
        in_body = self._in_message and not self._in_head
        if in_body and self.pipeline:  # it has not begun
            self.pipeline.popleft()
            in_body = False
        running = self._running
        busy = running is not None and not running.response_complete
        if busy and not in_body:
            self._last_words = problem
        elif running is not None and in_body:
            if busy:
                _leave(running)
            self._say(None if running.response_started else problem)
        else:
            self._say(problem)

    def _say(self, problem: ProblemError | None) -> None:
        """Answer for the application, and close once the client had time to read."""
        self._unset_keepalive_if_required()
        if problem is not None:
            self.transport.write(_message(problem))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.places.rest(self)
        self.loop.call_later(_LINGER_S, self.transport.abort)


def _leave(cycle: RequestResponseCycle) -> None:
    """Let the application find its client gone."""
    cycle.disconnected = True
    cycle.message_event.set()


def _message(problem: ProblemError) -> bytes:
    """Return a whole HTTP answer."""
    identity = uuid4().hex
    response = problem.response(identity)
    headers = [*response.raw_headers, (b"x-request-id", identity.encode()), (b"connection", b"close")]
    lines = [STATUS_LINE[response.status_code], *(name + b": " + value + b"\r\n" for name, value in headers), b"\r\n"]
    return b"".join(lines) + bytes(response.body)


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
