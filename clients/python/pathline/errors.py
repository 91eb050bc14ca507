# The names say what happened and read well in an `except` clause (as in httpx), so they do not all end in Error.
# ruff: noqa: N818
"""Errors of the SDK, by what the caller does next.

::

    PathlineError
     +- InvalidValue          correct the option, URL, key or environment; nothing was sent (also a ValueError)
     +- BulkConflict          choose another folder: it holds another job, or the model has changed since
     +- BulkIncomplete        call again: the shards in `failed` were given up; the others are done
     +- APIError              the service answered with a problem, `slug` says which: report one of no class below
     |   +- InvalidRequest    change the request: 400, 405, 406, 413, 415, 422, 431
     |   +- AccessDenied      get a key: 401, 403
     |   +- NotFound          check the name or the URL: 404
     |   +- ReplayDiffers     the bits cannot be promised, `differences` say why: 409
     |   +- DeadlineExceeded  allow more time, or ask for less: 504
     |   +- Unavailable       come back later, after `retry_after_s`: 408, 429, 502, 503
     +- TransportError        no response arrived: check address, network and proxy (also a ConnectionError)
     |   +- RequestTimeout    no response in time (also a TimeoutError)
     +- ProtocolError         the response is not valid: an older service, another server, damage

`slug` is the error's name for programs: the last part of the service's problem type, such as ``unknown-model``,
``job-too-large`` or ``draining``, else one of this package, such as ``no-response``. Errors whose
`retryable` is true are retried within the bounds of the `RetryPolicy`; a retry is the same request, because the seed is
drawn before it is first sent.
"""

from __future__ import annotations

import copyreg
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "APIError",
    "AccessDenied",
    "BulkConflict",
    "BulkIncomplete",
    "DeadlineExceeded",
    "InvalidRequest",
    "InvalidValue",
    "NotFound",
    "PathlineError",
    "ProtocolError",
    "ReplayDiffers",
    "RequestTimeout",
    "TransportError",
    "Unavailable",
]


class PathlineError(Exception):
    """Any error that the SDK raises.

    Attributes:
        slug: What happened, as a word for programs; what `except` clauses can tell apart further.
        attempts: How often the request was sent before it was abandoned.
        elapsed_s: Seconds from the first attempt to the last failure.
        retryable: Whether the same request may succeed later; the `RetryPolicy` then repeats it.
    """

    slug: str = ""
    retryable: bool = False
    attempts: int = 1
    elapsed_s: float = 0.0

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else type(self).__name__
        spent = f" in {self.elapsed_s:.1f} s" if self.elapsed_s >= 0.05 else ""
        return f"{text} (gave up after {self.attempts} attempts{spent})" if self.attempts > 1 else text


class InvalidValue(PathlineError, ValueError):
    """An option, the URL, the key or the environment has a value that cannot be used, so nothing was sent.

    Attributes:
        field: Name of the field of the request; empty if it is none.
    """

    slug = "invalid-value"

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class BulkConflict(PathlineError):
    """A folder holds another bulk job or something else, or the model has changed since the job began."""

    slug = "bulk-conflict"


class BulkIncomplete(PathlineError):
    """Shards of a bulk job were given up; the same call tries them again.

    Attributes:
        failed: Number of each such shard -> reason.
    """

    slug = "bulk-incomplete"

    def __init__(self, message: str, failed: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.failed = dict(failed or {})


class TransportError(PathlineError, ConnectionError):
    """No response arrived.

    Attributes:
        connected: Whether there was a connection.
    """

    slug = "no-response"
    retryable = True

    def __init__(self, message: str, *, connected: bool = True, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.connected = connected
        if retryable is not None:
            self.retryable = retryable


class RequestTimeout(TransportError, TimeoutError):
    """Nothing arrived in the time allowed."""

    slug = "request-timeout"
    retryable = False


class ProtocolError(PathlineError):
    """The response is not valid: another server, an older service, or damage.

    Attributes:
        cut_off: Whether it ended half-way, so that a retry may bring the rest.
    """

    slug = "invalid-response"

    def __init__(self, message: str, *, cut_off: bool = False) -> None:
        super().__init__(message)
        self.cut_off = self.retryable = cut_off


class APIError(PathlineError):
    """The service answered with an error; one of no other class, such as 500, is a fault of the service.

    Attributes:
        status: HTTP status.
        slug: Last part of the problem type, such as ``overloaded``; ``no-such-route`` or empty if there was none.
        type: Problem type, such as ``/problems/overloaded``; empty if the response was not a problem document.
        title: What kind of error it is.
        detail: What happened here, in the service's words.
        request_id: ID to quote when reporting the error to the service's operator; empty if none was sent.
        errors: One mapping with `field` and `message` for each field at fault.
        retry_after_s: Seconds after which another attempt makes sense, if the service reported them.
    """

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
        self.slug = re.split(r"[/:#]", type)[-1]
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        # Without this, an error raised in a worker process could not be passed back to its parent.
        return copyreg.__newobj__, (type(self), *self.args), dict(self.__dict__)  # type: ignore[attr-defined]


class InvalidRequest(APIError):
    """The request, or a field of it, is not allowed; `errors` names the fields."""


class AccessDenied(APIError):
    """The key is missing or wrong, or does not give access; `Client(api_key=...)` and PATHLINE_API_KEY send one."""


class NotFound(APIError):
    """The model, version, frontier or address does not exist; `slug` says which."""


class ReplayDiffers(APIError):
    """The same bits cannot be promised: weights, versions, machine or device differ; `force` samples anyway.

    Attributes:
        differences: One mapping for each thing that differs, with `what`, `answer`, `here` and `reason`.
    """

    differences: tuple[Mapping[str, str], ...] = ()


class DeadlineExceeded(APIError):
    """The request's `timeout_s` passed; use a longer one, fewer samples or a cheaper solver.

    Attributes:
        share: How much of the work was done, from 0 to 1; None if progress was not requested.
    """

    share: float | None = None

    def __str__(self) -> str:
        done = "" if self.share is None else f"; {100 * self.share:.0f} % of the work was done"
        return f"{super().__str__()}{done}"


class Unavailable(APIError):
    """The service is at capacity, starting, stopping or out of reach; `retry_after_s` says when to come back."""

    @property
    def retryable(self) -> bool:  # type: ignore[override]  (that of this one follows from its slug)
        """Whether it may pass: damaged files of a model (``model-unavailable``) do not."""
        return self.slug != "model-unavailable"


BY_STATUS: Mapping[int, type[APIError]] = {
    **dict.fromkeys((400, 405, 406, 413, 415, 422, 431), InvalidRequest),
    **dict.fromkeys((401, 403), AccessDenied),
    404: NotFound,
    **dict.fromkeys((408, 429, 502, 503), Unavailable),
    409: ReplayDiffers,
    504: DeadlineExceeded,
}
"""Error class by HTTP status; anything else, such as 500, is an APIError."""
