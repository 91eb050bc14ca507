"""Liveness, readiness and metrics endpoints."""

import asyncio
from typing import Any

from fastapi import Request, Response

from service import examples
from service.errors import Kind, ProblemError
from service.metrics import CONTENT_TYPE
from service.openapi import OPERATION, Router, shown
from service.responses.schemas import Load, Ready
from service.state import service_of

router = Router(tags=[OPERATION])


@router.read("/livez", "Liveness", Kind.NOT_READY)
async def livez(request: Request) -> dict[str, str]:
    """Answer 200 while the process works, and 503 once the engine has died or hangs and a restart is needed."""
    fatal_fault = service_of(request).fatal_fault()
    if fatal_fault is not None:
        raise ProblemError(Kind.NOT_READY, fatal_fault)
    return {"status": "alive"}


@router.read("/readyz", "Readiness", Kind.NOT_READY, Kind.DRAINING)
async def readyz(request: Request) -> Ready:
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


@router.read("/v1/load", "Report the work left")
async def load(request: Request) -> Load:
    """Return the work left, in network rows and in seconds, for autoscalers and for choosing a replica."""
    service = service_of(request)
    workload = service.engine.workload()
    models: list[Any] = [
        {"model": model, "version": version, "operation": operation}
        | vars(arena)
        | {"tick_s": [{"rows": rows, "seconds": seconds} for rows, seconds in arena.tick_s]}
        for (model, version, operation), arena in sorted(workload.arenas.items())
    ]
    return {
        "accepts": service.fault() is None,
        "jobs": workload.jobs,
        "work": workload.work,
        "seconds": workload.seconds,
        "models": models,
    }


@router.read(
    "/metrics",
    "Metrics for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}} | shown({"metrics": examples.METRICS})}}},
)
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    text = await asyncio.to_thread(service_of(request).metrics.text)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})
