"""Catalogue endpoints: models and solvers."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from service import examples
from service.errors import Kind
from service.openapi import CATALOGUE, ModelName, answered, problems, read
from service.responses.schemas import ModelBody, ModelList, SolverList
from service.state import service_of
from solvers import catalogue

router = APIRouter(tags=[CATALOGUE])


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


@read(router, "/v1/solvers", summary="List solvers", responses=answered(SolverList, solvers=examples.SOLVER_LIST))
async def solvers() -> Any:
    """List all solvers with order, stages, kind, cost formula and parameters."""
    # off the event loop: stability limits are computed on first use
    return {"solvers": await asyncio.to_thread(_described)}


def _described() -> list[dict[str, object]]:
    return [entry.describe() for entry in catalogue.solvers().values()]
