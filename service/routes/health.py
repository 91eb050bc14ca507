"""Addresses for those who run the service: is it alive, is it ready, what has it counted."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from service import examples
from service.errors import Kind, ProblemError
from service.metrics import CONTENT_TYPE
from service.openapi import answered, problems, shown
from service.requests.schemas import Alive, Ready
from service.routes.reading import read
from service.state import service_of

router = APIRouter()


@read(router, "/livez", responses=answered(Alive, alive=examples.ALIVE) | problems(Kind.NOT_READY))
async def livez(request: Request) -> Any:
    """Answer 200 while the process can work; 503 once the engine has died or hangs, so that it is restarted."""
    ailment = service_of(request).ailment()
    if ailment is not None:
        raise ProblemError(Kind.NOT_READY, ailment)
    return {"status": "alive"}


@read(
    router,
    "/readyz",
    responses=answered(Ready, ready=examples.READY) | problems(Kind.NOT_READY, Kind.DRAINING),
)
async def readyz(request: Request) -> Any:
    """Answer 200 while the service takes requests: every model has been tried once, and it is not shutting down.

    Until then the 503 says which models answer already and which are pending.
    """
    service = service_of(request)
    fault = service.unready()
    if fault is not None:
        raise fault
    return {
        "status": "ready",
        "device": str(service.engine.device),
        "models": dict(service.models.current()),
        "unavailable": service.models.broken(),
    }


@read(
    router,
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}} | shown({"metrics": examples.METRICS})}}},
)
async def metrics(request: Request) -> Response:
    """Return all metrics in the Prometheus text format."""
    text = await asyncio.to_thread(service_of(request).metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})
