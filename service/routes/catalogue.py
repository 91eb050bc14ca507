"""What can be asked for: models and solvers."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from service import examples
from service.errors import Kind
from service.openapi import answered, problems
from service.requests.schemas import ModelBody, ModelList, SolverList
from service.routes.reading import ModelName, read
from service.state import service_of
from solvers import catalogue

router = APIRouter()


@read(router, "/v1/models", responses=answered(ModelList, models=examples.MODEL_LIST))
async def models(request: Request) -> Any:
    """List the models (served or not, by which version, the shapes of its samples) and what is passed over."""
    found = service_of(request).models
    return {"models": [found.summary(name) for name in found.names()]} | found.passed_over()


@read(
    router,
    "/v1/models/{name}",
    responses=answered(ModelBody, moons=examples.MODEL) | problems(Kind.UNKNOWN_MODEL, Kind.INVALID),
)
async def model(request: Request, name: ModelName) -> Any:
    """Show one model: its versions, the cards of those that are served, and why others are not."""
    return await asyncio.to_thread(service_of(request).models.describe, name)


@read(router, "/v1/solvers", responses=answered(SolverList, solvers=examples.SOLVER_LIST))
async def solvers() -> Any:
    """List the solvers: order, stages, kind, cost formula and parameters."""
    # beside the event loop: stability limits are computed when they are first asked for
    return {"solvers": await asyncio.to_thread(_described)}


def _described() -> list[dict[str, object]]:
    return [entry.describe() for entry in catalogue.solvers().values()]
