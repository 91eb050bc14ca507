"""The free sizes of an exported program: symbols in the shapes of its arguments, which become axes with bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from models.importing.files import ForeignError
from models.messages import explain
from models.shapes import FreeAxis

_LONGEST = 1 << 16  # largest size of an axis without a bound
_SYMBOL = r"(?:Symbol\('(\w+)'(?:, \w+=True)*\)|(\w+))"
_PLAIN = re.compile(_SYMBOL)
_TIMES = re.compile(rf"Mul\(Integer\((\d+)\), {_SYMBOL}\)|(\d+)\*(\w+)")

Meta = Mapping[str, Any]
"""A size in the form of the program's JSON."""


def symbol(size: Meta) -> str | None:
    """Return the name of a free size; its text is matched, never evaluated."""
    match = _PLAIN.fullmatch(_text(size))
    return None if match is None else match.group(1) or match.group(2)


def _text(size: Meta) -> str:
    return size.get("as_expr", {}).get("expr_str", "")


def _multiple_of(size: Meta) -> tuple[int, str] | None:
    """Return the number that a size is a multiple of, and its symbol; None if it is computed in another way."""
    if (plain := symbol(size)) is not None:
        return 1, plain
    match = _TIMES.fullmatch(_text(size))
    return match and (int(match.group(1) or match.group(4)), match.group(2) or match.group(3) or match.group(5))


class FreeSizes:
    """The axes of one program."""

    def __init__(self, path: Path, constraints: Mapping[str, Mapping[str, Any]]) -> None:
        """Start without axes.

        Args:
            path: path of the program, for messages.
            constraints: the program's bounds on sizes, by expression.
        """
        self._path, self._constraints = path, constraints
        self._axes: dict[str, tuple[int, str]] = {}  # multiple and symbol

    def fresh(self) -> str:
        """Return an unused axis name: L, L2, L3, ..."""
        return next(name for k in count(1) if (name := f"L{k}" if k > 1 else "L") not in self._axes)

    def axis(self, what: str, place: int, size: Meta, name: str, chosen: bool) -> int | str:
        """Return the size of one dimension, or the name of its axis.

        Args:
            what, place: the tensor and its dimension, for messages.
            size: a size in the program's JSON.
            name: name of the axis, unless it has one already.
            chosen: whether the user chose that name.

        Raises:
            ForeignError: the size is computed from others, or the axis has another name.
        """
        if "as_int" in size:
            return size["as_int"]
        free = _multiple_of(size)
        if free is None:
            raise ForeignError(
                f"{self._path}: dimension {place} of its {what} is computed from other sizes; export it as a "
                "separate size (Dim) or a multiple of one"
            )
        for axis, earlier in self._axes.items():
            if earlier == free and (axis == name or not chosen):
                return axis
            if earlier == free or axis == name:
                raise ForeignError(
                    f"{self._path}: dimension {place} of its {what} is called {name!r}, but "
                    + (f"{axis!r} elsewhere" if earlier == free else f"{name!r} is another size elsewhere")
                )
            if earlier[1] == free[1]:
                raise ForeignError(
                    f"{self._path}: dimension {place} of its {what} is {free[0]} k, where {axis} is "
                    f"{earlier[0]} k; sizes that depend on each other must be equal"
                )
        self._axes[name] = free
        return name

    def bounds(self, declared: Mapping[str, Mapping[str, Any]]) -> dict[str, FreeAxis]:
        """Return the allowed sizes of each axis.

        Args:
            declared: the user's fields of `FreeAxis` by axis name, which may narrow the program's bounds.

        Raises:
            ForeignError: there is no such axis, or its bounds are wider than those of the program.
        """
        if unknown := sorted(set(declared) - set(self._axes)):
            axes = ", ".join(self._axes) or "none"
            raise ForeignError(f"--axes names {unknown[0]!r}; the free axes are {axes}")
        return {name: _narrowed(name, self._of(*free), declared.get(name, {})) for name, free in self._axes.items()}

    def _of(self, multiple: int, symbol: str) -> FreeAxis:
        whole = self._constraints.get(f"{multiple}*{symbol}", {})
        one = self._constraints.get(symbol, {})
        least, most = one.get("min_val"), one.get("max_val")
        # Exporters write 2 to mean only that a size of 1 is not a special case.
        least = 1 if least in (None, 2) else max(1, least)
        low = max(1, whole.get("min_val") or multiple * least)
        high = whole.get("max_val") or (multiple * most if most is not None else _LONGEST)
        return FreeAxis(min=low, max=min(high, _LONGEST), multiple=multiple)


def _narrowed(name: str, of_program: FreeAxis, declared: Mapping[str, Any]) -> FreeAxis:
    if not isinstance(declared, Mapping):
        raise ForeignError(f'--axes: {name} is {declared!r}; give its sizes as {{"max": 2000, "multiple": 4}}')
    try:
        axis = FreeAxis.model_validate({**of_program.model_dump(), **declared})
    except ValidationError as error:
        raise ForeignError(f"--axes: {name}: {explain(error)}") from None
    if axis.min < of_program.min or axis.max > of_program.max or axis.multiple % of_program.multiple:
        raise ForeignError(
            f"--axes: {name} is {axis.describe()}, and the program takes {of_program.describe()}; export it with "
            "wider bounds"
        )
    return axis
