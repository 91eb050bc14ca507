"""From the bytes of a request to a checked `SampleRequest`: size, content type, JSON, fields, in this order."""

import codecs
import math
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from models.nested import short, shown
from service.errors import MOST_FAULTS, ClientGoneError, Kind, ProblemError, invalid, invalid_fields
from service.http.context import Context, context_of
from service.ledger import Ledger
from service.requests.duplicates import find_duplicate

Body = TypeVar("Body", bound=BaseModel)

LARGE_BODY = 1 << 16
"""Bytes; a longer body is parsed beside the event loop, and its memory is set aside as it comes."""

MOST_LISTS = 1 << 20
"""Lists in a body: each takes many times the memory of its two bytes, and a million rows need many more bytes."""

MOST_OBJECTS = 100_000
"""Objects in a body, which take still more; a request has a few."""

_RULES = {
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "tuple_type": "must be a list of numbers",
    "too_short": "must hold at least {min_length} number(s)",
    "too_long": "must hold at most {max_length} numbers",
}
"""What is allowed, by the type of pydantic's error, where its own text speaks of Python."""


async def read_body(
    request: Request, limit: int, ledger: Ledger, allowed: Sequence[str] = ("application/json",)
) -> bytes:
    """Read a body of at most `limit` bytes and an allowed content type; a longer one is refused before it is read.

    Of a large one the bytes that came are set aside in the `ledger` until `Context.understood` or the end of the
    request, so that many who send slowly hold no more than that.

    Raises:
        ProblemError: 415 for another content type, 413 beyond the limit, 400 for a nonsensical Content-Length, 429
            where too many bytes of others are in hand.
        ClientGoneError: The client left before the body was complete.
    """
    _check_headers(request, limit, allowed)
    context = context_of(request.scope)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        more = message.get("more_body", False)
        if size > limit:
            raise _too_large(f"more than {limit}", limit, unread=more)
        if size > LARGE_BODY:
            try:
                _set_aside(context, size, ledger)
            except ProblemError as problem:
                raise problem.early() if more else problem from None
        parts.append(part)
    return b"".join(parts)


def _set_aside(context: Context, size: int, ledger: Ledger) -> None:
    if context.body is None:
        context.body = ledger.take(size, math.inf)
    else:
        ledger.extend(context.body, size - context.body.bytes)


def parse(model: type[Body], body: bytes) -> Body:
    """Parse a JSON body strictly: RFC 8259 JSON (no NaN), exact integers, no unknown fields, none given twice.

    A byte order mark in front, as some editors and shells write it, is passed over, as the RFC allows.

    Raises:
        ProblemError: 400 where it is not JSON, 413 for more lists or objects than any request needs, 422 with one
            entry for each field at fault.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    _check_parts(body)
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        hint = " (JSON has no NaN or Infinity)" if b"NaN" in body or b"Infinity" in body else ""
        if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\x00" in body[:4]:
            hint = " (it looks like UTF-16 or UTF-32; send UTF-8)"
        raise ProblemError(Kind.MALFORMED, f"the body is not valid JSON: {error}{hint}") from None
    if not isinstance(content, dict):
        raise ProblemError(Kind.INVALID, f"the body must be a JSON object, not {shown(content)}")
    twice = find_duplicate(body, content)
    if twice is not None:
        raise invalid(short(twice), f"the field {short(twice)!r} is given twice in the same object; give it once")
    return check(model, content)


def check(model: type[Body], content: dict[str, Any]) -> Body:
    """Check members strictly: exact integers, no unknown ones.

    Raises:
        ProblemError: 422 with one entry for each field at fault.
    """
    few = with_few_unknown(model, content)
    try:
        return model.model_validate(few)
    except ValidationError as error:
        faults = _innermost([dict(item) for item in error.errors(include_url=False)])
        listed = [_describe(fault, list(model.model_fields)) for fault in faults[:MOST_FAULTS]]
        raise invalid_fields(listed, more=len(faults) - len(listed) + len(content) - len(few)) from None


def with_few_unknown(model: type[BaseModel], content: dict[str, Any]) -> dict[str, Any]:
    """Return the members without unknown ones beyond those that an answer lists, as each costs an error of its own."""
    fields = model.model_fields
    if len(content) <= len(fields) + MOST_FAULTS:
        return content
    unknown = [name for name in content if name not in fields][:MOST_FAULTS]
    return {name: content[name] for name in (*(name for name in fields if name in content), *unknown)}


def byte_count(text: str) -> int | None:
    """Return the number of bytes that a header states; None where it is no number."""
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text.lstrip("0")[:20] or "0")  # what has more digits is beyond any limit anyhow


def _check_headers(request: Request, limit: int, allowed: Sequence[str]) -> None:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in allowed:
        raise ProblemError(
            Kind.MEDIA,
            f"the body is {media or 'of no stated type'}; send Content-Type: application/json",
            headers={"Accept-Post": ", ".join(filter(None, allowed))},
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ProblemError(Kind.MEDIA, f"Content-Encoding {encoding} is not understood; send the body uncompressed")
    length = request.headers.get("content-length")
    if length is None:
        return
    stated = byte_count(length)
    if stated is None:
        raise ProblemError(Kind.BAD_REQUEST, f"Content-Length {short(length)!r} is not a number of bytes")
    if stated > limit:
        raise _too_large(short(length), limit, unread=True)


def _check_parts(body: bytes) -> None:
    """Refuse a body that would take many times its memory, before any of it is made."""
    for opening, most, what in ((b"[", MOST_LISTS, "lists"), (b"{", MOST_OBJECTS, "objects")):
        if (found := body.count(opening)) > most:
            detail = f"the body has {found} {what}, the limit is {most}; send fewer samples in one request"
            raise ProblemError(Kind.TOO_LARGE, detail, limit=most)


def _too_large(size: str, limit: int, unread: bool) -> ProblemError:
    return ProblemError(
        Kind.TOO_LARGE,
        f"the body has {size} bytes, the limit is {limit} (PATHLINE_MAX_BODY_BYTES)",
        unread=unread,
        limit=limit,
    )


def _innermost(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop the errors of a list about its length where the list holds an error itself, which pydantic left out."""
    around = {item["loc"][:k] for item in items for k in range(len(item["loc"]))}
    return [item for item in items if item["loc"] not in around]


def _describe(item: dict[str, Any], fields: list[str]) -> dict[str, str]:
    """Turn one pydantic error into the field and a message that names the value and what is allowed."""
    field = short(".".join(map(str, item["loc"])))
    if item["type"] == "extra_forbidden":
        near = get_close_matches(field, fields, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(fields)}"
        return {"field": field, "message": f"unknown field {field!r}; {advice}"}
    if item["type"] == "missing":
        return {"field": field, "message": f"the field {field!r} is required"}
    return {"field": field, "message": f"{field} = {shown(item['input'])} is not allowed: it {_rule(item)}"}


def _rule(item: dict[str, Any]) -> str:
    if item["type"] == "float_type" and type(item["input"]) is int:
        return "is too large for a double"  # any other integer is taken as a number
    if item["type"] in _RULES:
        return _RULES[item["type"]].format(**item.get("ctx", {}))
    return str(item["msg"]).removeprefix("Input ").removeprefix("Value error, ").strip()
