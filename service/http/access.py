"""Access control: API keys, the administrator's key, host names, and pages of other origins."""

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import Scope

from service.errors import Kind, ProblemError
from service.http.context import Context
from service.settings import Settings

CORS: dict[str, Any] = {
    "allow_methods": ["GET", "HEAD", "POST"],
    "allow_headers": [
        *("Accept", "Authorization", "Content-Type", "Inference-Header-Content-Length", "X-API-Key", "X-Request-ID"),
        *("traceparent", "tracestate", "baggage"),
    ],
    "expose_headers": [
        "Inference-Header-Content-Length",
        "Retry-After",
        "Server-Timing",
        "X-Pathline-Digest-Matches",
        "X-Pathline-Fallback-From",
        "X-Pathline-Replay",
        "X-Pathline-Seed",
        "X-Pathline-Status",
        "X-Request-ID",
    ],
    "max_age": 600,
}
"""Methods and headers that pages of allowed origins may send and read."""

SAFE = ("GET", "HEAD", "OPTIONS")
_OPEN = {"/", "/docs", "/problems", "/openapi.json", "/favicon.ico"}
_HEALTH = {"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"}
ALWAYS_ANSWERED = frozenset(_HEALTH | {"/metrics"})
"""Paths of health checks and metrics, answered even when all connections are taken."""

_HOST = re.compile(r"(?:\[([^][]+)\]|([^][:]*))(?::\d*)?", re.ASCII)

_SHORT = re.compile(r"\d+(\.\d+){0,3}", re.ASCII)
"""IPv4 addresses, including short forms with fewer than four numbers."""

_OPEN_FOLDERS = ("/static/", "/docs/", "/problems/")
"""Files that a browser needs before a key can be entered; they reveal nothing about models or users."""


class OwnPages:
    """Which pages and host names may use the service.

    A browser states where a request comes from (Sec-Fetch-Site, Origin), and a page cannot change that. A page from a
    host name made to resolve to this machine (DNS rebinding) looks like ours, but its Host header shows that name.
    """

    def __init__(self, settings: Settings) -> None:
        self._origins, self._names = frozenset(settings.cors_origins), frozenset(settings.allowed_hosts)
        self._any_name = "*" in self._names or not (self._names or (_is_loopback(settings.host) and not settings.uds))
        self._host = b""  # the last one that was a name of this service

    def fault(self, http: Context) -> str | None:
        """Return why a request is refused: it is from a page of another origin, or for a name of another service."""
        sent = http.sent
        if not self._any_name and b"host" in sent and (host := sent[b"host"]) != self._host:
            if not all(self._is_own_host(value) for name, value in http.scope["headers"] if name == b"host"):
                return (
                    "the Host header names another service; if it is a name of this one, add it to "
                    "PATHLINE_ALLOWED_HOSTS"
                )
            self._host = host
        if (b"origin" in sent or b"sec-fetch-site" in sent) and self._is_foreign(http):
            return (
                "the request comes from a page of another origin; if the page may use this service, add its origin to "
                "PATHLINE_CORS_ORIGINS"
            )
        return None

    def _is_own_host(self, host: bytes) -> bool:
        parts = _HOST.fullmatch(host.decode("latin-1").strip().lower())
        if parts is None:
            return False
        name = parts[1] or parts[2].removesuffix(".")  # without port and brackets
        if not name or _address(name) or name == "localhost" or name.endswith(".localhost"):
            return True  # no one else can make these names point here
        return name in self._names or (not self._names and "." not in name)

    def _is_foreign(self, http: Context) -> bool:
        """Return whether a page of an origin that is not allowed sent this; following a link is fine."""
        header, method, path = http.header, http.scope["method"], http.scope["path"]
        origin, site = header(b"origin"), header(b"sec-fetch-site")
        if method == "OPTIONS" or "*" in self._origins or site in ("same-origin", "none"):
            return False
        if origin is not None and origin.lower() in self._origins:
            return False
        if method in SAFE:  # without Sec-Fetch-Site such requests show no origin either, or cannot be read
            mode, destination = header(b"sec-fetch-mode"), header(b"sec-fetch-dest")
            is_link = mode == "navigate" and destination == "document"
            return site is not None and not is_link and path.startswith(("/v1", "/v2", "/sample"))
        return site is not None or (origin or "").lower().partition("://")[2] != (header(b"host") or "").lower()


def from_browser(sent: Mapping[bytes, bytes]) -> bool:
    """Return whether a web page sent a request; browsers mark everything that carries a body."""
    return b"origin" in sent or b"sec-fetch-site" in sent


class Keys:
    """The keys of the service, which every request needs unless its path is open."""

    def __init__(self, settings: Settings) -> None:
        admin = () if settings.admin_key is None else (settings.admin_key,)
        self._digests = _digests_of((*settings.api_keys, *admin))
        self._open = _OPEN | (_HEALTH if settings.open_health else set())
        self._open |= {"/metrics"} if settings.open_metrics else set()

    def check(self, scope: Scope) -> None:
        """Require a valid key; raise a 401."""
        if scope["path"] not in self._open and not scope["path"].startswith(_OPEN_FOLDERS):
            _require_key(Headers(scope=scope), self._digests, "this service")


def require_admin(headers: Headers, settings: Settings) -> None:
    """Require the administrator's key.

    Raises:
        ProblemError: 403 if the service has no such key, 401 if the request does not carry it.
    """
    if settings.admin_key is None:
        detail = "this endpoint changes the service and is closed because PATHLINE_ADMIN_KEY is not set"
        raise ProblemError(Kind.FORBIDDEN, detail)
    _require_key(headers, _digests_of((settings.admin_key,)), "this endpoint")


def _require_key(headers: Headers, valid: Sequence[bytes], place: str) -> None:
    """Require a key with a valid digest in ``Authorization: Bearer`` or ``X-API-Key``, compared in constant time.

    Proxies may have added some, so those of every line of both headers count.

    Raises:
        ProblemError: 401.
    """
    parts = [value.partition(" ") for value in headers.getlist("authorization")]
    bearer = [token.strip() for scheme, _, token in parts if scheme.lower() == "bearer"]
    sent = [_digest(key.encode("latin-1")) for key in (*bearer, *headers.getlist("x-api-key")) if key]
    if sum(hmac.compare_digest(one, other) for one in sent for other in valid):  # all of them, always
        return
    challenge = 'Bearer realm="pathline"' + (', error="invalid_token"' if sent else "")
    detail = (
        f"the API key of this request is not valid for {place}"
        if sent
        else f"{place} requires an API key; send it as Authorization: Bearer KEY or as X-API-Key: KEY"
    )
    raise ProblemError(Kind.UNAUTHORIZED, detail, headers={"WWW-Authenticate": challenge})


@lru_cache(maxsize=256)
def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address, also from a short form like 127.1 (no domain ends in a number), or None for a name."""
    try:
        return ipaddress.ip_address(socket.inet_aton(name) if _SHORT.fullmatch(name) else name)
    except (ValueError, OSError):
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _digests_of(keys: Iterable[SecretStr]) -> list[bytes]:
    return [_digest(key.get_secret_value().encode()) for key in keys]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
