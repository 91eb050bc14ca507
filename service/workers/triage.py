"""Triage in an HTTP worker: decides for each request whether the worker handles it or passes it on."""

import math
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.checkpoint.card import Card
from service.registry.version import Lease
from service.requests.parsing import byte_count
from service.requests.schemas import DEFAULT_NUM_SAMPLES
from service.responses.arrays import NUMBERS_PER_PIECE
from service.workers.calls import Outgoing
from service.workers.remote import RemoteModels

SMALL_BODY = 1 << 14
"""Bytes; requests with a larger body are passed on."""


class Triage:
    """ASGI application: handles small requests for samples of the models at hand, and `/livez`; passes all others on.

    A request that is handled here is answered as the engine's process would answer it, by the same code.

    Args:
        app: the application, for requests that are handled here.
        outgoing: passes requests on.
        models: the models at hand.
        root_path: the path under which a proxy publishes the service.
    """

    def __init__(self, app: ASGIApp, outgoing: Outgoing, models: RemoteModels, root_path: str) -> None:
        self._app, self._outgoing, self._models = app, outgoing, models
        self._paths = {f"{root}/{path}" for root in ("", root_path) for path in ("v1/sample", "sample")}
        self._livez = {f"{root}/livez" for root in ("", root_path)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http" or (scope["path"] in self._livez and scope["method"] in ("GET", "HEAD")):
            await self._app(scope, receive, send)
            return
        if scope["method"] != "POST" or scope["path"] not in self._paths or not _has_small_body(scope):
            await self._outgoing(scope, receive, send)
            return
        replay = _Replay(receive)
        lease = self._lease(await replay.body())
        if lease is None:
            await self._outgoing(scope, replay, send)
            return
        try:
            await self._app(scope, replay, send)
        finally:
            lease.release()

    def _lease(self, body: bytes | None) -> Lease | None:
        """Return a lease of the requested model if the request can be handled here, else None."""
        try:
            request = orjson.loads(body or b"")
        except orjson.JSONDecodeError:
            return None
        if not isinstance(request, dict) or "budget" in request:  # which needs the engine's pace
            return None
        model = self._models.current(request.get("model"))
        if model is None or request.get("version") not in (None, model.version):
            return None
        if not _is_small(request, model.card):
            return None
        lease = self._models.lease(model.name)
        return lease if lease.take(model) else None


class _Replay:
    """Receives a request whose body has been read already."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[Message] = []

    async def body(self) -> bytes | None:
        """Read the whole body; None if the client disconnects before its end."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            self._messages.append(message)
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def __call__(self) -> Message:
        return self._messages.pop(0) if self._messages else await self._receive()


def _has_small_body(scope: Scope) -> bool:
    """Whether the body can be read here; one that its client sends only once it is asked for cannot."""
    if any(name == b"expect" for name, _ in scope["headers"]):
        return False
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    size = byte_count(length.decode("latin-1"))
    return size is not None and size <= SMALL_BODY


def _is_small(request: Mapping[str, Any], card: Card) -> bool:
    """Whether the response is small enough to be built at once."""
    n, saved = request.get("num_samples", DEFAULT_NUM_SAMPLES), request.get("save_at")
    if type(n) is not int or request.get("trace") == "full":
        return False
    numbers = max(math.prod(card.event_of()), math.prod(card.data_of()))
    return n * numbers * (1 + (len(saved) if isinstance(saved, list) else 0)) <= NUMBERS_PER_PIECE
