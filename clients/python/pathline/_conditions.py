"""Conditions of many samples: one value for all of them, or one for each, of which a request has its own part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ONE = "condition"
"""Name under which the service describes the only condition of a model."""

NAMED = ("conditions", "negative")
"""Options that hold conditions by name; `condition` and `negative` may also hold the only one."""


def described(info: Any, version: int | None) -> Mapping[str, Any] | None:
    """Return the conditions of a version by name, from a description of its model; None if it is not described."""
    served = [each for each in info.fields.get("served", ()) if each.get("version") == version]
    return (served[0].get("conditions") or {}) if served else None


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
    found = []
    for option in (ONE, *NAMED):
        given = options.get(option)
        values = given.items() if isinstance(given, Mapping) else [("", given)]
        found += [
            (option, name) for name, value in values if value is not None and _axes(value) and len(value) == total
        ]
    return found


def differ(
    options: Mapping[str, Any], places: list[tuple[str, str]], takes: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return those of some places that hold one value for each sample."""
    found = []
    for option, name in places:
        shape = shape_of(takes, name or ONE)
        if shape is not None and _axes(options[option][name] if name else options[option]) == len(shape) + 1:
            found.append((option, name))
    return found


def slice_of(options: Mapping[str, Any], places: list[tuple[str, str]], rows: slice) -> dict[str, Any]:
    """Return options with only some of the values at these places."""
    found = dict(options)
    for option, name in places:
        found[option] = {**found[option], name: found[option][name][rows]} if name else found[option][rows]
    return found


def _axes(value: Any) -> int:
    """Return the number of axes of an array or of nested lists."""
    if hasattr(value, "__array__"):
        return len(value.shape)
    axes = 0
    while isinstance(value, (list, tuple)):
        axes, value = axes + 1, value[0] if value else None
    return axes
