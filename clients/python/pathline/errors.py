# The names say what happened and read well in an `except` clause (as in httpx), so they do not all end in Error.
# ruff: noqa: N818
"""Errors of the SDK, one class for each problem type of the service.

::

    PathlineError
     +- InvalidURL                     the base URL is not valid (also a ValueError)
     +- InvalidEnvironment             the environment names an unusable proxy or certificates (also a ValueError)
     +- InvalidKey                     the API key cannot be sent (also a ValueError)
     +- InvalidValue                   the value cannot be sent, so nothing was (also a ValueError)
     +- BulkConflict                   the folder holds another job, or the model has changed since
     +- BulkIncomplete                 the shards in `failed` were given up; the others are done
     +- APIError                       the service answered with a problem
     |   +- InvalidRequest             422 invalid-request
     |   |   +- BadRequest             400 bad-request
     |   |       +- MalformedJSON      400 malformed-json
     |   +- Unauthorized               401 unauthorized
     |   +- Forbidden                  403 forbidden
     |   +- NotFound                   404
     |   |   +- NoFrontier             404 no-frontier
     |   |   +- NoSuchRoute            404 no-such-route
     |   |   +- UnknownModel           404 unknown-model
     |   |   +- UnknownVersion         404 unknown-version
     |   +- MethodNotAllowed           405 method-not-allowed
     |   +- Unsupported
     |   |   +- NotAcceptable          406 not-acceptable
     |   |   +- UnsupportedMediaType   415 unsupported-media-type
     |   +- ReplayDiffers              409 replay-differs
     |   +- SlowRequest         (r)    408 request-timeout
     |   +- TooLarge                   413 body-too-large
     |   |   +- JobTooLarge            413 job-too-large
     |   |   +- HeadTooLarge           431 head-too-large
     |   +- Overloaded          (r)    429 overloaded
     |   +- DeadlineExceeded           504 deadline-exceeded
     |   +- ServerError                500 internal-error, and every other 5xx
     |   |   +- EngineFailed           500 engine-failed
     |   +- Unavailable         (r)    502, 503
     |       +- Draining        (r)    503 draining
     |       +- NotReady        (r)    503 not-ready
     |       +- TooManyConnections (r) 503 too-many-connections
     |       +- ModelUnavailable       503 model-unavailable (its files are damaged: waiting does not help)
     +- TransportError                 no response arrived
     |   +- ConnectError        (r)    nothing listens there, or the name is unknown (also a ConnectionError)
     |   |   +- InsecureConnection     the other side does not speak TLS, or its certificate is not trusted
     |   |   +- ProxyRefused           the proxy refuses the connection
     |   +- ConnectionLost      (r)    the connection broke before a response (also a ConnectionError)
     |   +- RequestTimeout             no response in time (also a TimeoutError)
     +- ProtocolError                  the response is not valid: an older service, another server, damage
         +- IncompleteAnswer    (r)    the response was cut off half-way

Those marked (r) are retried within the bounds of the `RetryPolicy`; a retry is the same request, because the seed
is drawn before it is first sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "APIError",
    "BadRequest",
    "BulkConflict",
    "BulkIncomplete",
    "ConnectError",
    "ConnectionLost",
    "DeadlineExceeded",
    "Draining",
    "EngineFailed",
    "Forbidden",
    "HeadTooLarge",
    "IncompleteAnswer",
    "InsecureConnection",
    "InvalidEnvironment",
    "InvalidKey",
    "InvalidRequest",
    "InvalidURL",
    "InvalidValue",
    "JobTooLarge",
    "MalformedJSON",
    "MethodNotAllowed",
    "ModelUnavailable",
    "NoFrontier",
    "NoSuchRoute",
    "NotAcceptable",
    "NotFound",
    "NotReady",
    "Overloaded",
    "PathlineError",
    "ProtocolError",
    "ProxyRefused",
    "ReplayDiffers",
    "RequestTimeout",
    "ServerError",
    "SlowRequest",
    "TooLarge",
    "TooManyConnections",
    "TransportError",
    "Unauthorized",
    "Unavailable",
    "UnknownModel",
    "UnknownVersion",
    "Unsupported",
    "UnsupportedMediaType",
]


class PathlineError(Exception):
    """Any error that the SDK raises.

    Attributes:
        attempts: How often the request was sent before it was abandoned.
        elapsed_s: Seconds from the first attempt to the last failure.
        hint: What to do, if the message itself does not say so; appended to it.
    """

    retryable: ClassVar[bool] = False
    attempts: int = 1
    elapsed_s: float = 0.0
    hint: str = ""

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else type(self).__name__
        text += f"; {self.hint}" if self.hint else ""
        spent = f" in {self.elapsed_s:.1f} s" if self.elapsed_s >= 0.05 else ""
        return f"{text} (gave up after {self.attempts} attempts{spent})" if self.attempts > 1 else text


class InvalidURL(PathlineError, ValueError):
    """The base URL cannot be used."""


class InvalidKey(PathlineError, ValueError):
    """The API key cannot be sent in a header."""


class InvalidEnvironment(PathlineError, ValueError):
    """An environment variable names a proxy or certificates that cannot be used; the message says which."""


class InvalidValue(PathlineError, ValueError):
    """A field of a request has a value that cannot be sent, so nothing was sent.

    Attributes:
        field: Name of the field.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class BulkConflict(PathlineError):
    """A folder holds another bulk job or something else, or the model has changed since the job began."""


class BulkIncomplete(PathlineError):
    """Shards of a bulk job were given up; the same call tries them again.

    Attributes:
        failed: Number of each such shard -> reason.
    """

    def __init__(self, message: str, failed: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.failed = dict(failed or {})


class TransportError(PathlineError):
    """No response arrived."""


class ConnectError(TransportError, ConnectionError):
    """No connection could be made."""

    retryable = True


class InsecureConnection(ConnectError):
    """TLS could not be agreed on: the other side does not speak it, or its certificate is not trusted."""

    retryable = False


class ProxyRefused(ConnectError):
    """The proxy that the environment names does not let this through, or asks for a password."""

    retryable = False


class ConnectionLost(TransportError, ConnectionError):
    """The connection broke before a response arrived."""

    retryable = True


class RequestTimeout(TransportError, TimeoutError):
    """Nothing arrived in the time allowed."""


class ProtocolError(PathlineError):
    """The response is not valid: another server, an older service, or damage."""


class IncompleteAnswer(ProtocolError):
    """The response was cut off half-way."""

    retryable = True


class APIError(PathlineError):
    """The service answered with an error.

    Attributes:
        status: HTTP status.
        type: Problem type, such as ``/problems/overloaded``; empty if the response was not a problem document.
        title: What kind of error it is.
        detail: What happened here, in the service's words.
        request_id: ID to quote when reporting the error to the service's operator; empty if none was sent.
        errors: One mapping with `field` and `message` for each field at fault.
        retry_after_s: Seconds after which another attempt makes sense, if the service reported them.
    """

    slugs: ClassVar[tuple[str, ...]] = ()
    statuses: ClassVar[tuple[int, ...]] = ()

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        title: str = "",
        type: str = "",  # noqa: A002 - the name of the member in RFC 9457
        request_id: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{detail or title or 'no reason given'} [{status}{request_id and f', request {request_id}'}]")
        self.status = status
        self.type = type
        self.title = title
        self.detail = detail
        self.request_id = request_id
        self.errors = tuple(errors)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        # Without this, an error raised in a worker process could not be passed back to its parent.
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[APIError], args: tuple[Any, ...], state: dict[str, Any]) -> APIError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InvalidRequest(APIError):
    """A field of the request is not allowed; `errors` names it."""

    slugs, statuses = ("invalid-request",), (422,)


class BadRequest(InvalidRequest):
    """The request cannot be understood."""

    slugs, statuses = ("bad-request",), (400,)


class MalformedJSON(BadRequest):
    """The body cannot be parsed as JSON or npz."""

    slugs, statuses = ("malformed-json",), ()


class Unauthorized(APIError):
    """The key is missing or wrong; `Client(api_key=...)` and PATHLINE_API_KEY send one."""

    slugs, statuses = ("unauthorized",), (401,)


class Forbidden(APIError):
    """This address is disabled, or the key does not give access to it."""

    slugs, statuses = ("forbidden",), (403,)


class NotFound(APIError):
    """The requested resource does not exist."""

    slugs, statuses = ("not-found",), (404,)


class NoSuchRoute(NotFound):
    """The service has nothing at this address: often a wrong base URL or an older service."""

    slugs, statuses = ("no-such-route",), ()


class NoFrontier(NotFound):
    """The model's solvers have not been measured; the message names the command that does so."""

    slugs, statuses = ("no-frontier",), ()


class UnknownModel(NotFound):
    """No model has this name."""

    slugs, statuses = ("unknown-model",), ()


class UnknownVersion(NotFound):
    """The model has no such version."""

    slugs, statuses = ("unknown-version",), ()


class MethodNotAllowed(APIError):
    """The address does not support this method."""

    slugs, statuses = ("method-not-allowed",), (405,)


class Unsupported(APIError):
    """Client and service do not share a format."""


class NotAcceptable(Unsupported):
    """The service does not offer the requested format."""

    slugs, statuses = ("not-acceptable",), (406,)


class UnsupportedMediaType(Unsupported):
    """The service does not read the format sent."""

    slugs, statuses = ("unsupported-media-type",), (415,)


class TooLarge(APIError):
    """The request body is larger than the service allows."""

    slugs, statuses = ("body-too-large",), (413,)


class JobTooLarge(TooLarge):
    """The request needs more memory than the service gives to all requests together."""

    slugs, statuses = ("job-too-large",), ()


class HeadTooLarge(TooLarge):
    """Address and headers of the request are longer than the service allows."""

    slugs, statuses = ("head-too-large",), (431,)


class SlowRequest(APIError):
    """The request did not arrive in the time that the service allows."""

    slugs, statuses, retryable = ("request-timeout",), (408,), True


class Overloaded(APIError):
    """The service is at capacity; `retry_after_s` says when to come back."""

    slugs, statuses, retryable = ("overloaded",), (429,), True


class ReplayDiffers(APIError):
    """The same bits cannot be promised: weights, versions, machine or device differ; `force` samples anyway.

    Attributes:
        differences: One mapping for each thing that differs, with `what`, `token`, `here` and `reason`.
    """

    slugs, statuses = ("replay-differs",), (409,)
    differences: tuple[Mapping[str, str], ...] = ()


class DeadlineExceeded(APIError):
    """The request's `timeout_s` passed; use a longer one, fewer samples or a cheaper solver.

    Attributes:
        share: How much of the work was done, from 0 to 1; None if progress was not requested.
    """

    slugs, statuses = ("deadline-exceeded",), (504,)
    share: float | None = None

    def __str__(self) -> str:
        done = "" if self.share is None else f"; {100 * self.share:.0f} % of the work was done"
        return f"{super().__str__()}{done}"


class ServerError(APIError):
    """The service failed."""

    slugs, statuses = ("internal-error",), (500,)


class EngineFailed(ServerError):
    """The computation of this request failed."""

    slugs, statuses = ("engine-failed",), ()


class Unavailable(APIError):
    """The service cannot respond at the moment."""

    slugs, statuses, retryable = (), (502, 503), True


class Draining(Unavailable):
    """The service is shutting down; its successor may respond soon."""

    slugs, statuses = ("draining",), ()


class NotReady(Unavailable):
    """The service, or the model, is still being loaded."""

    slugs, statuses = ("not-ready",), ()


class TooManyConnections(Unavailable):
    """The service has no free connections."""

    slugs, statuses = ("too-many-connections",), ()


class ModelUnavailable(Unavailable):
    """The model is in the repository but cannot be served."""

    slugs, statuses, retryable = ("model-unavailable",), (), False


def _walk(kind: type[APIError]) -> list[type[APIError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _walk(child))]


BY_SLUG = {slug: kind for kind in _walk(APIError) for slug in kind.slugs}
"""Error class by the last part of the problem type."""

BY_STATUS = {status: kind for kind in _walk(APIError) for status in kind.statuses}
"""Error class by HTTP status, for responses that are not problem documents."""
