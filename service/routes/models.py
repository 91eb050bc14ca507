"""Endpoints of the model repository and the solvers: list and describe; reload and unload with the administrator's key.

The last two need the key in ``PATHLINE_ADMIN_KEY``.
"""

import asyncio
from typing import Any

from fastapi import HTTPException, Request

from models.repository import RepositoryError
from service.errors import Kind, ProblemError
from service.http.access import require_admin
from service.openapi import ADMIN, CATALOGUE, ModelName, Router
from service.registry.entry import ModelEntry
from service.registry.registry import MAX_PASSED_OVER
from service.requests.members import described
from service.responses.schemas import ModelBody, ModelListBody, ModelSummary, Reloaded, SolverList, Unloaded
from service.state import Service, service_of
from solvers import catalogue
from solvers.grids import GRIDS
from solvers.spec import parameters

router = Router(tags=[CATALOGUE])
admin = Router(tags=[ADMIN])

_NOTHING = dict.fromkeys(ModelSummary.__annotations__) | {"conditions": {}, "tuned": [], "tuned_fault": ""}
"""The line of a model of which no version was loaded yet."""

_OF_CARD = ("dtype", "event_shape", "data_shape", "axes", "compute", "field", "sampling")
"""Members of the line that are not in descriptions, which have the card."""

_REFUSALS = (Kind.UNAUTHORIZED, Kind.FORBIDDEN, Kind.DRAINING, Kind.NOT_READY)


def _administered(request: Request) -> Service:
    service = service_of(request)
    require_admin(request.headers, service.settings)
    fault = service.fault()
    if fault is not None:
        raise ProblemError(*fault)
    return service


@admin.act("/v1/models:reload", "Reload the model repository", *_REFUSALS)
async def reload(request: Request) -> Reloaded:
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


@admin.act("/v1/models/{name}:unload", "Unload a model", *_REFUSALS, Kind.UNKNOWN_MODEL, Kind.INVALID)
async def unload(request: Request, name: ModelName) -> Unloaded:
    """Free the memory of a model once its running requests are done; the next request loads it again."""
    service = _administered(request)
    return {"name": name, "unloaded": await asyncio.wrap_future(service.registry.unload(name))}


@admin.api_route("/v1/models/{name}:unload", methods=["GET", "HEAD"], include_in_schema=False)
async def unload_is_posted(name: ModelName) -> Any:
    """Answer 405; without this route, that of a model would take the path for a name."""
    raise HTTPException(405, headers={"Allow": "POST"})


@router.read("/v1/models", "List models")
async def models(request: Request) -> ModelListBody:
    """List all models with status, version and shapes, trainings that run, and entries that are not models."""
    registry = service_of(request).registry
    training = await asyncio.to_thread(registry.repository.training)
    passed_over = registry.passed_over
    return {
        "models": [summary(entry) for entry in registry.entries()],
        "training": [{"name": name, "left_s": left_s} for name, left_s in training],
        "passed_over": [{"path": path, "reason": reason} for path, reason in passed_over[:MAX_PASSED_OVER]],
        "more_passed_over": max(0, len(passed_over) - MAX_PASSED_OVER),
    }


def summary(entry: ModelEntry) -> ModelSummary:
    """The line of a model, about the version that answers."""
    facts = {} if entry.current is None else entry.state(entry.current).facts or {}
    line: Any = {member: facts.get(member, nothing) for member, nothing in _NOTHING.items()}
    return line | {
        "name": entry.name,
        "status": entry.status,
        "fallback_from": entry.fallback_from,
        "loaded": entry.current in entry.loaded,
    }


@router.read("/v1/models/{name}", "Describe a model", Kind.UNKNOWN_MODEL, Kind.INVALID)
def model(request: Request, name: ModelName) -> ModelBody:
    """Describe one model: its versions, the cards of served versions, and why others are unavailable."""
    return describe(service_of(request).registry.entry(name))


def describe(entry: ModelEntry) -> ModelBody:
    """The description of a model; what is measured is read from the disk, unless the version must be loaded first."""
    answers = [state for state in entry.states.values() if state.facts is not None and state.answers]
    return {
        "name": entry.name,
        "status": entry.status,
        "serving": entry.current,
        "fallback_from": entry.fallback_from,
        "versions": entry.versions,
        "served": [
            {member: fact for member, fact in (state.facts or {}).items() if member not in _OF_CARD}
            | {"loaded": state.model is not None}
            | ({} if state.model is None else state.model.measured())
            for state in answers
        ],
        "unavailable": [
            {"version": version or None, "reason": fault.reason} for version, fault in entry.broken.items()
        ],
    }


@router.read("/v1/solvers", "List solvers")
def solvers() -> SolverList:  # in a thread: stability limits are computed on first use
    """List all solvers with order, stages, kind, cost formula and parameters; all settings of solvers; all grids."""
    listed: Any = {
        "solvers": [solver.describe() | {"parameters": parameters(solver)} for solver in catalogue.solvers().values()],
        **described(),
        "grids": {name: grid.describe() for name, grid in GRIDS.items()},
    }
    return listed
