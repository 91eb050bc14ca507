# ruff: noqa: N818 - see base.py
"""One class for each problem type that the service answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pathline.errors.base import PathlineError


class APIError(PathlineError):
    """The service answered with an error.

    Attributes:
        status: HTTP status.
        type: Problem type, such as ``/problems/overloaded``; empty where the answer was not a problem document.
        title: What kind of error it is.
        detail: What happened here, in the service's words.
        request_id: Quote it to whoever runs the service; empty where none was sent.
        errors: One mapping with `field` and `message` for each field at fault.
        retry_after_s: Seconds after which another attempt makes sense, where the service said so.
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
        # Without this, an error raised in a worker process would not survive the way back.
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
    """The body is not valid JSON."""

    slugs, statuses = ("malformed-json",), ()


class Unauthorized(APIError):
    """The key is missing or wrong; `Client(api_key=...)` and PATHLINE_API_KEY send one."""

    slugs, statuses = ("unauthorized",), (401,)


class Forbidden(APIError):
    """This address is closed, or the key does not open it."""

    slugs, statuses = ("forbidden",), (403,)


class NotFound(APIError):
    """What was asked for does not exist."""

    slugs, statuses = ("not-found",), (404,)


class NoSuchRoute(NotFound):
    """The service has nothing at this address: often a wrong base URL or an older service."""

    slugs, statuses = ("no-such-route",), ()


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
    """The service does not offer the format asked for."""

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
    """The request did not reach the service in the time it allows."""

    slugs, statuses, retryable = ("request-timeout",), (408,), True


class Overloaded(APIError):
    """The service is at capacity; `retry_after_s` says when to come back."""

    slugs, statuses, retryable = ("overloaded",), (429,), True


class DeadlineExceeded(APIError):
    """The request's `timeout_s` passed; a longer one, fewer samples or a cheaper solver will do."""

    slugs, statuses = ("deadline-exceeded",), (504,)


class ServerError(APIError):
    """The service failed."""

    slugs, statuses = ("internal-error",), (500,)


class EngineFailed(ServerError):
    """The computation of this request failed."""

    slugs, statuses = ("engine-failed",), ()


class Unavailable(APIError):
    """The service cannot answer at the moment."""

    slugs, statuses, retryable = (), (502, 503), True


class Draining(Unavailable):
    """The service is shutting down; its successor may answer soon."""

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
"""Class for each last part of a problem type."""

BY_STATUS = {status: kind for kind in _walk(APIError) for status in kind.statuses}
"""Class for each HTTP status, for answers that are no problem document."""
