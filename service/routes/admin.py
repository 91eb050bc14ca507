"""Addresses for the administrator, behind ``PATHLINE_ADMIN_KEY``: look for new models now, free a model's memory."""

import asyncio
from typing import Any

from fastapi import APIRouter, HTTPException, Request

from models.repository import RepositoryError
from service import examples
from service.errors import Kind, ProblemError
from service.http.access import require_admin
from service.openapi import answered, problems
from service.requests.schemas import Reloaded, Unloaded
from service.routes.reading import ModelName
from service.state import Service, service_of

router = APIRouter()

_REFUSALS = problems(Kind.UNAUTHORIZED, Kind.FORBIDDEN, Kind.DRAINING, Kind.NOT_READY)


def _administered(request: Request) -> Service:
    service = service_of(request)
    require_admin(request.headers, service.settings)
    fault = service.fault()
    if fault is not None:
        raise ProblemError(*fault)
    return service


@router.post("/v1/models:reload", responses=answered(Reloaded, reloaded=examples.RELOADED) | _REFUSALS)
async def reload(request: Request) -> Any:
    """Check the model repository now: load new models and versions, unload those that were removed.

    Versions that could not be loaded are tried again, even if their files are unchanged.
    """
    service = _administered(request)
    try:
        changes = await asyncio.wrap_future(service.models.reload())
    except RepositoryError as error:
        raise ProblemError(Kind.NOT_READY, f"the loaded models stay in use: {error}") from None
    return {
        "loaded": [{"name": name, "version": version} for name, version in changes.loaded],
        "unloaded": [{"name": name, "version": version} for name, version in changes.unloaded],
        "refused": [{"name": name, "version": v or None, "reason": reason} for name, v, reason in changes.refused],
        "models": dict(service.models.current()),
    }


@router.post(
    "/v1/models/{name}:unload",
    responses=answered(Unloaded, unloaded=examples.UNLOADED) | _REFUSALS | problems(Kind.UNKNOWN_MODEL, Kind.INVALID),
)
async def unload(request: Request, name: ModelName) -> Any:
    """Free the memory of a model, once its running requests are answered; the next request loads it again."""
    service = _administered(request)
    models = service.models
    return {"name": name, "unloaded": await asyncio.wrap_future(models.run(models.unload_now, name))}


@router.api_route("/v1/models/{name}:unload", methods=["GET", "HEAD"], include_in_schema=False)
async def unload_is_posted(name: ModelName) -> Any:
    """Say so, where the address of a model would take this for a name."""
    raise HTTPException(405, headers={"Allow": "POST"})
