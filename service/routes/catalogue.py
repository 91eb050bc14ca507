"""Catalogue endpoints: models and solvers."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from service import examples
from service.errors import Kind
from service.openapi import CATALOGUE, ModelName, answered, problems, read
from service.responses.frontier import frontier_response
from service.responses.schemas import FrontierBody, ModelBody, ModelList, SolverList
from service.state import service_of
from solvers import catalogue

router = APIRouter(tags=[CATALOGUE])

FrontierVersion = Annotated[
    int | None,
    Query(
        ge=1, description="version of the model; the one that answers if omitted", openapi_examples={"1": {"value": 1}}
    ),
]


@read(router, "/v1/models", summary="List models", responses=answered(ModelList, models=examples.MODEL_LIST))
async def models(request: Request) -> Any:
    """List all models with status, version and shapes, and repository entries that are not models."""
    found = service_of(request).registry
    return {"models": [found.summary(name) for name in found.names()]} | found.passed_over()


@read(
    router,
    "/v1/models/{name}",
    summary="Describe a model",
    responses=answered(ModelBody, moons=examples.MODEL) | problems(Kind.UNKNOWN_MODEL, Kind.INVALID),
)
async def model(request: Request, name: ModelName) -> Any:
    """Describe one model: its versions, the cards of served versions, and why others are unavailable."""
    return await asyncio.to_thread(service_of(request).registry.describe, name)


@read(
    router,
    "/v1/models/{name}/frontier",
    summary="Show what solvers cost a model",
    responses=answered(FrontierBody, moons=examples.FRONTIER)
    | problems(Kind.UNKNOWN_MODEL, Kind.UNKNOWN_VERSION, Kind.NO_FRONTIER, Kind.INVALID, Kind.BROKEN_MODEL),
)
async def frontier(request: Request, name: ModelName, version: FrontierVersion = None) -> Any:
    """Show the frontier of a model: for each measured solver its cost, and how far from the exact end it stops."""
    service = service_of(request)
    async with service.lease(name, version) as found:
        return frontier_response(found, service.settings.models_dir)


@read(router, "/v1/solvers", summary="List solvers", responses=answered(SolverList, solvers=examples.SOLVER_LIST))
async def solvers() -> Any:
    """List all solvers with order, stages, kind, cost formula and parameters."""
    # off the event loop: stability limits are computed on first use
    return {"solvers": await asyncio.to_thread(_described)}


def _described() -> list[dict[str, object]]:
    return [entry.describe() for entry in catalogue.solvers().values()]
