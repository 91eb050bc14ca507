"""Pure ASGI middleware around every request: its id, its time, its metrics, and the last net for errors.

Starlette's BaseHTTPMiddleware is not used because it hides disconnects from the application.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ClientGoneError, Kind, ProblemError
from service.http.context import Context, context_of
from service.metrics import Metrics

if TYPE_CHECKING:
    from service.http.tracing import Traces

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_log = logging.getLogger("pathline")
_access = logging.getLogger("pathline.access")

Endpoint = Callable[[Request], Awaitable[Response]]

CLIENT_GONE = "client_gone"
UNMATCHED = "unmatched"


def _ending(scope: Scope) -> bool:
    """Whether the service is shutting down."""
    return bool(scope.get("app")) and scope["app"].state.service.draining


class Observe:
    """Give each request an id, ``Server-Timing`` and its line in the metrics; answer what nothing else caught."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, access_log: bool = False, traces: "Traces | None" = None
    ) -> None:
        self._app, self._metrics, self._access_log, self._traces = app, metrics, access_log, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = context_of(scope)
        wanted = Headers(scope=scope).get("x-request-id", "")
        if _SANE_ID.fullmatch(wanted):
            context.request_id = wanted
        answer = _Answer(context, send)
        outcome = CLIENT_GONE
        try:
            await self._run(scope, receive, answer, context)
            outcome = context.outcome or (str(answer.status) if answer.status else CLIENT_GONE)
        finally:
            context.end()
            self._count(scope, context, outcome)

    async def _run(self, scope: Scope, receive: Receive, answer: "_Answer", context: Context) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            if answer.status or not _ending(scope):
                raise
            # By the server, which ends and has waited long enough; it would answer in plain text itself.
            detail = "the service is shutting down; send the request to another instance"
            response = ProblemError(Kind.DRAINING, detail).answer(scope["path"], context.request_id)
            await response(scope, receive, answer.send)
        except Exception:
            _log.exception("request %s failed: %s %s", context.request_id, scope["method"], scope["path"])
            if answer.status:
                raise  # half an answer is out: the server must cut the connection
            detail = f"the cause is in the service's log under request {context.request_id}"
            response = ProblemError(Kind.INTERNAL, detail).answer(scope["path"], context.request_id)
            await response(scope, receive, answer.send)

    def _count(self, scope: Scope, context: Context, outcome: str) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED)
        seconds = context.elapsed()
        self._metrics.answered(route, context.model, context.solver, outcome, seconds)
        if self._traces is not None:
            self._traces.record(Headers(scope=scope), scope["method"], route, context, outcome)
        if self._access_log:
            _access.info(
                "%s %s %s %.1f ms request=%s", scope["method"], route, outcome, seconds * 1e3, context.request_id
            )


class Direct:
    """Take requests of a few hot addresses straight to their function, past the framework's routing.

    The framework costs as much as all the rest of the HTTP side does for a small request. Its routes stay: they
    describe these addresses, and answer other methods there.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute], endpoint: Endpoint) -> None:
        self._app, self._endpoint = app, endpoint
        self._routes = {route.path: route for route in routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        try:
            response = await self._endpoint(Request(scope, receive, send))
        except ProblemError as problem:
            response = problem.response(context_of(scope).request_id)
        await response(scope, receive, send)


class _Answer:
    """Wraps `send`: adds the headers, and remembers the status once it is out."""

    def __init__(self, context: Context, send: Send) -> None:
        self.status = 0
        self._context, self._send = context, send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._context.request_id
            timings = self._context.timings | {"total": self._context.elapsed()}
            if self._context.fallback_from is not None:
                headers["X-Pathline-Fallback-From"] = str(self._context.fallback_from)
            headers["Server-Timing"] = ", ".join(f"{name};dur={s * 1e3:.3f}" for name, s in timings.items())
        await self._send(message)
