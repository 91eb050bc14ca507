"""The service's errors: every kind with its explanation, as RFC 9457 ``application/problem+json``.

Every error response is of one `Kind`: a stable slug (``type`` is ``/problems/<slug>``, which serves the explanation), a
status and a title. Code anywhere raises `ProblemError`; the middleware turns it, and the framework's own exceptions,
into a response.
"""

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Self

import orjson

from engine.job import Draining, EngineFailed, Overloaded, TooLate, TooManySamples, TooSlow
from service.written import EarlyResponse, WrittenResponse

MEDIA_TYPE = "application/problem+json"

SHUTTING_DOWN = "the service is shutting down; send the request to another instance"

MAX_FAULTS = 20
"""Maximum number of invalid fields listed in one response."""

_TITLED = 3  # invalid fields named in a title

_HEAD, _TAIL = 200, 800  # characters kept of a long text: the start shows what was sent, the end what is allowed


class Kind(Enum):
    """Every kind of error.

    Attributes:
        slug: its name in the address of its explanation.
        status: HTTP status.
        title: what is wrong, in a few words.
        cause, remedy: what causes it, and what to do.
        type: the problem type, a relative URI that never changes.
    """

    MALFORMED = (
        "malformed-json",
        400,
        "The body cannot be parsed",
        "The request body is neither one JSON document in UTF-8 nor an npz archive.",
        "Fix the syntax at the position that `detail` gives. NaN and Infinity are not JSON numbers.",
    )
    BAD_REQUEST = (
        "bad-request",
        400,
        "The request cannot be understood",
        "The request is not valid HTTP/1.1, or its parts contradict each other: lengths, headers or tensor sizes.",
        "Fix what `detail` names. An HTTP client library sends valid requests by itself.",
    )
    UNAUTHORIZED = (
        "unauthorized",
        401,
        "Missing or invalid API key",
        "The service or this endpoint requires an API key, and the request has none or an unknown one.",
        "Send `Authorization: Bearer KEY` or `X-API-Key: KEY`. The operator sets keys with PATHLINE_API_KEYS and "
        "PATHLINE_ADMIN_KEY.",
    )
    FORBIDDEN = (
        "forbidden",
        403,
        "Access to this endpoint is not allowed",
        "The request came from a web page of another origin or for an unknown host name, or the endpoint is closed on "
        "this service.",
        "An operator can allow origins with PATHLINE_CORS_ORIGINS, host names with PATHLINE_ALLOWED_HOSTS, and open "
        "the administration endpoints by setting PATHLINE_ADMIN_KEY.",
    )
    NO_ROUTE = (
        "no-such-route",
        404,
        "There is nothing at this address",
        "No endpoint has this path.",
        "See /docs for all endpoints, or ask / with `Accept: application/json` for their addresses.",
    )
    UNKNOWN_MODEL = (
        "unknown-model",
        404,
        "No model has this name",
        "The model repository has no model with the requested name.",
        "Use one of the names that `detail` or GET /v1/models lists.",
    )
    UNKNOWN_VERSION = (
        "unknown-version",
        404,
        "The model has no such version",
        "The model exists, but not in the requested version.",
        "Use one of the versions that `detail` lists, or leave the version out to use the newest.",
    )
    NO_FRONTIER = (
        "no-frontier",
        404,
        "The frontier of this model was not measured",
        "The checkpoint has no frontier.json, or one that is damaged or was measured on other weights.",
        "Run the command that `detail` gives where the model repository is; the service reads the file by itself.",
    )
    METHOD = (
        "method-not-allowed",
        405,
        "This address does not support this method",
        "The path exists, but not for this HTTP method.",
        "Use a method that the Allow header lists.",
    )
    NOT_ACCEPTABLE = (
        "not-acceptable",
        406,
        "None of the accepted formats is offered",
        "The Accept header names no media type that this endpoint can produce.",
        "Accept one of the media types in `offered`, or leave the header out.",
    )
    SLOW = (
        "request-timeout",
        408,
        "The request did not arrive in time",
        "The client took longer than PATHLINE_RECEIVE_S to send headers and body.",
        "Send the request again in one go. On slow links, an operator can raise PATHLINE_RECEIVE_S.",
    )
    DIFFERS = (
        "replay-differs",
        409,
        "The same samples cannot be promised",
        "The answer was made with other weights or versions, or on another machine or device, or the samples "
        "came out differently, so their bits cannot be promised.",
        "`differences` lists each thing that differs. Send the answer to a service like the first one, or set `force` "
        "to sample anyway; `digest_matches` then says whether the bits are the same.",
    )
    TOO_LARGE = (
        "body-too-large",
        413,
        "The body is larger than allowed",
        "The request body exceeds PATHLINE_MAX_BODY_BYTES.",
        "Send less at once, for example by splitting the samples over several requests; an operator can raise the "
        "limit.",
    )
    JOB_TOO_LARGE = (
        "job-too-large",
        413,
        "The request needs more memory than allowed",
        "The states, trace and response of the request would not fit into PATHLINE_MAX_JOB_BYTES even on an idle "
        "service.",
        "Ask for fewer samples or saved times, or a smaller trace; `first_index` continues the stream of a seed in "
        "the next request.",
    )
    MEDIA = (
        "unsupported-media-type",
        415,
        "The body must be application/json",
        "The Content-Type of the body is not one that this endpoint reads.",
        "Send `Content-Type: application/json`.",
    )
    INVALID = (
        "invalid-request",
        422,
        "A field of the request is not allowed",
        "The body is valid JSON, but a field is missing, unknown, out of range or contradicts another one.",
        "`errors` lists each field with a message that says what is allowed.",
    )
    HEAD_TOO_LARGE = (
        "head-too-large",
        431,
        "The first line and headers are larger than allowed",
        "The request line and headers exceed PATHLINE_MAX_HEADER_BYTES.",
        "Send fewer or shorter headers, and parameters in the body.",
    )
    OVERLOADED = (
        "overloaded",
        429,
        "The service is at capacity",
        "The queue is full, memory is taken, or the work ahead would make the request miss its deadline.",
        "Wait for the seconds in Retry-After (exact in `retry_after_s`) and send the same request again.",
    )
    INTERNAL = (
        "internal-error",
        500,
        "The service failed",
        "An unexpected error in the service itself.",
        "Report it with the `request_id`; the log has the cause under that id.",
    )
    ENGINE = (
        "engine-failed",
        500,
        "The computation of this request failed",
        "The network raised an error or ran out of memory for the samples of this request. Other requests are not "
        "affected.",
        "Ask for fewer samples. If it happens again, report it with the `request_id`.",
    )
    BROKEN_MODEL = (
        "model-unavailable",
        503,
        "The model is in the repository but cannot be served",
        "Its files are damaged, incomplete or of a kind that this service does not load.",
        "`detail` names the file and the reason; GET /v1/models/{name} shows it, too. An operator replaces the "
        "checkpoint and calls POST /v1/models:reload.",
    )
    DRAINING = (
        "draining",
        503,
        "The service is shutting down",
        "The service finishes running requests and takes no new ones.",
        "Send the request to another instance, or again after the restart.",
    )
    NOT_READY = (
        "not-ready",
        503,
        "The service is not ready",
        "Models are still loading, or the engine has stopped.",
        "Try again in a few seconds; /readyz answers 200 once the service is ready.",
    )
    CONNECTIONS = (
        "too-many-connections",
        503,
        "The service has no free connections",
        "All PATHLINE_MAX_CONNECTIONS connections are busy.",
        "Wait for the seconds in Retry-After, keep connections open and share them between requests.",
    )
    DEADLINE = (
        "deadline-exceeded",
        504,
        "The time limit of the request has passed",
        "The samples were not finished within `timeout_s`, which includes waiting in the queue.",
        "Raise `timeout_s`, ask for less (fewer samples or steps, a larger tolerance), or set `on_timeout` to "
        '"partial" to get what was finished.',
    )

    def __init__(self, slug: str, status: int, title: str, cause: str, remedy: str) -> None:
        self.slug, self.status, self.title, self.cause, self.remedy = slug, status, title, cause, remedy
        self.type = f"/problems/{slug}"

    @property
    def oip_status(self) -> int:
        """The status under /v2, where the protocol and its clients expect 400 for any invalid request."""
        return 400 if self is Kind.INVALID else self.status


class ProblemError(Exception):
    """An error response: its kind, what happened, the invalid fields, and extra members or headers.

    Texts may repeat what a client sent, so long ones are cut. Only the first 20 invalid fields are listed; the number
    of the others, including `more` that the caller left out already, goes into ``more_errors``.

    With `retry_after_s` the client is told when to send it again, in the body and, in whole seconds, as a header.
    With `unread` the response is sent before the body was read to its end: the connection cannot be used again and is
    closed once the client has had time to read.
    """

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
        more: int = 0,
        unread: bool = False,
        retry_after_s: float | None = None,
        **members: Any,
    ) -> None:
        self.detail = _cut(detail)
        super().__init__(self.detail)
        self.kind = kind
        self.errors = [{name: _cut(str(text)) for name, text in fault.items()} for fault in errors[:MAX_FAULTS]]
        self.headers = dict(headers or {}) | ({"Connection": "close"} if unread else {})
        self.unread = unread
        more += len(errors) - len(self.errors)
        self.members = members | ({"more_errors": more} if more else {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
            self.members["retry_after_s"] = retry_after_s

    def early(self) -> Self:
        """Return the same error, to be sent before the body was read to its end."""
        self.unread, self.headers["Connection"] = True, "close"
        return self

    @property
    def title(self) -> str:
        """What is wrong, in a few words: the title of the kind, or the fields at fault."""
        if self.kind is not Kind.INVALID:
            return self.kind.title
        fields = list(dict.fromkeys(fault["field"] for fault in self.errors if "field" in fault))
        if not fields:
            return self.kind.title
        named = ", ".join(fields[:_TITLED]) + (" ..." if len(fields) > _TITLED else "")
        return f"Invalid field{'s' if len(fields) > 1 else ''}: {named}"

    def body(self, request_id: str, url_path: str = "") -> dict[str, Any]:
        """Return the members of the problem document; `type` begins with the path at which users reach the service."""
        document = {
            "type": url_path + self.kind.type,
            "title": self.title,
            "status": self.kind.status,
            "detail": self.detail,
            "request_id": request_id,
        }
        return document | self.members | ({"errors": self.errors} if self.errors else {})

    def response(self, request_id: str, url_path: str = "", path: str = "") -> WrittenResponse:
        """Return the response as a problem document; for a path under /v2 as the Open Inference Protocol has it."""
        body, status, media = self.body(request_id, url_path), self.kind.status, MEDIA_TYPE
        if path == "/v2" or path.startswith("/v2/"):
            body, status, media = {"error": self.detail}, self.kind.oip_status, "application/json"
        kind = EarlyResponse if self.unread else WrittenResponse
        return kind(orjson.dumps(body, default=str), media, self.headers, status)


def invalid(field: str, message: str, **members: Any) -> ProblemError:
    """Return a 422 about one field of the request, with extra members."""
    return ProblemError(Kind.INVALID, message, errors=[{"field": field, "message": message}], **members)


def check_limit(name: str, value: float, limit: float, unit: str = "", advice: str = "ask for less") -> None:
    """Refuse a value above a limit of the service.

    Raises:
        ProblemError: 422 with the value and the limit.
    """
    if value > limit:
        raise invalid(name, f"{name} = {value}{unit} is over the limit of {limit} of this service; {advice}")


def invalid_fields(faults: Sequence[Mapping[str, str]], more: int = 0) -> ProblemError:
    """Return a 422 about several fields.

    Args:
        faults: One mapping for each field, with `field` and a `message` that names it.
        more: The number of faults that are not listed.
    """
    shown = "; ".join(_cut(fault["message"]) for fault in faults[:MAX_FAULTS])
    unlisted = len(faults[MAX_FAULTS:]) + more
    detail = f"{shown}; and {unlisted} more" if unlisted else shown
    return ProblemError(Kind.INVALID, detail, errors=faults, more=more)


def _cut(text: str) -> str:
    """Drop the middle of a text that is too long to send back."""
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}…{text[-_TAIL:]}"


class ClientGoneError(Exception):
    """The client closed the connection before the response; nothing can be sent to it."""


REFUSALS = (Overloaded, TooSlow, TooManySamples, Draining, TooLate, EngineFailed)
"""The engine's exceptions, which `problem_of` takes."""


def shutting_down() -> ProblemError:
    """Return the error for a request that comes or waits while the service shuts down."""
    return ProblemError(Kind.DRAINING, SHUTTING_DOWN, retry_after_s=5)


def overloaded(reason: str, wait_s: float) -> ProblemError:
    """Return a 429 that says when to try again."""
    detail = f"{reason}; try again in {max(1, math.ceil(wait_s))} s"
    return ProblemError(Kind.OVERLOADED, detail, retry_after_s=wait_s)


def problem_of(error: Exception) -> ProblemError:
    """Return a problem as it is, and one of the engine's exceptions as a problem."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, Overloaded):
        return overloaded(error.reason, error.retry_after_s)
    if isinstance(error, TooSlow):
        detail = (
            f"timeout_s is too short: {error}; raise it, ask for fewer samples or steps, or set on_timeout to 'partial'"
        )
        return invalid("timeout_s", detail, needed_s=error.needed_s)
    if isinstance(error, TooManySamples):
        return invalid("num_samples", str(error))
    if isinstance(error, Draining):
        return shutting_down()
    if isinstance(error, TooLate):
        detail = (
            "the samples could not be finished within timeout_s; raise it, ask for less, or set on_timeout to 'partial'"
        )
        return ProblemError(Kind.DEADLINE, detail)
    return ProblemError(Kind.ENGINE, f"the engine failed on this request: {error}")
