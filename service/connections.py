"""One HTTP connection: uvicorn's protocol with limits on how many, how large, how slow, and problems as answers.

uvicorn waits for a head, a body and a reader without end, and answers what it cannot parse as plain text. Here each
connection has a time to send its request and to take its answer, a size of its head, and every refusal is a problem.
"""

import asyncio
from typing import Any
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import Kind, ProblemError
from service.settings import Settings

_LINGER_S = 2.0  # time for a client to read a refusal before its connection is reset


def protocol(settings: Settings) -> type[HttpToolsProtocol]:
    """Return the protocol class with the limits of these settings."""
    return type("Limited", (Connection,), {"limits": settings})


class Connection(HttpToolsProtocol):
    """A connection; `limits` are the settings."""

    limits: Settings

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = self._in_message = self._refused = False
        self._head_bytes = 0
        self._slow_sender: asyncio.TimerHandle | None = None
        self._slow_reader: asyncio.TimerHandle | None = None

    # A connection comes and goes.

    def connection_made(self, transport: Any) -> None:  # type: ignore[override]
        """Take a connection, or answer 503 where there are too many."""
        if len(self.connections) >= (most := self.limits.max_connections):
            detail = f"{most} connections are open, the limit (PATHLINE_MAX_CONNECTIONS); try again in a second"
            self.transport, self._refused = transport, True
            transport.write(_message(ProblemError(Kind.CONNECTIONS, detail, headers={"Retry-After": "1"})))
            transport.close()
            return
        super().connection_made(transport)
        self._watch_sender()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks."""
        self._slow_sender = _stop(self._slow_sender)
        self._slow_reader = _stop(self._slow_reader)
        self._unset_keepalive_if_required()
        if self.flow is not None:  # otherwise it was one too many and never began
            super().connection_lost(exc)

    # A request arrives.

    def data_received(self, data: bytes) -> None:
        """Parse what came; what comes after a refusal is read and dropped."""
        if self._refused:
            return
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.max_header_bytes:
                self._refuse(self._too_large())
                return
        idle = self.cycle is None or self.cycle.response_complete
        if self._in_message or (idle and self.timeout_keep_alive_task is None):
            self._watch_sender()
        else:
            self._slow_sender = _stop(self._slow_sender)

    def on_message_begin(self) -> None:
        """Begin a request: it has a time of its own."""
        self._in_head = self._in_message = True
        self._head_bytes = 0
        if self.cycle is not None:
            self._slow_sender = _stop(self._slow_sender)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Refuse a head that came whole but is too large."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.max_header_bytes:
            self._refuse(self._too_large())
            raise ValueError  # stops the parser
        super().on_headers_complete()
        self._in_head = False

    def on_message_complete(self) -> None:
        """End a request; the engine's time begins."""
        self._in_message = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed."""
        detail = "this is not a valid HTTP/1.1 request: a line, a header or the length of the body cannot be parsed"
        self._refuse(ProblemError(Kind.BAD_REQUEST, detail))

    def _unsupported_upgrade_warning(self) -> None:
        """Answer as HTTP/1.1, as the client must expect, and say nothing."""

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
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()

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
            self._slow_reader = self.loop.call_later(self.limits.send_s, self.transport.abort)

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

    def _refuse(self, problem: ProblemError) -> None:
        """Answer for the application, unless it has begun to, and close once the client had time to read."""
        if self._refused:
            return
        self._refused = True
        cycle = self.cycle
        busy = cycle is not None and not cycle.response_complete
        in_body = self._in_message and not self._in_head
        if (busy and not cycle.response_started and not self.pipeline) if in_body else not busy:
            self.transport.write(_message(problem))
        if busy:  # the application finds its client gone
            cycle.disconnected = True
            cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)


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
