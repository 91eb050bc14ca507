"""Requests that an HTTP worker passes on: the application of the engine's process answers them, over the link.

The messages are those of ASGI. The application asks for each part of the body, so the worker reads no more from a
client than the application wants, and it waits once the client is `WINDOW` bytes behind in reading. A client that
disconnects, an early answer and a cut connection look the same to both as without the link.
"""

import asyncio
import itertools
import logging
from collections.abc import MutableMapping
from typing import Any

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Kind, ProblemError
from service.http.context import context_of
from service.http.middleware import respond
from service.workers.link import Arrays, Fields, Link

WINDOW = 1 << 18
"""Bytes of a response that may be under way to a client before the application waits."""

STOPPED = "the service was stopped; send the request to another instance"

_TEXTS = ("http_version", "method", "scheme", "path", "root_path")
_BYTES = ("raw_path", "query_string")

_log = logging.getLogger("pathline")


class Outgoing:
    """The requests that a worker has passed on."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Queue[tuple[Fields, Arrays]]] = {}

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._open)

    def take(self, fields: Fields, arrays: Arrays) -> None:
        """Take a message about one of them."""
        if (queue := self._open.get(fields["call"])) is not None:
            queue.put_nowait((fields, arrays))

    def lose(self) -> None:
        """End all of them: the link is lost."""
        for queue in self._open.values():
            queue.put_nowait(({"kind": "lost"}, ()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, as an ASGI application."""
        number = next(self._numbers)
        queue = self._open[number] = asyncio.Queue()
        readers: set[asyncio.Task[None]] = set()
        self._link.send({"kind": "call", "call": number, "scope": _packed(scope)})
        started = over = False
        try:
            while not over:
                fields, arrays = await queue.get()
                match fields["kind"]:
                    case "want":
                        task = asyncio.ensure_future(self._read(number, receive))
                        readers.add(task)
                        task.add_done_callback(readers.discard)
                    case "out":
                        started = True
                        await send(_event(fields, arrays))
                        self._link.send({"kind": "sent", "call": number, "bytes": fields.get("bytes", 0)})
                    case "over":
                        over = True
                        if fields["failed"]:
                            raise RuntimeError("the engine's process could not complete the response")
                    case _:
                        over = True
                        if started:
                            raise RuntimeError("the engine's process has ended")
                        await _stopped(scope, receive, send)
        finally:
            del self._open[number]
            for task in readers:
                task.cancel()
            if not over:
                self._link.send({"kind": "leave", "call": number})

    async def _read(self, number: int, receive: Receive) -> None:
        message = await receive()
        fields = {"kind": "event", "call": number, "type": message["type"], "more": message.get("more_body", False)}
        body = message.get("body", b"")
        self._link.send(fields, [np.frombuffer(body, np.uint8)] if body else ())


class Incoming:
    """The requests that the workers have passed on, in the engine's process.

    Args:
        app: answers them.
        link: to the worker.
        tasks: the server's tasks, which it waits for when it ends.
    """

    def __init__(self, app: ASGIApp, link: Link, tasks: set[asyncio.Task[None]]) -> None:
        self._app, self._link, self._tasks = app, link, tasks
        self._open: dict[int, _Call] = {}

    def take(self, fields: Fields, arrays: Arrays) -> None:
        """Take a message about one of them."""
        number = fields["call"]
        if fields["kind"] == "call":
            call = self._open[number] = _Call(number, self._link)
            task = asyncio.ensure_future(self._answer(call, _unpacked(fields["scope"])))
            call.task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif (call := self._open.get(number)) is not None:
            call.take(fields, arrays)

    def lose(self) -> None:
        """Cancel all of them: their worker has ended."""
        for call in list(self._open.values()):
            call.leave()

    async def _answer(self, call: "_Call", scope: Scope) -> None:
        failed = True
        try:
            await self._app(scope, call.receive, call.send)
            failed = False
        except Exception:
            _log.exception("a request that an HTTP worker passed on failed")
        finally:
            self._open.pop(call.number, None)
            self._link.send({"kind": "over", "call": call.number, "failed": failed})


class _Call:
    """One request: the receive and send of the application."""

    def __init__(self, number: int, link: Link) -> None:
        self.number, self._link = number, link
        self.task: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._wanted = self._gone = False
        self._behind = 0  # bytes sent that the worker has not passed on yet
        self._caught_up = asyncio.Event()

    def take(self, fields: Fields, arrays: Arrays) -> None:
        match fields["kind"]:
            case "event" if fields["type"] == "http.request":
                body = arrays[0].tobytes() if arrays else b""
                self._events.put_nowait({"type": "http.request", "body": body, "more_body": fields["more"]})
            case "event":
                self._disconnect()
            case "sent":
                self._behind -= fields["bytes"]
                self._caught_up.set()
            case _:
                self.leave()

    def leave(self) -> None:
        """End the request, as its client or its worker is gone."""
        self._disconnect()
        if self.task is not None:
            self.task.cancel()

    def _disconnect(self) -> None:
        self._gone = True
        self._events.put_nowait({"type": "http.disconnect"})
        self._caught_up.set()

    async def receive(self) -> Message:
        if self._gone and self._events.empty():
            return {"type": "http.disconnect"}
        if not self._wanted and not self._gone:
            self._wanted = True
            self._link.send({"kind": "want", "call": self.number})
        event = await self._events.get()
        self._wanted = False
        return event

    async def send(self, message: Message) -> None:
        fields: Fields = {"kind": "out", "call": self.number, "type": message["type"]}
        if message["type"] == "http.response.start":
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            self._link.send(fields | {"status": message["status"], "headers": headers})
            return
        body = np.frombuffer(message.get("body", b""), np.uint8)
        fields |= {"more": message.get("more_body", False), "bytes": body.nbytes}
        self._link.send(fields, [body] if body.nbytes else ())
        self._behind += body.nbytes
        while self._behind > WINDOW and not self._gone:
            self._caught_up.clear()
            await self._caught_up.wait()


def _packed(scope: MutableMapping[str, Any]) -> Fields:
    packed = {name: scope.get(name, "") for name in _TEXTS}
    packed |= {name: scope.get(name, b"").decode("latin-1") for name in _BYTES}
    packed["headers"] = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    return packed | {name: scope.get(name) for name in ("client", "server", "asgi")}


def _unpacked(packed: Fields) -> Scope:
    scope: Scope = {"type": "http", **packed, **{name: packed[name].encode("latin-1") for name in _BYTES}}
    scope["headers"] = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in packed["headers"]]
    for name in ("client", "server"):
        scope[name] = None if packed[name] is None else tuple(packed[name])
    return scope


def _event(fields: Fields, arrays: Arrays) -> Message:
    if fields["type"] == "http.response.start":
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields["headers"]]
        return {"type": fields["type"], "status": fields["status"], "headers": headers}
    return {"type": fields["type"], "body": arrays[0].tobytes() if arrays else b"", "more_body": fields["more"]}


async def _stopped(scope: Scope, receive: Receive, send: Send) -> None:
    response = respond(scope, ProblemError(Kind.DRAINING, STOPPED))
    response.headers["X-Request-ID"] = context_of(scope).request_id
    await response(scope, receive, send)
