"""Context of one HTTP request: what was sent, its reserved memory, and its facts for metrics and headers."""

import random
import re
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from starlette.requests import Request, empty_receive, empty_send
from starlette.types import Message, Receive, Scope, Send

from service.errors import Kind
from service.http.compression import is_text, with_vary
from service.ledger import Hold

CONNECTION = "pathline.connection"
"""Key of a request's `connections.Connection` in the state of its scope."""

KEY = "pathline"
"""Key of a request's `Context` in its scope."""

_LISTS = (b"accept", b"accept-encoding", b"if-none-match")
_SANE_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


class Context(Request):
    """One request; endpoints that declare a `Request` for themselves get this one.

    Attributes:
        service: the parts of the application, a `service.state.Service`.
        sent: the headers by name in lower case; of several lines the first, of lists all of them.
        request_id: sent by the client, else made here.
        url_path: path under which users reach the service, as ``/pathline``; usually empty.
        started: arrival, in `time.perf_counter`.
        status: status code that was sent, or 0.
        parsed, deadline: when its body was parsed, and the end of the time limit that runs from then, model loading
            included, in `time.monotonic`.
        model: name of the model; empty until it is known to exist, so that it can be an attribute of a span.
        solver: name of the solver; empty likewise.
        outcome: how it ended, if the status code does not tell.
        problem: kind of the error it was answered with, or None.
        fallback_from: the version that cannot be loaded, so that an older one answers in its place; usually None.
        media_type: format of the response that the client prefers.
        large: whether its body takes long to handle.
        timings: seconds by name, shown in ``Server-Timing``.
        alike: the kind of requests that it belongs to, a `service.requests.validation.RequestKind`, or None.
        hold: memory reserved for the request until it is over.
        body_hold: memory reserved for its body until its job is made.
        release_lease: returns the lease of its model.
    """

    def __init__(
        self, scope: Scope, receive: Receive = empty_receive, send: Send = empty_send, service: Any = None
    ) -> None:
        super().__init__(scope, receive, send)
        self.started = time.perf_counter()
        self.service, self.sent = service, by_name(scope["headers"])
        if b"x-request-id" in self.sent and _SANE_ID.fullmatch(self.sent[b"x-request-id"]):
            self.request_id = self.sent[b"x-request-id"].decode()
        else:
            self.request_id = f"{random.getrandbits(128):032x}"
        self.status, self.parsed, self.deadline = 0, 0.0, 0.0
        self.url_path = self.model = self.solver = self.outcome = self.media_type = ""
        self.problem: Kind | None = None
        self.fallback_from: int | None = None
        self.large = self._over = False
        self.timings: dict[str, float] = {}
        self.alike: Any = None
        self.hold: Hold | None = None
        self.body_hold: Hold | None = None
        self.release_lease: Callable[[], None] | None = None
        self._connection: Any = scope["state"].get(CONNECTION) if "state" in scope else None

    def header(self, name: bytes) -> str | None:
        """Return a header of the request, its name in lower case; None if it was not sent."""
        return self.sent[name].decode("latin-1") if name in self.sent else None

    def reserve(self, size: int, conditions: int = 0) -> Hold:
        """Reserve memory until the request is over; may be called from any thread, even after that.

        Args:
            size: bytes of its states, steps and response.
            conditions: bytes of its conditions.

        Raises:
            ProblemError: 413 or 429, see `Ledger.take`.
        """
        self.hold = hold = self.service.reserve(size, self.deadline, conditions)
        if self._over:
            hold.release()
        return hold

    def keep_lease(self, release: Callable[[], None]) -> None:
        """Keep the lease of its model until the request is over; may be called from any thread, even after that."""
        self.release_lease = release
        if self._over:
            release()

    def drop_body(self) -> None:
        """Release the memory of the body: its job holds what it needs of it."""
        if self.body_hold is not None:
            self.body_hold.release()

    def end(self) -> None:
        """End the request: its response is sent, or its client has disconnected."""
        self._over = True
        if self.body_hold is not None:
            self.body_hold.release()
        if self.hold is not None:
            self.hold.release()
        if self.release_lease is not None:
            self.release_lease()

    def elapsed(self) -> float:
        """Return the seconds since the request arrived."""
        return time.perf_counter() - self.started

    async def send(self, message: Message) -> None:
        """Send a part of the response, with the headers that all responses have."""
        kind = message["type"]
        if kind == "http.response.start":
            self.status = message["status"]
            headers = [*message["headers"]]
            if is_text(headers) or self.status == 304:  # of a text: caches take over the headers
                with_vary(headers)
            total = time.perf_counter() - self.started
            durations = ", ".join([f"{name};dur={s * 1e3:.3f}" for name, s in self.timings.items()])
            headers += (
                (b"x-request-id", self.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"server-timing", f"{durations}{durations and ', '}total;dur={total * 1e3:.3f}".encode()),
            )
            if self.fallback_from is not None:
                headers.append((b"x-pathline-fallback-from", b"%d" % self.fallback_from))
            message["headers"] = headers
            if self._connection is not None:
                self._connection.response_begins()
        await self._send(message)
        ends = kind == "http.response.body" and not (message.get("more_body"))
        if ends and self._connection is not None:
            self._connection.response_ends()


def by_name(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the headers of a request by name: of several lines the first, of lists all of them."""
    sent = dict(headers)
    if len(sent) < len(headers):
        sent = dict(reversed(headers))
        for name in _LISTS:
            if name in sent:
                sent[name] = b", ".join([value for other, value in headers if other == name])
    return sent


def context_of(scope: MutableMapping[str, Any] | Mapping[str, Any]) -> Context:
    """Return the context of an ASGI scope."""
    return scope[KEY]
