"""Fields of requests as other programs see them, derived from the schemas.

The page reads them from ``GET /v1/solvers``; `service.sdk_fields` writes them for the SDK.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from service.requests.schemas import SINGLE, SOLVER_FIELDS, SampleRequest
from solvers.spec import OPTIONS

_TYPES = {
    "seed": "SupportsIndex | None",
    "budget": "Budget | Mapping[str, float] | str | None",
    "diffusion": "Mapping[str, Any] | str | None",
}
"""Types that the SDK accepts beyond those of JSON, or that its schema says less simply."""

_JSON = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "object": "Mapping[str, Any]"}


@dataclass(frozen=True)
class Member:
    """A field of a request.

    Attributes:
        kind: its JSON type, or `any`.
        about: one line about it.
        default: its value if a request has none.
        choices: its values, if they are words.
        bulk: whether it may be a setting of a bulk job.
        low: the lowest value, if it is an integer with one.
        type: its type in Python.
    """

    kind: str
    about: str
    default: Any
    choices: tuple[str, ...]
    bulk: bool
    low: int | None
    type: str


@lru_cache
def members(body: type[BaseModel]) -> Mapping[str, Member]:
    """Return the fields of a request body by name."""
    schema = body.model_json_schema()
    return {name: _member(name, schema["properties"][name], field) for name, field in body.model_fields.items()}


def described() -> dict[str, dict[str, dict[str, object]]]:
    """Return fields of a request for samples that ``GET /v1/solvers`` lists: of solvers, and numbers with a default."""
    about = {
        name: {part: getattr(member, part) for part in ("kind", "about", "default", "choices")}
        for name, member in members(SampleRequest).items()
        if name in SOLVER_FIELDS
        or (member.bulk and member.kind in ("integer", "number") and member.default is not None)
    }
    del about["solver"]
    return {
        "settings": {name: member for name, member in about.items() if name in SOLVER_FIELDS},
        "fields": {name: member for name, member in about.items() if name not in SOLVER_FIELDS},
    }


def _member(name: str, schema: Mapping[str, Any], field: FieldInfo) -> Member:
    forms = [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]
    kinds = ["object" if "$ref" in form else form.get("type", "any") for form in forms]
    words = OPTIONS[name].words if name in OPTIONS and kinds == ["string"] else ()
    choices = tuple(schema.get("enum", words))
    return Member(
        kind=kinds[0] if len(kinds) == 1 else "any",
        about=field.description or schema.get("description", ""),
        default=schema.get("default"),
        choices=choices,
        bulk=SINGLE not in field.metadata,
        low=forms[0].get("minimum") if kinds == ["integer"] else None,
        type=_TYPES.get(name, _type(forms, choices)),
    )


def _type(forms: list[Mapping[str, Any]], choices: tuple[str, ...]) -> str:
    if choices:
        return f"Literal[{', '.join(map(json.dumps, choices))}] | None"
    names = []
    for form in forms:
        if form.get("type") == "array" and form.get("prefixItems"):
            names.append("tuple[float, float]")
        elif form.get("type") == "array" and form["items"].get("type") == "number":
            names.append("Sequence[float] | np.ndarray")
        else:
            names.append(_JSON.get("object" if "$ref" in form else form.get("type", ""), "Any"))
    return "Any" if "Any" in names else f"{' | '.join(dict.fromkeys(names))} | None"
