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

Meta = Mapping[str, Any]
"""A size in the form of the program's JSON."""


def multiple_of(size: Meta) -> tuple[int, str] | None:
    """Return the number that a free size is a multiple of, and its symbol; None if it is computed in another way.

    The text of the size is matched, never evaluated.
    """
    text = re.sub(r"Symbol\('(\w+)'(?:, \w+=True)*\)", r"\1", size.get("as_expr", {}).get("expr_str", ""))
    match = re.fullmatch(r"(?:(\d+)\*)?(\w+)", re.sub(r"Mul\(Integer\((\d+)\), (\w+)\)", r"\1*\2", text))
    return match and (int(match[1] or 1), match[2])


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

    def axis(self, what: str, place: int, size: Meta, name: str, chosen: bool) -> str:
        """Return the name of the axis of a free dimension.

        Args:
            what, place: the tensor and its dimension, for messages.
            size: a size in the program's JSON.
            name: name of the axis, unless it has one already.
            chosen: whether the user chose that name.

        Raises:
            ForeignError: the size is computed from others, or the axis has another name.
        """
        where = f"{self._path}: dimension {place} of its {what} is"
        free = multiple_of(size)
        if free is None:
            raise ForeignError(
                f"{where} computed from other sizes; export it as a separate size (Dim) or a multiple of one"
            )
        for axis, earlier in self._axes.items():
            if earlier == free and (axis == name or not chosen):
                return axis
            if earlier == free or axis == name:
                elsewhere = f"{axis!r}" if earlier == free else f"{name!r} is another size"
                raise ForeignError(f"{where} called {name!r}, but {elsewhere} elsewhere")
            if earlier[1] == free[1]:
                raise ForeignError(
                    f"{where} {free[0]} k, where {axis} is {earlier[0]} k; "
                    "sizes that depend on each other must be equal"
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
