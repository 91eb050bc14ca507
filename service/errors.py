"""The whole error vocabulary of the service, as RFC 9457 ``application/problem+json``.

Every answer that is not a success is one `Kind`: a stable slug (``type`` is ``/problems/<slug>``), a status and a
title. Code anywhere raises `ProblemError`; `install` turns it, and what the framework raises, into the same shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.http.context import context_of
from service.http.early import EarlyResponse

MEDIA_TYPE = "application/problem+json"

MOST_FAULTS = 20
"""Faults of one request that its answer lists."""

_HEAD, _TAIL = 200, 800  # characters of a long text that stay: what was sent comes first, what is allowed last


@dataclass(frozen=True)
class _Kind:
    slug: str
    status: int
    title: str


class Kind(Enum):
    """Every kind of error the service answers with: slug, HTTP status, title."""

    MALFORMED = _Kind("malformed-json", 400, "The body is not valid JSON")
    BAD_REQUEST = _Kind("bad-request", 400, "The request cannot be understood")
    UNAUTHORIZED = _Kind("unauthorized", 401, "The request has no valid key")
    FORBIDDEN = _Kind("forbidden", 403, "This request may not use this address")
    NO_ROUTE = _Kind("no-such-route", 404, "There is nothing at this address")
    UNKNOWN_MODEL = _Kind("unknown-model", 404, "No model has this name")
    UNKNOWN_VERSION = _Kind("unknown-version", 404, "The model has no such version")
    METHOD = _Kind("method-not-allowed", 405, "This address does not support this method")
    NOT_ACCEPTABLE = _Kind("not-acceptable", 406, "None of the accepted formats is offered")
    SLOW = _Kind("request-timeout", 408, "The request did not arrive in time")
    TOO_LARGE = _Kind("body-too-large", 413, "The body is larger than allowed")
    JOB_TOO_LARGE = _Kind("job-too-large", 413, "The request needs more memory than allowed")
    MEDIA = _Kind("unsupported-media-type", 415, "The body must be application/json")
    INVALID = _Kind("invalid-request", 422, "A field of the request is not allowed")
    HEAD_TOO_LARGE = _Kind("head-too-large", 431, "The first line and headers are larger than allowed")
    OVERLOADED = _Kind("overloaded", 429, "The service is at capacity")
    INTERNAL = _Kind("internal-error", 500, "The service failed")
    ENGINE = _Kind("engine-failed", 500, "The computation of this request failed")
    BROKEN_MODEL = _Kind("model-unavailable", 503, "The model is in the repository but cannot be served")
    DRAINING = _Kind("draining", 503, "The service is shutting down")
    NOT_READY = _Kind("not-ready", 503, "The service is not ready")
    CONNECTIONS = _Kind("too-many-connections", 503, "The service has no free connections")
    DEADLINE = _Kind("deadline-exceeded", 504, "The time limit of the request has passed")

    @property
    def type(self) -> str:
        """The problem type, a relative URI that never changes."""
        return f"/problems/{self.value.slug}"

    @property
    def oip_status(self) -> int:
        """The status under /v2: the protocol's own texts and clients know 400 for all that is wrong with a request."""
        return 400 if self is Kind.INVALID else self.value.status


class ProblemError(Exception):
    """An error answer: its kind, what happened here, the fields at fault and extra members or headers.

    Texts may repeat what a client sent, however long: they are cut here, and only the first 20 fields at fault are
    listed, with the number of the others, of those left out in `errors` already (`more`) too, in ``more_errors``.

    With `unread` the answer comes before the body of the request was read to its end: the connection cannot be used
    again, and is closed once the client had time to see the answer.
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
        **members: Any,
    ) -> None:
        self.detail = _cut(detail)
        super().__init__(self.detail)
        self.kind = kind
        self.errors = [{name: _cut(str(text)) for name, text in fault.items()} for fault in errors[:MOST_FAULTS]]
        self.headers = dict(headers or {}) | ({"Connection": "close"} if unread else {})
        self.unread = unread
        more += len(errors) - len(self.errors)
        self.members = members | ({"more_errors": more} if more else {})

    def early(self) -> Self:
        """The same, as an answer that comes before the body was read to its end."""
        self.unread, self.headers["Connection"] = True, "close"
        return self

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the members of the problem document."""
        kind = self.kind.value
        document = {"type": self.kind.type, "title": kind.title, "status": kind.status, "detail": self.detail}
        document |= {"request_id": request_id} | self.members
        return document | ({"errors": self.errors} if self.errors else {})

    def answer(self, path: str, request_id: str) -> Response:
        """Return the answer to send at a path: under /v2 as the Open Inference Protocol writes errors."""
        if path != "/v2" and not path.startswith("/v2/"):
            return self.response(request_id)
        content = orjson.dumps({"error": self.detail})
        return self._response(content, self.kind.oip_status, "application/json")

    def response(self, request_id: str) -> Response:
        """Return the answer to send as a problem document."""
        content = orjson.dumps(self.body(request_id), default=str)
        return self._response(content, self.kind.value.status, MEDIA_TYPE)

    def _response(self, content: bytes, status: int, media: str) -> Response:
        kind = EarlyResponse if self.unread else Response
        return kind(content, status, self.headers, media)


def invalid(field: str, message: str, **members: Any) -> ProblemError:
    """Return a 422 about one field of the request, with extra members."""
    return ProblemError(Kind.INVALID, message, errors=[{"field": field, "message": message}], **members)


def invalid_fields(faults: Sequence[Mapping[str, str]], more: int = 0) -> ProblemError:
    """Return a 422 about several fields: one mapping for each, of its `field` and a `message` that names it.

    `more` is the number of faults that are not among them.
    """
    shown = "; ".join(_cut(fault["message"]) for fault in faults[:MOST_FAULTS])
    unlisted = len(faults[MOST_FAULTS:]) + more
    detail = f"{shown}; and {unlisted} more" if unlisted else shown
    return ProblemError(Kind.INVALID, detail, errors=faults, more=more)


def _cut(text: str) -> str:
    """Leave out the middle of a text that is too long to send back."""
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}…{text[-_TAIL:]}"


class ClientGoneError(Exception):
    """The client closed the connection before its answer; nothing can be sent any more."""


def install(app: FastAPI) -> None:
    """Make the framework's own errors (no route, wrong method, a bad parameter) problems too."""

    async def on_problem(request: Request, error: Exception) -> Response:
        return _as_problem(request, error).answer(request.scope["path"], context_of(request.scope).request_id)

    for kind in (ProblemError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, on_problem)


def _as_problem(request: Request, error: Exception) -> ProblemError:
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RequestValidationError):
        faults = [(".".join(map(str, e["loc"][1:])), e["msg"]) for e in error.errors()]
        return invalid_fields([{"field": field, "message": f"{field}: {message}"} for field, message in faults])
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(getattr(error, "headers", None) or {})
    path, method = request.url.path, request.method
    if status == 404:
        return ProblemError(Kind.NO_ROUTE, f"there is nothing at {path}; / lists the addresses", headers=headers)
    if status == 405:
        allowed = ", ".join(sorted(headers.pop("Allow", "").split(", ")))  # the framework keeps them in a set
        headers["Allow"] = allowed
        return ProblemError(Kind.METHOD, f"{path} does not support {method}; it supports {allowed}", headers=headers)
    return ProblemError(
        Kind.BAD_REQUEST if status < 500 else Kind.INTERNAL, f"{method} {path} was refused", headers=headers
    )
