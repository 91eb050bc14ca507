"""Pure ASGI middleware: sub-path, burst limit, request id, metrics, tracing and errors.

Starlette's BaseHTTPMiddleware is not used because it hides disconnects from the application.
"""

import asyncio
import logging
import re
from collections import deque
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ClientGoneError, Kind, ProblemError, invalid_fields, shutting_down
from service.http.context import Connection, Context, connection_of, context_of, header
from service.metrics import CLIENT_GONE, Metrics

if TYPE_CHECKING:
    from service.http.tracing import Traces  # needs OpenTelemetry, which is optional

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_log = logging.getLogger("pathline")
_access = logging.getLogger("pathline.access")

UNMATCHED = "unmatched"

BURST = 8
"""Requests that start in one turn of the event loop; each takes a fraction of a millisecond to check and submit."""


class Observe:
    """Gives each request an id, ``Server-Timing`` and its counts in the metrics; answers errors nothing else caught.

    It is around all other middleware, and tells the request's connection when its response begins and ends.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        access_log: bool = False,
        traces: "Traces | None" = None,
        url_path: str = "",
    ) -> None:
        self._app, self._metrics, self._access_log, self._traces = app, metrics, access_log, traces
        self._url_path = url_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = context_of(scope)
        context.url_path = self._url_path
        sent_id = header(scope, b"x-request-id")
        if sent_id is not None and _SANE_ID.fullmatch(sent_id):
            context.request_id = sent_id
        response = _ObservedSend(context, send, connection_of(scope))
        outcome = CLIENT_GONE
        try:
            await self._run(scope, receive, response, context)
            outcome = context.outcome or (str(response.status) if response.status else CLIENT_GONE)
        finally:
            context.end()
            self._count(scope, context, outcome)

    async def _run(self, scope: Scope, receive: Receive, response: "_ObservedSend", context: Context) -> None:
        try:
            await self._app(scope, receive, response.send)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            if response.status or not _is_draining(scope):
                raise
            # Cancelled by the server because its drain time is over; it would answer in plain text.
            await respond(scope, shutting_down())(scope, receive, response.send)
        except Exception:
            _log.exception("request %s failed: %s %s", context.request_id, scope["method"], scope["path"])
            if response.status:
                raise  # part of a response is sent: the server must cut the connection
            detail = f"the cause is in the service's log under request {context.request_id}"
            await respond(scope, ProblemError(Kind.INTERNAL, detail))(scope, receive, response.send)

    def _count(self, scope: Scope, context: Context, outcome: str) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED)
        seconds = context.elapsed()
        self._metrics.answered(route, outcome, seconds)
        if context.problem is not None:
            self._metrics.failed(context.problem)
        if self._traces is not None:
            self._traces.record(Headers(scope=scope), scope["method"], route, context, outcome)
        if self._access_log:
            _access.info(
                "%s %s %s %.1f ms request=%s", scope["method"], route, outcome, seconds * 1e3, context.request_id
            )


class _ObservedSend:
    """Wraps `send`: adds headers and remembers the status that was sent."""

    def __init__(self, context: Context, send: Send, connection: Connection | None) -> None:
        self.status = 0
        self._context, self._send, self._connection = context, send, connection

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            timings = self._context.timings | {"total": self._context.elapsed()}
            durations = ", ".join([f"{name};dur={s * 1e3:.3f}" for name, s in timings.items()])
            message["headers"] = headers = [
                *message["headers"],
                (b"x-request-id", self._context.request_id.encode()),
                (b"x-content-type-options", b"nosniff"),
                (b"server-timing", durations.encode()),
            ]
            if self._context.fallback_from is not None:
                headers.append((b"x-pathline-fallback-from", b"%d" % self._context.fallback_from))
            if self._connection is not None:
                self._connection.response_begins()
        await self._send(message)
        if self._connection is not None and message["type"] == "http.response.body" and not message.get("more_body"):
            self._connection.response_ends()


def _is_draining(scope: Scope) -> bool:
    return bool(scope.get("app")) and scope["app"].state.service.draining


class BurstLimiter:
    """Lets at most `width` tasks continue in each turn of the event loop, first come, first served.

    The event loop runs whatever is ready before it polls the network again. A hundred requests that arrive at once, or
    a hundred results that are due at once, would block it, and with it /livez, for tens of milliseconds.
    """

    def __init__(self, width: int = BURST) -> None:
        self._width = self._left = width
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop in which the next turn is scheduled

    async def enter(self) -> None:
        """Return at once, or in a later turn if this one is full."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._left = loop, self._width
            self._waiting.clear()  # any that remain belong to a loop that has ended
            loop.call_soon(self._turn, loop)
        if self._left:
            self._left -= 1
            return
        admitted = loop.create_future()
        self._waiting.append(admitted)
        await admitted

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._width
        while self._left and self._waiting:
            admitted = self._waiting.popleft()
            if not admitted.done():  # else its request was cancelled
                admitted.set_result(None)
                self._left -= 1
        if self._left < self._width:
            loop.call_soon(self._turn, loop)
        else:
            self._loop = None


class LimitBursts:
    """Passes POST requests through the burst limiter, so that other requests, such as health checks, need not wait."""

    def __init__(self, app: ASGIApp, limiter: BurstLimiter) -> None:
        self._app, self._limiter = app, limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._limiter.enter()
        await self._app(scope, receive, send)


class SubPath:
    """Serves under a path that a proxy does not strip, as in ``/pathline/v1/sample``; other paths are unchanged.

    Only the setting decides: any client could send a header such as X-Forwarded-Prefix, and use it to reach paths that
    a proxy forbids.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http":
            if scope["path"] == self._root and scope["method"] in ("GET", "HEAD"):  # links of the page need the slash
                query = scope.get("query_string", b"").decode("latin-1")
                await RedirectResponse(f"{self._root}/{query and '?'}{query}")(scope, receive, send)
                return
            if scope["path"].startswith(f"{self._root}/"):
                scope["path"] = scope["path"][len(self._root) :]  # in place: middleware around sees the route
        await self._app(scope, receive, send)


def handle_errors(app: FastAPI) -> None:
    """Make the framework's own errors (no route, wrong method, a bad parameter) problems, too."""

    async def on_problem(request: Request, error: Exception) -> Response:
        return respond(request.scope, _as_problem(request, error))

    for kind in (ProblemError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, on_problem)


def respond(scope: Scope, problem: ProblemError) -> Response:
    """Return the response for an error of a request, and note the error in its context."""
    context = context_of(scope)
    context.problem = problem.kind
    return problem.response_at(scope["path"], context.request_id, context.url_path)


def _as_problem(request: Request, error: Exception) -> ProblemError:
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        faults = [(".".join(map(str, e["loc"][1:])), e["msg"]) for e in error.errors()]
        return invalid_fields([{"field": field, "message": f"{field}: {message}"} for field, message in faults])
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(getattr(error, "headers", None) or {})
    path, method = request.url.path, request.method
    if status == 404:
        return ProblemError(Kind.NO_ROUTE, f"there is nothing at {path}; / lists the addresses", headers=headers)
    if status == 405:
        allowed = ", ".join(sorted(headers.pop("Allow", "").split(", ")))  # the framework keeps them in a set
        headers["Allow"] = allowed
        return ProblemError(Kind.METHOD, f"{path} does not support {method}; it supports {allowed}", headers=headers)
    return ProblemError(
        Kind.BAD_REQUEST if status < 500 else Kind.INTERNAL, f"{method} {path} was refused", headers=headers
    )
