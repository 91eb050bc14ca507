"""Refusals before a body is validated: under overload, most requests end here.

What admission asks depends on everything in a request but its seed and its time limit. So the job of a request that
was refused stands for all others of its kind, which need no job of their own to be refused. Whatever this module
cannot tell is left to the route.
"""

from typing import Any

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.job import Job
from service.errors import Kind, overloaded_messages
from service.http.context import context_of
from service.requests.schemas import INTEGER_LIMIT
from service.state import Service

_PATHS = ("/v1/sample", "/sample")

_MAX_BYTES = 1024
"""A larger body takes longer to look at than a refusal saves."""

_DIGITS = 4
"""Of the length of a body that is looked at."""

_MAX_KINDS = 32

_DECIDING = (b"content-type", b"content-encoding", b"accept")
"""Headers that are part of a kind: a request with others than the refused one may get another answer."""


def _kind_of(scope: Scope, body: bytes) -> tuple[object, Any] | None:
    """Return the kind of a request, and the time limit that it states; None for one that the route must see."""
    if not 0 < len(body) <= _MAX_BYTES:
        return None
    try:
        members = from_json(body)
    except ValueError:
        return None
    if type(members) is not dict or "budget" in members:  # what a budget chooses depends on the load
        return None
    seed, limit_s = members.pop("seed", None), members.pop("timeout_s", None)
    if seed is not None and (type(seed) is not int or not 0 <= seed < INTEGER_LIMIT):
        return None
    headers = [each for each in scope["headers"] if each[0] in _DECIDING]
    return (scope["path"], repr(headers), repr(members)), limit_s


def _is_small(scope: Scope) -> bool:
    """Whether a body is stated to be small, and its client sends it without being asked to."""
    small = False
    for name, value in scope["headers"]:
        if name == b"content-length":
            small = len(value) <= _DIGITS
        elif name == b"expect":
            return False
    return small


def note(service: Service, scope: Scope, job: Job) -> None:
    """Note the job of a request that was refused because of overload."""
    if scope["path"] in _PATHS and (kind := _kind_of(scope, context_of(scope).text)) is not None:
        refused = service.refused
        refused.pop(kind[0], None)
        refused[kind[0]] = (scope["route"], job)
        if len(refused) > _MAX_KINDS:
            del refused[next(iter(refused))]


class RefuseEarly:
    """ASGI middleware: answers 429 to requests for samples that would be refused, before they are validated."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if not self._service.refused or scope["type"] != "http" or scope["path"] not in _PATHS or not _is_small(scope):
            await self._app(scope, receive, send)
            return
        received = [await receive()]
        body = received[0].get("body", b"")
        while received[-1].get("more_body"):
            received.append(await receive())
            body += received[-1].get("body", b"")
        answer = self._refusal(scope, body)
        if answer is not None:
            await send(answer[0])
            await send(answer[1])
            return

        async def again() -> Message:
            return received.pop(0) if received else await receive()

        await self._app(scope, again, send)

    def _refusal(self, scope: Scope, body: bytes) -> tuple[Message, Message] | None:
        service = self._service
        if scope["method"] != "POST" or service.draining:
            return None
        kind = _kind_of(scope, body)
        if kind is None or (like := service.refused.get(kind[0])) is None:
            return None
        (route, job), limit_s, limits = like, kind[1], service.settings
        limit_s = limits.timeout_s if limit_s is None else limit_s
        if type(limit_s) not in (int, float) or not 0 < limit_s <= limits.max_timeout_s:
            return None
        error = service.engine.refusal(job, limit_s)
        if error is None:
            return None
        context = context_of(scope)
        scope["route"], context.problem = route, Kind.OVERLOADED  # for the metrics
        return overloaded_messages(error, context.request_id, context.url_path)
