"""Fields of requests as other programs see them, derived from the schemas.

``python -m service.requests.members`` writes the SDK's ``_fields.py``, from which its options, the flags of its command
line and those of ``python -m fleet sample`` follow; a test compares the file with the schemas. The page reads the
settings of solvers from ``GET /v1/solvers``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import fill
from typing import Any

from pydantic import BaseModel

from service.replay import Answer
from service.requests.densities import EncodeRequest, LogProbRequest
from service.requests.diagnosis import DiagnoseRequest
from service.requests.parsing import OTHER_NAMES
from service.requests.replay import ReplayRequest
from service.requests.schemas import SOLVER_FIELDS, Mark, SampleRequest, Solving
from solvers.spec import OPTIONS

SDK = Path(__file__).parents[2] / "clients" / "python" / "pathline" / "_fields.py"
"""The file that is written."""

_POSITIONAL = {"model", "num_samples", "samples"}
"""Arguments of the SDK's methods with a place of their own."""

_TYPES = {"seed": "SupportsIndex | None", "budget": "Budget | Mapping[str, float] | str | None"}
"""Types that the SDK accepts beyond those of JSON."""

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
        type: its type in Python.
    """

    kind: str
    about: str
    default: Any
    choices: tuple[str, ...]
    bulk: bool
    type: str


@lru_cache
def members(body: type[BaseModel]) -> Mapping[str, Member]:
    """Return the fields of a request body by name."""
    schema = body.model_json_schema()
    return {
        name: _member(name, schema["properties"][name], body.model_fields[name].metadata) for name in body.model_fields
    }


def solver_settings() -> dict[str, dict[str, object]]:
    """Return the fields of a request that are settings of a solver, as returned by ``GET /v1/solvers``."""
    parts = ("kind", "about", "default", "choices")
    return {
        name: {part: getattr(members(Solving)[name], part) for part in parts}
        for name in SOLVER_FIELDS
        if name != "solver"
    }


def _member(name: str, schema: Mapping[str, Any], marks: Sequence[object]) -> Member:
    forms = [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]
    kinds = ["object" if "$ref" in form else form.get("type", "any") for form in forms]
    choices = tuple(schema.get("enum", OPTIONS[name].words if name in OPTIONS else ()))
    return Member(
        kind=kinds[0] if len(kinds) == 1 else "any",
        about=schema.get("description", ""),
        default=schema.get("default"),
        choices=choices,
        bulk=Mark.SAME_NEEDS not in marks and Mark.SINGLE not in marks,
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


_HEAD = '''"""Fields of requests: the options of the clients, and the flags of the command line.

``python -m service.requests.members`` of the server writes this file from its schemas; do not edit it.
"""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypedDict

import numpy as np

if TYPE_CHECKING:
    from pathline._request import Budget
'''

_FIELD = '''

@dataclass(frozen=True)
class Field:
    """A field of a request for samples.

    Attributes:
        kind: Its JSON type, or ``any``.
        about: One line about it.
        default: Its value if a request has none.
        choices: Its values, if they are words.
        bulk: Whether it may be a setting of a bulk job.
    """

    kind: str
    about: str
    default: Any = None
    choices: tuple[str, ...] = ()
    bulk: bool = False


'''


def sdk_text() -> str:
    """Return the content of the SDK's ``_fields.py``."""
    common = members(Solving)
    text = _HEAD + _options("SolverOptions", "TypedDict", "Options of every operation.", common)
    for name, body, what in (
        ("Sample", SampleRequest, "`sample`, `iter_samples`, `stream` and `compare`"),
        ("Encode", EncodeRequest, "`encode`"),
        ("LogProb", LogProbRequest, "`log_prob`"),
        ("Diagnose", DiagnoseRequest, "`diagnose`"),
    ):
        own = {key: member for key, member in members(body).items() if key not in {*common, *_POSITIONAL}}
        about = f"Options of {what}, in addition to those of `SolverOptions`."
        text += _options(f"{name}Options", "SolverOptions", about, own)
    own = {key: member for key, member in members(ReplayRequest).items() if key not in Answer.model_fields}
    text += _options("ReplayOptions", "TypedDict", "Options of `replay`.", own)
    text += _FIELD + "FIELDS: dict[str, Field] = {\n"
    for key, each in members(SampleRequest).items():
        text += f"    {json.dumps(key)}: Field(\n        {json.dumps(each.kind)},\n        {json.dumps(each.about)},\n"
        more = {"default": each.default, "choices": each.choices, "bulk": each.bulk}
        text += "".join(f"        {name}={_literal(value)},\n" for name, value in more.items() if value)
        text += "    ),\n"
    text += "}\n\nOTHER_NAMES: dict[str, str] = {\n"
    for key, names in OTHER_NAMES.items():
        text += "".join(f'    "{name}": "{key}",\n' for name in names)
    return text + '}\n"""Fields by the names that other samplers and solvers use for them."""\n'


def _options(name: str, base: str, about: str, own: Mapping[str, Member]) -> str:
    lines = [
        fill(f"{key}: {_sentence(each)}", 120, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for key, each in own.items()
    ]
    types = [f"    {key}: {each.type}" for key, each in own.items()]
    head = f'\n\nclass {name}({base}, total=False):\n    """{about} None stands for the default.\n\n    Attributes:\n'
    return "\n".join((head + lines[0], *lines[1:], '    """\n', *types, ""))


def _literal(value: Any) -> str:
    """Return a value as the code formatter writes it."""
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_literal, value))})"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _sentence(member: Member) -> str:
    """Return the line about a member as a sentence, which may begin with one of its values."""
    values = ("true", *member.choices)
    about = member.about
    return f"{about}." if about.startswith(values) else f"{about[:1].upper()}{about[1:]}."


if __name__ == "__main__":
    SDK.write_text(sdk_text())
