"""Addresses for the administrator, behind ``PATHLINE_ADMIN_KEY``: look for new models now, free a model's memory."""

import asyncio
import hmac
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request

from models.repository import RepositoryError
from service.errors import Kind, ProblemError
from service.openapi import problems
from service.schemas import Reloaded
from service.settings import Settings
from service.state import Service, service_of

router = APIRouter()

_REFUSALS = problems(Kind.FORBIDDEN, Kind.DRAINING, Kind.NOT_READY)


def check_admin(settings: Settings, authorization: str | None) -> None:
    """Let the administrator through.

    Raises:
        ProblemError: 403 where no key is set, or the ``Authorization: Bearer`` header does not hold it.
    """
    if settings.admin_key is None:
        raise ProblemError(Kind.FORBIDDEN, "administration is off; start the service with PATHLINE_ADMIN_KEY set")
    scheme, _, key = (authorization or "").partition(" ")
    expected = settings.admin_key.get_secret_value()
    # as bytes: compare_digest refuses text beyond ASCII
    if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), expected.encode()):
        raise ProblemError(
            Kind.FORBIDDEN, "send the administrator's key, that of PATHLINE_ADMIN_KEY, as Authorization: Bearer KEY"
        )


def _administered(request: Request, authorization: str | None) -> Service:
    service = service_of(request)
    check_admin(service.settings, authorization)
    fault = service.fault()
    if fault is not None:
        raise ProblemError(*fault)
    return service


@router.post("/v1/models:reload", responses={200: {"model": Reloaded}, **_REFUSALS})
async def reload(request: Request, authorization: Annotated[str | None, Header()] = None) -> Any:
    """Look at the model repository now: load new models and versions, let go of those that were removed."""
    service = _administered(request, authorization)
    try:
        changes = await asyncio.to_thread(service.models.refresh)
    except RepositoryError as error:
        raise ProblemError(Kind.NOT_READY, f"the models go on as they are: {error}") from None
    return {
        "loaded": [{"name": name, "version": version} for name, version in changes.loaded],
        "unloaded": [{"name": name, "version": version} for name, version in changes.unloaded],
        "refused": [{"name": name, "version": v or None, "reason": reason} for name, v, reason in changes.refused],
        "models": dict(service.models.current()),
    }


@router.post("/v1/models/{name}:unload", responses=_REFUSALS | problems(Kind.UNKNOWN_MODEL))
async def unload(request: Request, name: str, authorization: Annotated[str | None, Header()] = None) -> Any:
    """Free the memory of a model, once its running requests are answered; the next request loads it again."""
    service = _administered(request, authorization)
    return {"name": name, "unloaded": await asyncio.to_thread(service.models.unload, name)}
