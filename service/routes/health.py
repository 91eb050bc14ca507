"""Liveness, readiness and metrics endpoints."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from service import examples
from service.errors import Kind, ProblemError
from service.metrics import CONTENT_TYPE
from service.openapi import OPERATION, answered, problems, read, shown
from service.responses.schemas import Alive, Load, Ready
from service.state import service_of

router = APIRouter(tags=[OPERATION])


@read(
    router,
    "/livez",
    summary="Liveness",
    responses=answered(Alive, alive=examples.ALIVE) | problems(Kind.NOT_READY),
)
async def livez(request: Request) -> Any:
    """Answer 200 while the process works, and 503 once the engine has died or hangs and a restart is needed."""
    fatal_fault = service_of(request).fatal_fault()
    if fatal_fault is not None:
        raise ProblemError(Kind.NOT_READY, fatal_fault)
    return {"status": "alive"}


@read(
    router,
    "/readyz",
    summary="Readiness",
    responses=answered(Ready, ready=examples.READY) | problems(Kind.NOT_READY, Kind.DRAINING),
)
async def readyz(request: Request) -> Any:
    """Answer 200 while the service takes requests: every model has been tried once, and it is not shutting down.

    Until then the 503 lists which models already answer and which are pending.
    """
    service = service_of(request)
    fault = service.unready()
    if fault is not None:
        raise fault
    return {
        "status": "ready",
        "device": str(service.engine.device),
        "models": dict(service.registry.current()),
        "unavailable": service.registry.broken(),
    }


@read(router, "/v1/load", summary="Report the work left", responses=answered(Load, load=examples.LOAD))
async def load(request: Request) -> Any:
    """Return the work left, in network rows and in seconds, for autoscalers and for choosing a replica."""
    service = service_of(request)
    found = service.engine.workload()
    arenas = [
        {
            "model": model,
            "version": version,
            "operation": operation,
            "interactive": arena.interactive,
            "bulk": arena.bulk,
            "budget": arena.budget,
            "tick_s": [{"rows": rows, "seconds": seconds} for rows, seconds in arena.tick_s],
        }
        for (model, version, operation), arena in sorted(found.arenas.items())
    ]
    accepts = service.fault() is None
    return {"accepts": accepts, "jobs": found.jobs, "work": found.work, "seconds": found.seconds, "models": arenas}


@read(
    router,
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}} | shown({"metrics": examples.METRICS})}}},
)
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    text = await asyncio.to_thread(service_of(request).metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})
