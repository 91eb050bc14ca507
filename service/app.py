"""The application: settings, engine, registry, metrics, routes and middleware put together."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from engine.engine import Engine
from service import openapi
from service.analysis import diagnose, encode, log_prob
from service.errors import Kind
from service.http.middleware import UNMATCHED, Door, leave_errors
from service.metrics import Metrics
from service.oip import routes as oip
from service.registry.registry import Registry
from service.requests.pipeline import BodyRoute
from service.routes import docs, frontier, health, models, page, replay, sample, stream
from service.settings import Settings, StartError, load_settings
from service.state import VERSION, Service

_ROUTERS = (
    sample.router,
    replay.router,
    stream.router,
    encode.router,
    log_prob.router,
    diagnose.router,
    frontier.measuring,
    page.router,
    models.admin,
    models.router,
    frontier.router,
    health.router,
    docs.router,
    oip.router,
)
"""The register of endpoints, and with them of the operations that the engine is asked for."""

ROUTES = [route for router in _ROUTERS for route in router.routes]
"""Given to the application as they are: included routers would cost each request more than its own endpoint."""


class Application(FastAPI):
    """The framework's application behind our door."""

    door: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start and stop."""
        await (self.door if scope["type"] == "http" else self.pass_on)(scope, receive, send)

    async def pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Leave a request to the framework."""
        await super().__call__(scope, receive, send)


def create_app(settings: Settings | None = None, engine: Engine | None = None) -> Application:
    """Make the ASGI application; its parts are in ``app.state.service``.

    The models are loaded when the application starts (its lifespan). Call ``app.state.service.start(in_thread=True)``
    before that to answer while they are still loading.

    Args:
        settings: from the environment by default.
        engine: replaces the real engine, in tests.

    Raises:
        SettingsError: a setting in the environment is invalid.
        StartError: the model repository is missing or cannot be read, or the device does not exist.
    """
    settings = load_settings() if settings is None else settings
    metrics = Metrics()
    if engine is None:
        if settings.device.startswith("cuda") and not torch.cuda.is_available():
            raise StartError(f"PATHLINE_DEVICE={settings.device}, but torch finds no CUDA device; use cpu or auto")
        engine = Engine(settings, observer=metrics)
    service = Service(settings, engine, Registry(settings, engine, metrics), metrics)
    app = Application(
        title="Pathline",
        summary="Samples from flow-matching models, each request with its own solver",
        version=VERSION,
        openapi_tags=openapi.TAGS,
        lifespan=_lifespan,
        routes=ROUTES,
        redirect_slashes=False,
        # Relative to /openapi.json, so that it is right under any path prefix of a proxy.
        servers=[{"url": settings.root_path or ".", "description": "this service"}],
        docs_url=None,
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},  # nothing is sent
    )
    app.state.service = service
    _expect_requests(ROUTES, service.metrics)
    leave_errors(app)
    solving = [route for route in ROUTES if isinstance(route, BodyRoute)]
    app.door = Door(app.pass_on, service, settings, solving, _traces(settings))
    return app


def _expect_requests(routes: Sequence[BaseRoute], metrics: Metrics) -> None:
    """Start the request counters of all routes at 0: the outcomes that each declares, and those that all share."""
    anywhere = {"200", *(str(kind.status) for kind in (Kind.METHOD, Kind.INTERNAL))}
    files = {str(status) for status in (304, Kind.NO_ROUTE.status)}
    declared: dict[str, set[str]] = {}
    for route in routes:
        if isinstance(route, APIRoute):
            declared.setdefault(route.path, set()).update(map(str, route.responses.keys() - {"default"}))
    for path, outcomes in declared.items():
        metrics.expect(path, anywhere | (outcomes or files))
    metrics.expect(UNMATCHED, {"200", *(str(kind.status) for kind in Kind)})  # answered before any route


def _traces(settings: Settings) -> Any:
    """Return the exporter of spans, or None; OpenTelemetry is imported only if it is used."""
    if not settings.otel_endpoint:
        return None
    try:
        from service.http.tracing import exporting_to

        return exporting_to(settings.otel_endpoint)
    except ImportError as error:
        raise StartError(
            f"PATHLINE_OTEL_ENDPOINT is set, but {error.name or error} is not installed; pip install -e '.[otel]'"
        ) from None


@asynccontextmanager
async def _lifespan(app: Application) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.engine.deliver_on(asyncio.get_running_loop())
    await asyncio.to_thread(service.start)
    try:
        yield
    finally:
        await asyncio.to_thread(service.stop)
        if app.door.traces is not None:
            await asyncio.to_thread(app.door.traces.close)
