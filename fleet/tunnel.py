"""The tunnel through Ray: an HTTP request passes through unchanged, and its response returns message by message.

Every route, error, stream and header of the service is preserved; the ingress looks only at sizes and work.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleet.work import work_of
from service.errors import Kind, ProblemError
from service.settings import Settings

_AHEAD = 16  # messages buffered for a slow reader
_END_S = 10.0
_SCOPE = (
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "client",
    "server",
)


@dataclass(frozen=True)
class Call:
    """A request in transit.

    Attributes:
        scope: its ASGI scope, as plain data.
        body: the whole body, or just enough to exceed the limit, so that the service refuses it.
        work: network rows summed over all calls.
    """

    scope: dict[str, Any]
    body: bytes
    work: float


class Answer(Protocol):
    """A response in progress, as batches of messages."""

    def __aiter__(self) -> AsyncIterator[list[Message]]: ...

    def cancel(self) -> None:
        """Tell the replica that the client has disconnected."""
        ...


class Local:
    """A response from this process.

    Args:
        messages: the batches of its messages, as from `answered`; `Front` closes them.
    """

    def __init__(self, messages: AsyncIterator[list[Message]]) -> None:
        self._messages = messages

    def __aiter__(self) -> AsyncIterator[list[Message]]:
        return self._messages

    def cancel(self) -> None:
        """Do nothing: `Front` closes the messages."""


class Front:
    """The ingress: reads a request, estimates its work and passes it on; keeps no state.

    Ray cancels it when the client disconnects, and it then cancels the call.

    Args:
        dispatch: sends a call to a replica.
        settings: those of the replicas. Reading of a body stops beyond `max_body_bytes`, and a request with headers
            beyond `max_header_bytes` is refused.
    """

    def __init__(self, dispatch: Callable[[Call], Answer], settings: Settings) -> None:
        self._dispatch, self._settings = dispatch, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        limits = self._settings
        if (size := sum(len(name) + len(value) for name, value in scope["headers"])) > limits.max_header_bytes:
            problem = ProblemError(
                Kind.HEAD_TOO_LARGE, f"the headers have {size} bytes, the limit is {limits.max_header_bytes}"
            )
            path = scope["path"].removeprefix(limits.root_path)
            await problem.response_at(path, request_id(scope), limits.url_path)(scope, receive, send)
            return
        body = await _body(receive, limits.max_body_bytes)
        if body is None:
            return
        plain = {name: scope[name] for name in _SCOPE if name in scope}
        call = Call(plain, body, work_of(scope["path"], body))
        answer = self._dispatch(call)
        try:
            await _pass(answer, send)
        except BaseException:
            answer.cancel()
            raise


def request_id(scope: Scope) -> str:
    """Return the X-Request-ID of a request, or an empty string if it has none."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")


async def _body(receive: Receive, limit: int) -> bytes | None:
    parts, size, more = [], 0, True
    while more and size <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    return b"".join(parts)


async def _pass(answer: Answer, send: Send) -> None:
    batches = aiter(answer)
    try:
        async for messages in batches:
            for message in messages:
                if message["type"] == "http.response.start":  # Ray's proxy adds this header too
                    message["headers"] = [pair for pair in message["headers"] if pair[0].lower() != b"x-request-id"]
                await send(message)
    finally:
        if isinstance(batches, AsyncGenerator):  # cancelled in `send`, it would stay open until it is collected
            await batches.aclose()


async def answered(app: ASGIApp, call: Call) -> AsyncIterator[list[Message]]:
    """Yield an application's answer to a call; closing the iterator acts as a client disconnect.

    Messages that are ready together are yielded together, because sending an item costs as much as a small response.
    """
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    room, gone, given = asyncio.Semaphore(_AHEAD), asyncio.Event(), False

    async def receive() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": call.body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await room.acquire()
        messages.put_nowait({**message, "headers": list(message["headers"])} if "headers" in message else dict(message))

    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, **call.scope}
    running = asyncio.ensure_future(app(scope, receive, send))
    running.add_done_callback(lambda _: messages.put_nowait(None))
    try:
        over = False
        while not over:
            ready = [await messages.get()]
            while not messages.empty():
                ready.append(messages.get_nowait())
            over = ready[-1] is None
            found = [message for message in ready if message is not None]
            for _ in found:
                room.release()
            if found:
                yield found
        running.result()
    finally:
        gone.set()
        for _ in range(_AHEAD):
            room.release()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(running, _END_S)
