"""Administration endpoints, behind ``PATHLINE_ADMIN_KEY``: reload the model repository, unload a model."""

import asyncio
from typing import Any

from fastapi import APIRouter, HTTPException, Request

from models.repository import RepositoryError
from service import examples
from service.errors import Kind, ProblemError
from service.http.access import require_admin
from service.openapi import ADMIN, ModelName, answered, problems
from service.responses.schemas import Reloaded, Unloaded
from service.state import Service, service_of

router = APIRouter(tags=[ADMIN])

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
    summary="Reload the model repository",
    responses=answered(Reloaded, reloaded=examples.RELOADED) | _REFUSALS,
)
async def reload(request: Request) -> Any:
    """Check the model repository now: load new models and versions, unload removed ones.

    Versions that failed to load are tried again, even if their files are unchanged.
    """
    service = _administered(request)
    try:
        changes = await asyncio.wrap_future(service.registry.reload())
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
    summary="Unload a model",
    responses=answered(Unloaded, unloaded=examples.UNLOADED) | _REFUSALS | problems(Kind.UNKNOWN_MODEL, Kind.INVALID),
)
async def unload(request: Request, name: ModelName) -> Any:
    """Free the memory of a model once its running requests are done; the next request loads it again."""
    service = _administered(request)
    return {"name": name, "unloaded": await asyncio.wrap_future(service.registry.unload(name))}


@router.api_route("/v1/models/{name}:unload", methods=["GET", "HEAD"], include_in_schema=False)
async def unload_is_posted(name: ModelName) -> Any:
    """Answer 405, where the route of a model would take this path for a name."""
    raise HTTPException(405, headers={"Allow": "POST"})
