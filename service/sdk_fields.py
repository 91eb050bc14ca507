"""The SDK's ``_fields.py``, written from the schemas of requests: ``python -m service.sdk_fields``.

The options of the clients, the flags of their command line and those of ``python -m fleet sample`` follow from it; a
test compares the file with the schemas.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from fastapi.routing import APIRoute

from service.app import ROUTES
from service.requests.members import Member, members
from service.requests.parsing import OTHER_NAMES
from service.requests.replays import Answer
from service.requests.schemas import Body, SampleRequest, Solving
from service.routes.frontier import FrontierRequest
from service.routes.replay import ReplayRequest

SDK = Path(__file__).parents[1] / "clients" / "python" / "pathline" / "_fields.py"
"""The file that is written."""

_HEAD = '''"""Fields of requests: the options of the clients, and the flags of the command line.

``python -m service.sdk_fields`` of the server writes this file from its schemas; do not edit it.
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
class RequestField:
    """A field of a request for samples.

    Attributes:
        kind: Its JSON type, or ``any``.
        about: One line about it.
        default: Its value if a request has none.
        choices: Its values, if they are words.
        bulk: Whether it may be a setting of a bulk job.
        low: The lowest value, if it is an integer with one.
    """

    kind: str
    about: str
    default: Any = None
    choices: tuple[str, ...] = ()
    bulk: bool = False
    low: int | None = None


'''


_TAIL = '''}
# fmt: on

OTHER_NAMES = {other: name for name, others in _OTHERS.items() for other in others.split()}
"""Fields by the names that other samplers and solvers use for them."""
'''


def sdk_text() -> str:
    """Return the content of the SDK's ``_fields.py``."""
    common = members(Solving)
    text = _HEAD + _options("SolverOptions", "TypedDict", "Options of every operation.", common)
    for name, body, what in [("Sample", SampleRequest, "`sample`, `iter_samples` and `stream`"), *_operations()]:
        own = {key: member for key, member in _optional(body).items() if key not in common}
        about = f"Options of {what}, in addition to those of `SolverOptions`."
        text += _options(f"{name}Options", "SolverOptions", about, own)
    own = {key: member for key, member in _optional(FrontierRequest).items() if key != "solvers"}
    text += _options("FrontierOptions", "TypedDict", "Options of `compare`.", own)
    of_job = ("version", "seed", "first_index", "timeout_s")
    own = {key: member for key, member in members(SampleRequest).items() if member.bulk or key in of_job}
    text += _options("BulkOptions", "TypedDict", "Options of `bulk`.", own)
    own = {key: member for key, member in members(ReplayRequest).items() if key not in Answer.model_fields}
    text += _options("ReplayOptions", "TypedDict", "Options of `replay`.", own)
    text += f"{_FIELD}# fmt: off\nFIELDS: dict[str, RequestField] = {{\n"
    for key, member in members(SampleRequest).items():
        more = {"default": member.default, "choices": member.choices, "bulk": member.bulk}
        parts = [json.dumps(member.kind), json.dumps(member.about)]
        parts += [f"{name}={_literal(value)}" for name, value in more.items() if value]
        parts += [] if member.low is None else [f"low={member.low}"]
        text += f"    {json.dumps(key)}: RequestField({', '.join(parts)}),\n"
    text += "}\n\n_OTHERS = {\n"
    text += "".join(f"    {json.dumps(key)}: {json.dumps(' '.join(names))},\n" for key, names in OTHER_NAMES.items())
    return text + _TAIL


def _optional(body: type[Body]) -> dict[str, Member]:
    """Return the members of a body that are options: all but required ones and `num_samples`, which are arguments."""
    required = {name for name, field in body.model_fields.items() if field.is_required()}
    return {key: member for key, member in members(body).items() if key not in {"num_samples", *required}}


def _operations() -> Iterator[tuple[str, type[Solving], str]]:
    """Yield each operation that solves on a model: its name, its body, and the method of the clients."""
    for route in ROUTES:
        if isinstance(route, APIRoute) and route.path.startswith("/v1/models/{name}/") and route.dependant.body_params:
            body = route.dependant.body_params[0].field_info.annotation
            if isinstance(body, type) and issubclass(body, Solving):
                yield body.__name__.removesuffix("Request"), body, f"`{route.path.rpartition('/')[2]}`"


def _options(name: str, base: str, about: str, own: Mapping[str, Member]) -> str:
    lines = [
        fill(f"{key}: {_sentence(member)}", 120, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for key, member in own.items()
    ]
    types = [f"    {key}: {member.type}" for key, member in own.items()]
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
