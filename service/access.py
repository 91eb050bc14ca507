"""Who may ask: API keys, the key of those who run the service, and pages of other origins."""

import hashlib
import hmac
from collections.abc import Iterable
from typing import Any

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.context import context_of
from service.errors import Kind, ProblemError
from service.settings import Settings

CORS: dict[str, Any] = {
    "allow_methods": ["GET", "HEAD", "POST"],
    "allow_headers": ["Accept", "Authorization", "Content-Type", "X-API-Key", "X-Request-ID", "traceparent"],
    "expose_headers": ["Retry-After", "Server-Timing", "X-Pathline-Seed", "X-Pathline-Status", "X-Request-ID"],
    "max_age": 600,
}
"""What pages of other origins may send and see, once their origins are allowed."""

_OPEN = {"/", "/docs", "/openapi.json", "/favicon.ico"}
_HEALTH = {"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"}
WATCHED = frozenset(_HEALTH | {"/metrics"})
"""What those who watch the service ask for; it is answered also where all places for connections are taken."""

_OPEN_FOLDERS = ("/static/", "/docs/")
"""What a browser asks for before anybody can type a key; it says nothing of models or users."""


class Keyring:
    """Some keys; tells whether a request shows one of them, in a time that does not depend on how near it comes."""

    def __init__(self, keys: Iterable[SecretStr]) -> None:
        self._digests = [_digest(key.get_secret_value().encode()) for key in keys]

    def fits(self, headers: Headers) -> bool:
        """Return whether ``Authorization: Bearer`` or ``X-API-Key`` holds one of the keys."""
        found = False
        for shown in _shown(headers):
            digest = _digest(shown.encode("latin-1"))
            for known in self._digests:
                found |= hmac.compare_digest(digest, known)  # all of them, always
        return found


class Locked:
    """ASGI middleware: answers 401 to a request without a key, unless its address is open."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        admin = () if settings.admin_key is None else (settings.admin_key,)
        self._app, self._keys = app, Keyring((*settings.api_keys, *admin))
        self._open = _OPEN | (_HEALTH if settings.open_health else set())
        self._open |= {"/metrics"} if settings.open_metrics else set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http" and not self._is_open(scope["path"]):
            headers = Headers(scope=scope)
            if not self._keys.fits(headers):
                problem = _refusal(headers, "this service")
                response = problem.answer(scope["path"], context_of(scope).request_id)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open or path.startswith(_OPEN_FOLDERS)


def require_admin(headers: Headers, settings: Settings) -> None:
    """Let only those through who show the key of those who run the service.

    Raises:
        ProblemError: 403 where the service has no such key, 401 where the request does not show it.
    """
    if settings.admin_key is None:
        detail = "this address changes the service and is closed, as no key for it is set (PATHLINE_ADMIN_KEY)"
        raise ProblemError(Kind.FORBIDDEN, detail)
    if not Keyring((settings.admin_key,)).fits(headers):
        raise _refusal(headers, "this address")


def _shown(headers: Headers) -> list[str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    shown = [token.strip()] if scheme.lower() == "bearer" and token.strip() else []
    return shown + ([headers["x-api-key"]] if headers.get("x-api-key") else [])


def _refusal(headers: Headers, where: str) -> ProblemError:
    wrong = bool(_shown(headers))
    challenge = 'Bearer realm="pathline"' + (', error="invalid_token"' if wrong else "")
    detail = (
        f"the key of this request is not one that {where} takes"
        if wrong
        else f"{where} asks for a key; send it as Authorization: Bearer KEY or as X-API-Key: KEY"
    )
    return ProblemError(Kind.UNAUTHORIZED, detail, headers={"WWW-Authenticate": challenge})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
