"""Conditions of many samples: one value for all of them, or one for each, of which a request has its own part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ONE = "condition"
"""Name under which the service describes the only condition of a model."""

NAMED = ("conditions", "negative")
"""Options that hold conditions by name; `condition` and `negative` may also hold the only one."""


def shape_of(takes: Mapping[str, Any], name: str) -> list[int | str] | None:
    """Return the shape of one value, with names for free axes; None if the model has no such condition.

    Args:
        takes: Conditions of the model by name, as the service describes them.
        name: Name of the condition; `condition` is the only one, whatever its name.
    """
    entry = takes.get(name) or (next(iter(takes.values())) if name == ONE and len(takes) == 1 else None)
    if entry is None:
        return None
    return list(entry["shape"])


def may_differ(options: Mapping[str, Any], total: int) -> list[tuple[str, str]]:
    """Return the option and the name of each condition with as many entries as there are samples."""
    places = []
    for option in (ONE, *NAMED):
        content = options.get(option)
        values = content.items() if isinstance(content, Mapping) else [("", content)]
        places += [
            (option, name) for name, value in values if value is not None and _axes(value) and len(value) == total
        ]
    return places


def differ(
    options: Mapping[str, Any], places: list[tuple[str, str]], takes: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return those of some places that hold one value for each sample."""
    axes = {(option, name): _axes(options[option][name] if name else options[option]) for option, name in places}
    shapes = {name: shape_of(takes, name or ONE) for _, name in places}
    return [place for place in places if (shape := shapes[place[1]]) is not None and axes[place] == len(shape) + 1]


def slice_of(options: Mapping[str, Any], places: list[tuple[str, str]], rows: slice) -> dict[str, Any]:
    """Return options with only some of the values at these places."""
    part = dict(options)
    for option, name in places:
        part[option] = {**part[option], name: part[option][name][rows]} if name else part[option][rows]
    return part


def _axes(value: Any) -> int:
    """Return the number of axes of an array or of nested lists."""
    if hasattr(value, "__array__"):
        return len(value.shape)
    axes = 0
    while isinstance(value, (list, tuple)):
        axes, value = axes + 1, value[0] if value else None
    return axes
