"""HTTP responses, and the errors for unsuccessful responses and failed exchanges."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from pathline import errors
from pathline._route import Route
from pathline._typed import parsed

_LONGEST_TEXT = 10_000  # characters of a server's text that an error shows
MAX_ERROR_BYTES = 1 << 20
_SHOWN = 200  # characters of an unexpected body that a message quotes


def printable(text: str) -> str:
    """Return a server's text without the control characters that would command a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


@dataclass(frozen=True)
class Response:
    """A response.

    Attributes:
        head: Its head. The body is never read into it: in its reference cycle, a large page would stay in memory until
            the next garbage collection.
        content: Its body; empty for a stream that is still to be read.
        route: The route by which it came.
    """

    head: httpx.Response
    content: bytes = b""
    route: Route = field(default_factory=Route)

    @property
    def url(self) -> httpx.URL:
        """Where it came from."""
        return self.head.request.url

    @property
    def media_type(self) -> str:
        """The media type in lower case, without parameters."""
        return self.head.headers.get("content-type", "").partition(";")[0].strip().lower()


def problem(response: Response) -> errors.APIError:
    """Return the error for a response of status 4xx or 5xx.

    The status decides; the problem type becomes its `slug`.
    """
    document: Any = None
    if response.media_type.endswith("json"):
        with suppress(ValueError):
            document = parsed(response.content)
    return problem_of(document if isinstance(document, dict) else {}, response)


def problem_of(document: Mapping[str, Any], response: Response) -> errors.APIError:
    """Return the error for a problem document; missing members are taken from the response's status and headers."""
    stated = document.get("status")
    status = stated if isinstance(stated, int) and response.head.is_success else response.head.status_code
    foreign = not document.keys() & {"type", "title"}  # written by another program, whatever its members are
    kind = errors.BY_STATUS.get(status, errors.APIError)
    listed = document.get("errors")
    detail = ("" if foreign else str(document.get("detail") or "")) or _undocumented(response)
    error = kind(
        status,
        printable(detail[:_LONGEST_TEXT]),
        title=printable(str(document.get("title") or response.head.reason_phrase)[:_LONGEST_TEXT]),
        type=printable(str(document.get("type") or "")),
        request_id=printable(str(document.get("request_id") or response.head.headers.get("x-request-id", ""))),
        errors=[item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else (),
        retry_after_s=_retry_after(document.get("retry_after_s"), response.head.headers.get("retry-after")),
    )
    if foreign and status == 404:
        error.slug = "no-such-route"  # often a wrong base URL or an older service
    if isinstance(error, errors.ReplayDiffers) and isinstance(differences := document.get("differences"), list):
        error.differences = tuple(item for item in differences if isinstance(item, dict))
    return error


def _undocumented(response: Response) -> str:
    body = " ".join(response.content[: 4 * _SHOWN].decode("utf-8", "replace").split())[:_SHOWN]
    content = f": {body}" if body and response.media_type != "text/html" else ""
    head = response.head
    return (
        f"{response.url} answered {head.status_code} {head.reason_phrase}{content} (not a response of Pathline; check "
        f"that the URL is that of a Pathline service{came(response.route)})"
    )


def came(route: Route) -> str:
    """Return the remark that an unexpected response may be a proxy's; empty for a direct connection."""
    return f"; it came{route.via}: {route.detour}" if route.via else ""


def _retry_after(member: Any, header: str | None) -> float | None:
    """Return the seconds to wait: the body's exact number, else the header's seconds or date."""
    for value in (member, header):
        try:
            seconds = float(value)  # type: ignore[arg-type]  (non-numbers are caught)
        except (TypeError, ValueError, OverflowError):
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        when = parsedate_to_datetime(header or "")
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())


@contextmanager
def sending(url: str, route: Route) -> Iterator[None]:
    """Translate httpx exceptions until the head of the response has arrived."""
    try:
        yield
    except httpx.RequestError as error:
        reason = _reason(error)
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            raise _unconnected(url, route, reason) from None  # the reason is in the message
        if isinstance(error, httpx.ProxyError):  # it answered, but made no connection
            # A proxy's 5xx, and its equivalent in SOCKS, mean that it could not reach the service, perhaps temporarily.
            passing = re.match(r"5\d\d\b|.*could not connect", reason) is not None
            message = f"cannot connect to {url}{route.via}, which answered {reason}; {route.detour}"
            raise errors.TransportError(message, connected=False, retryable=passing) from None
        if isinstance(error, httpx.TimeoutException):
            raise errors.RequestTimeout(
                f"{url} did not respond{route.via} in time ({reason}); raise timeout_s, or the client's timeout"
            ) from None
        advice = f"; {route.detour}" if route.via else ""
        message = f"the connection to {url}{route.via} broke before a response ({reason}){advice}"
        raise errors.TransportError(message) from None


def _unconnected(url: str, route: Route, reason: str) -> errors.TransportError:
    insecure = True
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        hint = "point SSL_CERT_FILE at the certificate of its authority"
    elif "SSL" in reason or "TLS" in reason:
        hint = "something listens there, but does not speak TLS: try http:// instead of https://"
    else:
        insecure = False
        advice = "is the service running there? Set another address with PATHLINE_URL, Client(base_url) or --url"
        hint = route.detour if route.via else advice
    message = f"cannot connect to {url}{route.via} ({reason}); {hint}"
    return errors.TransportError(message, connected=False, retryable=not insecure)


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Translate httpx exceptions while the body of a response is read."""
    try:
        yield
    except httpx.TimeoutException:
        raise errors.RequestTimeout(
            f"the response of {url} has not ended in time; raise timeout_s, or the client's timeout"
        ) from None
    except httpx.RequestError as error:
        message = f"the response of {url} was cut off half-way ({_reason(error)})"
        raise errors.ProtocolError(message, cut_off=True) from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
