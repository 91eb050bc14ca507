"""Context of one HTTP request: id, start time, reserved memory, and the route's facts for metrics and headers."""

import random
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from service.errors import Kind
from service.ledger import Hold

CONNECTION = "pathline.connection"
"""Key of a request's `Connection` in the state of its scope."""

_KEY = "pathline"


class Connection(Protocol):
    """The connection of a request, as the application knows it."""

    def response_begins(self) -> None:
        """Note that nothing else can be sent in its place."""
        ...

    def response_ends(self) -> None:
        """Take the next request."""
        ...


class Returnable(Protocol):
    """The lease of a model, as a request knows it."""

    def release(self) -> None:
        """Return it; a second call does nothing."""
        ...


@dataclass
class Context:
    """One request: its id, when it arrived, and the facts that its route adds for metrics and headers.

    Attributes:
        request_id: sent by the client, else made here.
        url_path: path under which users reach the service, as ``/pathline``; usually empty.
        started: arrival, in `time.perf_counter`.
        model: name of the model; empty until it is known to exist, so that it can be an attribute of a span.
        solver: name of the solver; empty likewise.
        outcome: how it ended, if the status code does not tell.
        problem: kind of the error it was answered with, or None.
        fallback_from: the version that cannot be loaded, so that an older one answers in its place; usually None.
        media_type: format of the response that the client prefers.
        large: whether its body takes long to handle.
        timings: seconds by name, shown in ``Server-Timing``.
        text: its body, if that is small.
        hold: memory reserved for the request until it is over.
        body: memory reserved for its body until it is parsed.
        lease: lease of its model until it is over.
    """

    request_id: str = field(default_factory=lambda: f"{random.getrandbits(128):032x}")
    url_path: str = ""
    started: float = field(default_factory=time.perf_counter)
    model: str = ""
    solver: str = ""
    outcome: str = ""
    problem: Kind | None = None
    fallback_from: int | None = None
    media_type: str = ""
    large: bool = False
    timings: dict[str, float] = field(default_factory=dict)
    text: bytes = b""
    hold: Hold | None = None
    body: Hold | None = None
    lease: Returnable | None = None
    _over: bool = False

    def keep(self, hold: Hold) -> None:
        """Keep reserved memory until the request is over; may be called from any thread, even after that."""
        self.hold = hold
        if self._over:
            hold.release()

    def keep_lease(self, lease: Returnable) -> None:
        """Keep the lease of its model until the request is over; may be called from any thread, even after that."""
        self.lease = lease
        if self._over:
            lease.release()

    def drop_body(self) -> None:
        """Release the memory of the body, which has been parsed."""
        if self.body is not None:
            self.body.release()

    def end(self) -> None:
        """End the request: its response is sent, or its client has disconnected."""
        self._over = True
        self.drop_body()
        if self.hold is not None:
            self.hold.release()
        if self.lease is not None:
            self.lease.release()

    def elapsed(self) -> float:
        """Return the seconds since the request arrived."""
        return time.perf_counter() - self.started


def connection_of(scope: MutableMapping[str, Any]) -> Connection | None:
    """Return the connection of an ASGI scope; None without a server of ours."""
    return scope.get("state", {}).get(CONNECTION)


def header(scope: MutableMapping[str, Any], name: bytes) -> str | None:
    """Return the first value of a header of a request, its name in lower case; None if it was not sent."""
    for other, value in scope["headers"]:
        if other == name:
            return value.decode("latin-1")
    return None


def context_of(scope: MutableMapping[str, Any]) -> Context:
    """Return the context of an ASGI scope, made on first use."""
    context = scope.get(_KEY)
    if context is None:
        context = scope[_KEY] = Context()
    return context
