"""Request parsing: the bytes of a body become a pydantic model; size, content type, JSON and fields, in this order."""

import codecs
import math
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from models.messages import short, shown
from service.errors import MAX_FAULTS, ClientGoneError, Kind, ProblemError, invalid, invalid_fields
from service.http.context import Context
from service.ledger import Ledger
from service.requests.npz_body import REQUEST, is_npz, read_npz
from service.responses.arrays import JSON, NPZ

Body = TypeVar("Body", bound=BaseModel)

LARGE_BODY = 1 << 16
"""Bytes; a larger body is parsed in a worker thread, and its memory is reserved as it arrives."""

MAX_LISTS = 1 << 20
"""Maximum lists in a body: each takes many times the memory of its two bytes; a million rows of samples need more."""

MAX_OBJECTS = 100_000
"""Maximum objects in a body: they take even more memory, and a request has only a few."""

_RULES = {
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "tuple_type": "must be a list of numbers",
    "model_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
    "too_short": "must hold at least {min_length} number(s)",
    "too_long": "must hold at most {max_length} numbers",
}
"""Rules by type of pydantic error, for types with a text of pydantic's own that speaks of Python."""

_DIGITS = 18
"""Most digits of a Content-Length that are read with the fewest calls."""

_SHORT = 3
"""Characters; names of other libraries as short as that are not compared with misspellings."""

_TAGS = ("", "{}")
"""Parts of an error's location that only tell kinds of a field apart."""

OTHER_NAMES = {
    "model": ("name", "model_name", "checkpoint"),
    "num_samples": ("n", "n_samples", "count", "size", "batch_size", "samples"),
    "samples": ("x", "data", "inputs"),
    "solver": ("sampler", "method", "scheduler", "integrator", "ode_solver"),
    "steps": ("n_steps", "num_steps", "num_inference_steps", "sampling_steps"),
    "rtol": ("tol", "tolerance", "rel_tol", "relative_tolerance"),
    "atol": ("abs_tol", "absolute_tolerance"),
    "max_nfe": ("nfe", "budget", "max_evals", "max_num_steps"),
    "grid": ("schedule", "timesteps", "t_schedule"),
    "seed": ("random_seed", "random_state", "generator"),
    "noise_scale": ("temperature", "noise_temperature"),
    "condition": ("label", "labels", "class", "class_labels", "y", "prompt"),
    "conditions": ("cond", "conds", "encoder_hidden_states", "model_kwargs"),
    "shape": ("sizes", "length", "height", "width", "resolution", "event_shape"),
    "negative": ("negative_prompt", "negative_conditions", "uncond"),
    "guidance": ("guidance_scale", "cfg", "cfg_scale"),
    "x0": ("noise", "z", "latents", "init"),
    "t_span": ("span", "t", "interval"),
    "save_at": ("times", "saveat", "t_eval"),
    "timeout_s": ("timeout", "deadline"),
    "probes": ("n_probes", "num_probes", "hutchinson_samples"),
}
"""Fields and the names that other samplers and solvers use for them, which fuzzy matching would not find."""


async def read_body(http: Context, limit: int, ledger: Ledger, allowed: Sequence[str] = (JSON, NPZ)) -> bytes:
    """Read a body of at most `limit` bytes and an allowed content type; a longer one is refused before it is read.

    The bytes of a large body are reserved in the `ledger` as they arrive, until `Context.drop_body` or the end of the
    request, so that many slow senders together cannot hold more than the ledger allows.

    Raises:
        ProblemError: 415 for another content type, 413 beyond the limit, 400 for an invalid Content-Length, 429 if
            the bodies of other requests hold too much.
        ClientGoneError: The client disconnected before the body was complete.
    """
    _check_headers(http.sent, limit, allowed)
    receive = http.receive
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        more = message.get("more_body", False)
        if size > limit:
            raise _too_large(f"more than {limit}", limit, unread=more)
        if size > LARGE_BODY:
            try:
                set_aside(http, size, ledger)
            except ProblemError as problem:
                raise problem.early() if more else problem from None
        if not (more or parts):
            return part
        parts.append(part)
    return b"".join(parts)


def set_aside(context: Context, size: int, ledger: Ledger) -> None:
    """Reserve memory for the body of a request: `size` bytes in all.

    Raises:
        ProblemError: 413 or 429, see `Ledger.take`.
    """
    if context.body_hold is None:
        context.body_hold = ledger.take(size, math.inf)
    else:
        ledger.extend(context.body_hold, size - context.body_hold.bytes)


def parse(model: type[Body], body: bytes, what: str = "body") -> Body:
    """Parse a body strictly: RFC 8259 JSON (no NaN), exact integers, no unknown fields.

    Of a member given twice the last counts, as in other JSON parsers.

    A leading byte order mark, which some editors and shells write, is ignored, as the RFC allows. Members that are
    arrays may be sent alongside the JSON, in npz (see `npz_body`).

    Raises:
        ProblemError: 400 if it is not JSON, 413 for more lists or objects than any request needs, 422 with one
            entry for each field at fault.
    """
    arrays: dict[str, Any] = {}
    if is_npz(body):
        body, arrays = read_npz(body, model)
        what = f"entry {REQUEST!r} of the npz {what}"
    content = json_members(body, what)
    return check(model, _with_arrays(content, arrays) if arrays else content)


def json_members(body: bytes, what: str = "body") -> dict[str, Any]:
    """Return the members of a body that is a JSON object; errors as in `parse`."""
    if body[:1] == codecs.BOM_UTF8[:1]:
        body = body.removeprefix(codecs.BOM_UTF8)
    if len(body) > MAX_OBJECTS:
        _check_parts(body, what)
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        if not body.strip():
            raise ProblemError(Kind.MALFORMED, f"the {what} is empty; send a JSON object") from None
        hint = " (JSON has no NaN or Infinity)" if b"NaN" in body or b"Infinity" in body else ""
        if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\x00" in body[:4]:
            hint = " (it looks like UTF-16 or UTF-32; send UTF-8)"
        raise ProblemError(Kind.MALFORMED, f"the {what} is not valid JSON: {error}{hint}") from None
    if type(content) is not dict:
        raise ProblemError(Kind.INVALID, f"the {what} must be a JSON object, not {shown(content)}")
    return content


def _with_arrays(content: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    """Put arrays in their places among the members; one that is there already is a 422."""
    merged = dict(content)
    for name, value in arrays.items():
        before = merged.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            twice = next((f"{name}.{key}" for key in value if key in before), None)
            value = {**before, **value}
        else:
            twice = None if before is None else name
        if twice is not None:
            raise invalid(twice, f"{twice} was given in the JSON and as an array; give it once")
        merged[name] = value
    return merged


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
        listed = [_describe(fault, _fields_at(model, fault["loc"][:-1])) for fault in faults[:MAX_FAULTS]]
        raise invalid_fields(listed, more=len(faults) - len(listed) + len(content) - len(few)) from None


def with_few_unknown(model: type[BaseModel], content: dict[str, Any]) -> dict[str, Any]:
    """Return the members with only as many unknown ones as a response lists: each costs one more error."""
    fields = model.model_fields
    if len(content) <= len(fields) + MAX_FAULTS:
        return content
    unknown = [name for name in content if name not in fields][:MAX_FAULTS]
    return {name: content[name] for name in (*(name for name in fields if name in content), *unknown)}


def byte_count(text: str) -> int | None:
    """Return the number of bytes that a header states; None if it is not a number."""
    if not (text.isascii() and text.isdigit()):
        return None
    return int(text.lstrip("0")[:20] or "0")  # more digits are beyond any limit anyway


def _check_headers(sent: Mapping[bytes, bytes], limit: int, allowed: Sequence[str]) -> None:
    if sent.get(b"content-type") != b"application/json":
        media = sent.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if media not in allowed:
            raise ProblemError(
                Kind.MEDIA,
                f"the body is {media or 'of no stated type'}; send Content-Type: application/json, or "
                "application/x-npz",
                headers={"Accept-Post": ", ".join(filter(None, allowed))},
            )
    if b"content-encoding" in sent:
        encoding = sent[b"content-encoding"].decode("latin-1").strip().lower()
        if encoding not in ("", "identity"):
            detail = f"Content-Encoding {encoding} is not understood; send the body uncompressed"
            raise ProblemError(Kind.MEDIA, detail)
    if b"content-length" not in sent:
        return
    length = sent[b"content-length"]
    if not length.isdigit():
        detail = f"Content-Length {short(length.decode('latin-1'))!r} is not a number of bytes"
        raise ProblemError(Kind.BAD_REQUEST, detail)
    size = int(length) if len(length) <= _DIGITS else byte_count(length.decode())
    if size is not None and size > limit:
        raise _too_large(short(length.decode()), limit, unread=True)


def _check_parts(body: bytes, name: str) -> None:
    """Refuse a text that would take many times its size in memory, before it is parsed."""
    for opening, limit, what in ((b"[", MAX_LISTS, "lists"), (b"{", MAX_OBJECTS, "objects")):
        if (count := body.count(opening)) > limit:
            detail = f"the {name} has {count} {what}, the limit is {limit}; send fewer samples in one request"
            raise ProblemError(Kind.TOO_LARGE, detail, limit=limit)


def _too_large(size: str, limit: int, unread: bool) -> ProblemError:
    return ProblemError(
        Kind.TOO_LARGE,
        f"the body has {size} bytes, the limit is {limit} (PATHLINE_MAX_BODY_BYTES); send less at once",
        unread=unread,
        limit=limit,
    )


def _innermost(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop errors about the length of a list that has invalid items: pydantic counts only the valid ones."""
    around = {item["loc"][:k] for item in items for k in range(len(item["loc"]))}
    return [item for item in items if item["loc"] not in around]


def _describe(item: dict[str, Any], fields: list[str]) -> dict[str, str]:
    """Turn one pydantic error into the field and a message that names the value and what is allowed."""
    field = short(".".join(str(part) for part in item["loc"] if part not in _TAGS))
    if item["type"] == "extra_forbidden":
        near = _nearest(str(item["loc"][-1]), fields)
        advice = f"did you mean {near!r}?" if near else f"allowed: {', '.join(fields)}"
        return {"field": field, "message": f"unknown field {field!r}; {advice}"}
    if item["type"] == "missing":
        return {"field": field, "message": f"the field {field!r} is required"}
    return {"field": field, "message": f"{field} = {shown(item['input'])} is not allowed: it {_rule(item)}"}


def _fields_at(model: Any, place: Sequence[int | str]) -> list[str]:
    """Return the fields of the object at a place in a body; of the body itself, if that cannot be told."""
    inner: Any = model
    for part in place:
        fields = getattr(inner, "model_fields", {})
        if part in fields:
            inner = next((kind for kind in _types(fields[part].annotation) if issubclass(kind, BaseModel)), None)
    return list((inner or model).model_fields)


def _types(annotation: Any) -> Iterator[type]:
    """Yield the types that an annotation is made of."""
    if isinstance(annotation, type):
        yield annotation
    for part in get_args(annotation):
        yield from _types(part)


def _nearest(name: str, fields: Sequence[str]) -> str | None:
    """Return the field that an unknown name probably means: another library's name for it, or a misspelling."""
    synonyms = {other: field for field in fields for other in OTHER_NAMES.get(field, ())}
    if name.lower() in synonyms:
        return synonyms[name.lower()]
    names = {other: field for other, field in synonyms.items() if len(other) > _SHORT} | {
        field: field for field in fields
    }
    near = get_close_matches(short(name), names, n=1)
    return names[near[0]] if near else None


def _rule(item: dict[str, Any]) -> str:
    if item["type"] == "float_type" and type(item["input"]) is int:
        return "is too large for a double"  # any other integer is taken as a number
    if item["type"] in _RULES:
        return _RULES[item["type"]].format(**item.get("ctx", {}))
    return str(item["msg"]).removeprefix("Input ").removeprefix("Value error, ").strip()
