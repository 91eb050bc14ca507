"""Solvers as text, such as ``rk4-20``, ``ab3-12/shift(3)`` or ``dopri5@1e-5/1e-6+batch``: parser and formatter.

::

    fixed:     NAME-STEPS[/GRID][+OPTION...]
    adaptive:  NAME[@RTOL[/ATOL]][+OPTION...]

GRID is a name, with its parameters in parentheses if it has any, or a list of times in parentheses. OPTION is
`ramp`, `rk`, `paper`, `i`, `pi`, `sample`, `batch`, or `first_step=`, `max_step=` or `max_nfe=` with a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pathline.errors import InvalidValue

DEFAULT_TOLERANCE, DEFAULT_MAX_NFE = 1e-5, 10_000

GRIDS: dict[str, dict[str, float | None]] = {
    "uniform": {},
    "shift": {"value": None},
    "sway": {"coefficient": -1},
    "power": {"exponent": None},
    "logit_normal": {"mean": 0, "std": 1},
    "karras": {"rho": 7, "sigma_min": 0.002, "sigma_max": 80},
}
"""The parameters of each grid in the order in which text has them, with their defaults."""

_WORDS = {
    **dict.fromkeys(("ramp", "rk"), "start"),
    **dict.fromkeys(("paper", "i", "pi"), "controller"),
    **dict.fromkeys(("sample", "batch"), "error_control"),
}
_OPTIONS = ("start", "controller", "error_control", "first_step", "max_step", "max_nfe")  # in the order of printing
_FIELDS = ("steps", "rtol", "atol", "grid", *_OPTIONS)

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
_TEXT = re.compile(
    r"(?P<name>[a-z_][a-z0-9_]*)"
    rf"(?:[-:](?P<steps>[0-9]+)(?:/(?P<grid>[a-z_][a-z0-9_]*)?(?:\((?P<numbers>[^()]*)\))?)?|@(?P<rtol>{_NUMBER})(?:/(?P<atol>{_NUMBER}))?)?"
    rf"(?P<options>(?:\+[a-z_]+(?:={_NUMBER})?)*)"
)
_OPTION = re.compile(rf"\+([a-z_]+)(?:=({_NUMBER}))?")


def parse_solver(text: str) -> dict[str, Any]:
    """Return the options of `sample` given by the text of a solver: `solver` and its settings.

    Raises:
        InvalidValue: It is not understood; also a ValueError.
    """
    given = text.strip().lower()
    match = _TEXT.fullmatch(given)
    if match is None or given.partition("+")[0].endswith("/"):
        raise InvalidValue(
            f"solver {text!r} is not understood; use a name (dopri5), a name with steps (rk4-20, ab3-12/shift(3)) "
            "or a name with a tolerance (dopri5@1e-6)",
            "solver",
        )
    fields: dict[str, Any] = {"solver": match["name"]}
    if match["steps"]:
        fields["steps"] = int(match["steps"])
    if match["grid"] or match["numbers"] is not None:
        fields["grid"] = _grid(text, match["grid"], match["numbers"])
    if match["rtol"]:
        fields["rtol"] = float(match["rtol"])
        fields["atol"] = float(match["atol"] or match["rtol"])
    for word, value in _OPTION.findall(match["options"]):
        field, setting = _option(text, word, value)
        if field in fields:
            raise InvalidValue(f"solver {text!r} says {field} twice; leave one of them out", "solver")
        fields[field] = setting
    return fields


def _grid(text: str, name: str | None, inside: str | None) -> Any:
    if inside is None:
        return name
    numbers = [number.strip() for number in inside.split(",")]
    if not all(re.fullmatch(_NUMBER, number) for number in numbers):
        raise InvalidValue(f"solver {text!r}: ({inside}) are not numbers with commas between them", "solver")
    if name is None:
        return [float(number) for number in numbers]
    parameters = GRIDS.get(name, {})
    if len(numbers) > len(parameters):
        known = ", ".join(f"{grid}({', '.join(names)})" if names else grid for grid, names in GRIDS.items())
        raise InvalidValue(f"solver {text!r}: {name}({inside}) is not a grid; use one of {known}", "solver")
    return {"name": name, **{key: float(number) for key, number in zip(parameters, numbers, strict=False)}}


def _option(text: str, word: str, value: str) -> tuple[str, Any]:
    if word == "max_nfe" and value.isdigit():
        return word, int(value)
    if word in ("first_step", "max_step") and value:
        return word, float(value)
    if word in _WORDS and not value:
        return _WORDS[word], word
    known = ", ".join(f"+{known}" for known in _WORDS)
    raise InvalidValue(
        f"solver {text!r}: +{word}{value and '='}{value} is not an option; use {known}, +first_step=0.01, "
        "+max_step=0.05 or +max_nfe=500",
        "solver",
    )


def expand_solver(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of `sample` in which the text of `solver` is spelled out as separate fields.

    Raises:
        InvalidValue: The text is not understood, or contradicts a separate field.
    """
    text = options.get("solver")
    if not isinstance(text, str):
        return dict(options)
    parsed = parse_solver(text)
    for field, value in parsed.items():
        beside = options.get(field)
        if field != "solver" and beside is not None and beside != value:
            raise InvalidValue(
                f"solver={text!r} says {field}={value!r}, but {field}={beside!r} was given too; leave one of them out",
                field,
            )
    return {**options, **parsed}


def format_solver(fields: Mapping[str, Any]) -> str:
    """Return the text of a solver; `parse_solver` gives the same settings back.

    Args:
        fields: Options of `sample`, or the `solver` of a response, where the name is called `name`.
    """
    name = str(fields.get("solver") or fields.get("name") or "?")
    found = {key: fields[key] for key in _FIELDS if fields.get(key) is not None}
    text = name
    if "steps" in found:
        text += f"-{found['steps']}"
        grid = _grid_text(found.get("grid", "uniform"))
        text += "" if grid == "uniform" else f"/{grid}"
    elif "rtol" in found or "atol" in found:
        rtol, atol = (format_number(found.get(key, DEFAULT_TOLERANCE)) for key in ("rtol", "atol"))
        text += f"@{rtol}" if rtol == atol else f"@{rtol}/{atol}"
    usual = {
        "start": "ramp",
        # The SDK has no catalogue, and needs none to print: tests hold it and the service to one table of texts.
        "controller": "paper" if name == "dopri5" else "i",
        "error_control": "sample",
        "max_nfe": DEFAULT_MAX_NFE,
    }
    for key in _OPTIONS:
        if key in found and found[key] != usual.get(key):
            value = found[key]
            text += (
                f"+{value}"
                if isinstance(value, str)
                else f"+{key}={value if key == 'max_nfe' else format_number(value)}"
            )
    return text


def _grid_text(grid: Any) -> str:
    if isinstance(grid, str):
        return grid
    if not isinstance(grid, Mapping):
        return f"({','.join(map(format_number, grid))})"
    defaults = GRIDS.get(grid["name"]) or {key: None for key in grid if key != "name"}
    values = [grid.get(key, default) for key, default in defaults.items()]
    while values and values[-1] == list(defaults.values())[len(values) - 1]:
        values.pop()
    return f"{grid['name']}({','.join(map(format_number, values))})" if values else str(grid["name"])


def format_number(value: Any) -> str:
    """Return a number as the shortest text that reads back equal; decimal where an exponent saves nothing."""
    sign, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    if not isinstance(exponent, int) or not any(digits):
        return "0" if isinstance(exponent, int) else str(value)
    written = "".join(map(str, digits))
    power = exponent + len(written) - 1
    short = f"{written[0]}{'.' if written[1:] else ''}{written[1:]}e{power}"
    plain = format(Decimal((0, digits, exponent)), "f")
    return ("-" if sign else "") + (plain if len(plain) <= len(short) else short)
