"""Endpoints of the model repository and the solvers: list and describe; reload and unload with the administrator's key.

The last two need the key in ``PATHLINE_ADMIN_KEY``.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request

from models.repository import RepositoryError
from selection.frontier import Curve, pareto
from service import examples
from service.errors import Kind, ProblemError
from service.http.access import require_admin
from service.openapi import ADMIN, CATALOGUE, ModelName, answered, problems, read
from service.registry.version import ModelVersion
from service.requests.members import solver_settings
from service.responses.schemas import FrontierBody, ModelBody, ModelList, Reloaded, SolverList, Unloaded
from service.state import Service, service_of
from solvers import catalogue
from solvers.grids import GRIDS
from solvers.spec import parameters

router = APIRouter()

FrontierVersion = Annotated[
    int | None,
    Query(
        ge=1, description="version of the model; the one that answers if omitted", openapi_examples={"1": {"value": 1}}
    ),
]

_REFUSALS = problems(Kind.UNAUTHORIZED, Kind.FORBIDDEN, Kind.DRAINING, Kind.NOT_READY)


def _administered(request: Request) -> Service:
    service = service_of(request)
    require_admin(request.headers, service.settings)
    fault = service.fault()
    if fault is not None:
        raise ProblemError(*fault)
    return service


@router.post(
    "/v1/models:reload",
    tags=[ADMIN],
    summary="Reload the model repository",
    responses=answered(Reloaded, reloaded=examples.RELOADED) | _REFUSALS,
)
async def reload(request: Request) -> Any:
    """Check the model repository now: load new models and versions, unload removed ones.

    Versions that failed to load are tried again, even if their files are unchanged.
    """
    service = _administered(request)
    try:
        changes = await asyncio.to_thread(service.registry.refresh, retry_failed=True)
    except RepositoryError as error:
        raise ProblemError(Kind.NOT_READY, f"the loaded models stay in use: {error}") from None
    return {
        "loaded": [{"name": name, "version": version} for name, version in changes.loaded],
        "unloaded": [{"name": name, "version": version} for name, version in changes.unloaded],
        "refused": [{"name": name, "version": v or None, "reason": reason} for name, v, reason in changes.refused],
        "models": dict(service.registry.current()),
    }


@router.post(
    "/v1/models/{name}:unload",
    tags=[ADMIN],
    summary="Unload a model",
    responses=answered(Unloaded, unloaded=examples.UNLOADED) | _REFUSALS | problems(Kind.UNKNOWN_MODEL, Kind.INVALID),
)
async def unload(request: Request, name: ModelName) -> Any:
    """Free the memory of a model once its running requests are done; the next request loads it again."""
    service = _administered(request)
    return {"name": name, "unloaded": await asyncio.wrap_future(service.registry.unload(name))}


@router.api_route("/v1/models/{name}:unload", methods=["GET", "HEAD"], include_in_schema=False)
async def unload_is_posted(name: ModelName) -> Any:
    """Answer 405; without this route, that of a model would take the path for a name."""
    raise HTTPException(405, headers={"Allow": "POST"})


@read(
    router,
    "/v1/models",
    tags=[CATALOGUE],
    summary="List models",
    responses=answered(ModelList, models=examples.MODEL_LIST),
)
async def models(request: Request) -> Any:
    """List all models with status, version and shapes, trainings that run, and entries that are not models."""
    found = service_of(request).registry
    training = [{"name": name, "left_s": left_s} for name, left_s in await asyncio.to_thread(found.training)]
    return {"models": [found.summary(name) for name in found.names()], "training": training} | found.passed_over()


@read(
    router,
    "/v1/models/{name}",
    tags=[CATALOGUE],
    summary="Describe a model",
    responses=answered(ModelBody, moons=examples.MODEL) | problems(Kind.UNKNOWN_MODEL, Kind.INVALID),
)
async def model(request: Request, name: ModelName) -> Any:
    """Describe one model: its versions, the cards of served versions, and why others are unavailable."""
    return await asyncio.to_thread(service_of(request).registry.describe, name)


@read(
    router,
    "/v1/models/{name}/frontier",
    tags=[CATALOGUE],
    summary="Show cost and error of a model's solvers",
    responses=answered(FrontierBody, moons=examples.FRONTIER)
    | problems(Kind.UNKNOWN_MODEL, Kind.UNKNOWN_VERSION, Kind.NO_FRONTIER, Kind.INVALID, Kind.BROKEN_MODEL),
)
async def frontier(request: Request, name: ModelName, version: FrontierVersion = None) -> Any:
    """Show the frontier of a model: the cost and the endpoint error of each measured solver."""
    service = service_of(request)
    async with service.lease(name, version) as found:
        return _frontier(found, service.settings.models_dir)


def _frontier(model: ModelVersion, models_dir: Path) -> dict[str, Any]:
    """Return the frontier of a version.

    Args:
        model: the version.
        models_dir: the model repository, for the command that measures it.

    Raises:
        ProblemError: 404 if it has none, cannot have one, or has one that cannot be used.
    """
    if model.never_measured:
        raise ProblemError(Kind.NO_FRONTIER, model.never_measured)
    frontier, fault = model.frontier()
    if frontier is None:
        command = model.measured_by(models_dir)
        why = f"cannot be used: {fault}" if fault else "was not measured"
        detail = f"the frontier of model {model.name!r} version {model.version} {why}; measure it with: {command}"
        raise ProblemError(Kind.NO_FRONTIER, detail)
    return {
        "model": model.name,
        "version": model.version,
        "checkpoint": model.digest,
        "reference": frontier.reference,
        "conditions": frontier.conditions,
        "curves": [_with_best(curve) for curve in frontier.curves],
    }


def _with_best(curve: Curve) -> dict[str, Any]:
    best = {point.solver for point in pareto(curve.points)}
    points = [point.model_dump() | {"best": point.solver in best} for point in curve.points]
    return curve.model_dump(exclude={"points"}) | {"points": points}


@read(
    router,
    "/v1/solvers",
    tags=[CATALOGUE],
    summary="List solvers",
    responses=answered(SolverList, solvers=examples.SOLVER_LIST),
)
async def solvers() -> Any:
    """List all solvers with order, stages, kind, cost formula and parameters; all settings of solvers; all grids."""
    return await asyncio.to_thread(_solvers)  # off the event loop: stability limits are computed on first use


def _solvers() -> dict[str, object]:
    return {
        "solvers": [solver.describe() | {"parameters": parameters(solver)} for solver in catalogue.solvers().values()],
        "settings": solver_settings(),
        "grids": {name: grid.describe() for name, grid in GRIDS.items()},
    }
