"""The door of the service: what every HTTP request passes, once; and how errors become responses.

    id, address -> host and origin -> (CORS) -> key -> burst limit -> a route that solves, or the framework

It is pure ASGI: Starlette's BaseHTTPMiddleware hides disconnects from the application. Requests to solve go from here
straight to their route, as each layer of the framework would cost them more than the check of their body.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import REFUSALS, ClientGoneError, Kind, ProblemError, invalid_fields, problem_of, shutting_down
from service.http.access import CORS, SAFE, Keys, OwnPages
from service.http.compression import Compressor
from service.http.context import KEY, Context, context_of
from service.http.negotiation import accepts_coding
from service.metrics import CLIENT_GONE
from service.settings import Settings

if TYPE_CHECKING:
    from service.http.tracing import Traces  # needs OpenTelemetry, which is optional

_log = logging.getLogger("pathline")
_access = logging.getLogger("pathline.access")

UNMATCHED = "unmatched"

BURST = 8
"""Requests that start in one turn of the event loop; each takes a fraction of a millisecond to check and submit."""


class Door:
    """Gives each request its `Context`, checks who sends it, counts it, and answers errors that nothing else caught.

    Args:
        app: what answers all other requests.
        service: the parts of the application, a `service.state.Service`.
        settings: of the service.
        routes: that POST requests go to directly.
        traces: records spans; None for no traces.
    """

    def __init__(
        self,
        app: ASGIApp,
        service: Any,
        settings: Settings,
        routes: Sequence[Route] = (),
        traces: "Traces | None" = None,
    ) -> None:
        self._app, self._service, self.traces = app, service, traces
        self._root, self._url_path, self._access_log = settings.root_path, settings.url_path, settings.access_log
        self._pages = OwnPages(settings)
        self._keys = Keys(settings) if settings.api_keys else None
        self._fixed = {route.path: route for route in routes if "{" not in route.path}
        self._with_names = [route for route in routes if "{" in route.path]
        origins = settings.cors_origins
        self._inner: ASGIApp = CORSMiddleware(self._enter, allow_origins=origins, **CORS) if origins else self._enter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        context = scope[KEY] = Context(scope, receive, send, self._service)
        context.url_path = self._url_path
        coding = context.sent[b"accept-encoding"].decode("latin-1") if b"accept-encoding" in context.sent else ""
        send = Compressor(context.send).send if coding and accepts_coding("gzip", coding) else context.send
        try:
            if not self._root or not await self._moved(scope, receive, context.send):
                detail = self._pages.fault(context)
                if detail is None:
                    await self._inner(scope, receive, send)
                else:
                    problem = ProblemError(Kind.FORBIDDEN, detail, unread=scope["method"] not in SAFE)
                    await respond(scope, problem)(scope, receive, send)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            if context.status or not self._service.draining:
                context.outcome = CLIENT_GONE
                raise
            # Cancelled by the server because its drain time is over; it would answer in plain text.
            await respond(scope, shutting_down())(scope, receive, context.send)
        except Exception:
            _log.exception("request %s failed: %s %s", context.request_id, scope["method"], scope["path"])
            if context.status:
                context.outcome = CLIENT_GONE
                raise  # part of a response is sent: the server must cut the connection
            detail = f"the cause is in the service's log under request {context.request_id}"
            await respond(scope, ProblemError(Kind.INTERNAL, detail))(scope, receive, context.send)
        finally:
            context.end()
            self._count(scope, context, context.outcome or (str(context.status) if context.status else CLIENT_GONE))

    async def _moved(self, scope: Scope, receive: Receive, send: Send) -> bool:
        """Take off the path under which a proxy publishes the service, if a request has it; True if it was answered.

        Only the setting decides: any client could send a header such as X-Forwarded-Prefix, and use it to reach paths
        that a proxy forbids.
        """
        path = scope["path"]
        if path == self._root and scope["method"] in ("GET", "HEAD"):  # links of the page need the slash
            query = scope.get("query_string", b"").decode("latin-1")
            await RedirectResponse(f"{self._root}/{query and '?'}{query}")(scope, receive, send)
            return True
        if path.startswith(f"{self._root}/"):
            scope["path"] = path[len(self._root) :]
        return False

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request from a page that may send it, and errors with a response of their own."""
        context = context_of(scope)
        try:
            if self._keys is not None:
                self._keys.check(scope)
            if scope["method"] == "POST":
                if (turn := self._service.burst_limiter.place()) is not None:
                    await turn
                route = self._fixed.get(scope["path"]) or self._named(scope)
                if route is not None:
                    scope["route"] = route
                    await route.handle(scope, receive, send)
                    return
            await self._app(scope, receive, send)
        except (ProblemError, *REFUSALS, HTTPException, RequestValidationError) as error:
            if context.status:
                raise RuntimeError("an error after the response has begun") from error
            await respond(scope, _as_problem(scope, error))(scope, receive, send)

    def _named(self, scope: Scope) -> Route | None:
        """Return the route with names in its path that a request is for, and note these names."""
        for route in self._with_names:
            match, changes = route.matches(scope)
            if match is Match.FULL:
                scope.update(changes)
                return route
        return None

    def _count(self, scope: Scope, context: Context, outcome: str) -> None:
        route = getattr(scope.get("route"), "path", UNMATCHED)
        seconds = context.elapsed()
        self._service.metrics.answered(route, outcome, seconds)
        if context.problem is not None:
            self._service.metrics.failed(context.problem)
        if self.traces is not None:
            self.traces.record(Headers(scope=scope), scope["method"], route, context, outcome)
        if self._access_log:
            _access.info(
                "%s %s %s %.1f ms request=%s", scope["method"], route, outcome, seconds * 1e3, context.request_id
            )


class BurstLimiter:
    """Lets at most `width` tasks continue in each turn of the event loop, first come, first served.

    The event loop runs whatever is ready before it polls the network again. A hundred requests that arrive at once, or
    a hundred results that are due at once, would block it, and with it /livez, for tens of milliseconds.
    """

    def __init__(self, width: int = BURST) -> None:
        self._width = self._left = width
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop in which the next turn is scheduled

    def place(self) -> asyncio.Future[None] | None:
        """Take a place in this turn; if it is full, return what to await for one in a later turn."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._left = loop, self._width
            self._waiting.clear()  # any that remain belong to a loop that has ended
            loop.call_soon(self._turn, loop)
        if self._left:
            self._left -= 1
            return None
        admitted = loop.create_future()
        self._waiting.append(admitted)
        return admitted

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


def leave_errors(app: FastAPI) -> None:
    """Let all errors of the framework (no route, wrong method, a bad parameter) and of endpoints reach the door."""

    async def leave(_: Request, error: Exception) -> Response:
        raise error

    for kind in (HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, leave)


def respond(scope: Scope, problem: ProblemError) -> Response:
    """Return the response for an error of a request, and note the error in its context."""
    context = context_of(scope)
    context.problem = problem.kind
    return problem.response(context.request_id, context.url_path, scope["path"])


def _as_problem(scope: Scope, error: Exception) -> ProblemError:
    if isinstance(error, (ProblemError, *REFUSALS)):
        return problem_of(error)
    if isinstance(error, RequestValidationError):
        faults = [(".".join(map(str, e["loc"][1:])), e["msg"]) for e in error.errors()]
        return invalid_fields([{"field": field, "message": f"{field}: {message}"} for field, message in faults])
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(getattr(error, "headers", None) or {})
    path, method = scope["path"], scope["method"]
    if status == 404:
        return ProblemError(Kind.NO_ROUTE, f"there is nothing at {path}; / lists the addresses", headers=headers)
    if status == 405:
        allowed = ", ".join(sorted(headers.pop("Allow", "").split(", ")))  # the framework keeps them in a set
        headers["Allow"] = allowed
        return ProblemError(Kind.METHOD, f"{path} does not support {method}; it supports {allowed}", headers=headers)
    return ProblemError(
        Kind.BAD_REQUEST if status < 500 else Kind.INTERNAL, f"{method} {path} was refused", headers=headers
    )
