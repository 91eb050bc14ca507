"""Conditions and known values: one for all samples, or one for each of them, of which a request has its own part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ONE = "condition"
"""Name under which the service describes the only condition of a model."""

NAMED = ("conditions", "negative")
"""Options that hold conditions by name; `condition` and `negative` may also hold the only one."""

KNOWN = "known"
"""Option that holds known values and their mask."""


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
    """Return the option and the name of each array with as many entries as there are samples."""
    places = []
    for option in (ONE, *NAMED, KNOWN):
        content = options.get(option)
        values = content.items() if isinstance(content, Mapping) else [("", content)]
        places += [(option, name) for name, value in values if value is not None and _lengths(value)[:1] == (total,)]
    return places


def differ(
    options: Mapping[str, Any],
    places: Sequence[tuple[str, str]],
    takes: Mapping[str, Any],
    shapes: Sequence[Sequence[int | str]],
) -> list[tuple[str, str]]:
    """Return those of some places that hold one value for each sample.

    Args:
        options: The options of a request.
        places: As `may_differ` returns them.
        takes: Conditions of the model by name, as the service describes them.
        shapes: Shapes of one sample and of its state, with names for free axes; known values have one of them.
    """
    values = _lengths((options.get(KNOWN) or {}).get("values"))
    fits = any(
        len(values) == len(shape)
        and all(isinstance(size, str) or size == length for length, size in zip(values, shape, strict=True))
        for shape in shapes
    )
    own = (KNOWN, "values") in places and not fits

    of_each = []
    for option, name in places:
        axes = len(_lengths(options[option][name] if name else options[option]))
        shape = shape_of(takes, name or ONE)  # None for a condition that the model does not take
        one = len(values) - own if option == KNOWN else None if shape is None else len(shape)
        if one is not None and axes == one + 1:
            of_each.append((option, name))
    return of_each


def slice_of(options: Mapping[str, Any], places: Sequence[tuple[str, str]], rows: slice) -> dict[str, Any]:
    """Return options with only some of the values at these places."""
    part = dict(options)
    for option, name in places:
        part[option] = {**part[option], name: part[option][name][rows]} if name else part[option][rows]
    return part


def _lengths(value: Any) -> tuple[int, ...]:
    """Return the lengths of the axes of an array or, by their first entries, of nested lists."""
    if hasattr(value, "__array__"):
        return tuple(value.shape)
    lengths = ()
    while isinstance(value, (list, tuple)):
        lengths, value = (*lengths, len(value)), value[0] if value else None
    return lengths
