"""The free sizes of an exported program: symbols in the shapes of its arguments, which become axes with bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from models.importing.files import ForeignError
from models.messages import explain
from models.shapes import Axis

_LONGEST = 1 << 16  # largest size of an axis without a bound
_SYMBOL = r"(?:Symbol\('(\w+)'(?:, \w+=True)*\)|(\w+))"
_PLAIN = re.compile(_SYMBOL)
_TIMES = re.compile(rf"Mul\(Integer\((\d+)\), {_SYMBOL}\)|(\d+)\*(\w+)")

Meta = Mapping[str, Any]
"""A size in the form of the program's JSON."""


def symbol(size: Meta) -> str | None:
    """Return the name of a free size; its text is matched, never evaluated."""
    found = _PLAIN.fullmatch(_text(size))
    return None if found is None else found.group(1) or found.group(2)


def _text(size: Meta) -> str:
    return size.get("as_expr", {}).get("expr_str", "")


@dataclass(frozen=True)
class _Free:
    """A symbol, and the number that the size is a multiple of."""

    symbol: str
    multiple: int = 1


def _free(size: Meta) -> _Free | None:
    if (plain := symbol(size)) is not None:
        return _Free(plain)
    found = _TIMES.fullmatch(_text(size))
    if found is None:
        return None
    return _Free(found.group(2) or found.group(3) or found.group(5), int(found.group(1) or found.group(4)))


class FreeSizes:
    """The axes of one program."""

    def __init__(self, path: Path, constraints: Mapping[str, Mapping[str, Any]]) -> None:
        """Start without axes.

        Args:
            path: path of the program, for messages.
            constraints: the program's bounds on sizes, by expression.
        """
        self._path, self._constraints = path, constraints
        self._axes: dict[str, _Free] = {}

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
        free = _free(size)
        if free is None:
            raise ForeignError(
                f"{self._path}: dimension {place} of its {what} is computed from other sizes; export it as a "
                "separate size (Dim) or a multiple of one"
            )
        for known, other in self._axes.items():
            if other == free and (known == name or not chosen):
                return known
            if other == free or known == name:
                raise ForeignError(
                    f"{self._path}: dimension {place} of its {what} is called {name!r}, but "
                    + (f"{known!r} elsewhere" if other == free else f"{name!r} is another size elsewhere")
                )
            if other.symbol == free.symbol:
                raise ForeignError(
                    f"{self._path}: dimension {place} of its {what} is {free.multiple} k, where {known} is "
                    f"{other.multiple} k; sizes that depend on each other must be equal"
                )
        self._axes[name] = free
        return name

    def bounds(self, declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Axis]:
        """Return the allowed sizes of each axis.

        Args:
            declared: the user's fields of `Axis` by axis name, which may narrow the program's bounds.

        Raises:
            ForeignError: there is no such axis, or its bounds are wider than those of the program.
        """
        if unknown := sorted(set(declared) - set(self._axes)):
            known = ", ".join(self._axes) or "none"
            raise ForeignError(f"--axes names {unknown[0]!r}; the free axes are {known}")
        return {name: self._narrowed(name, self._of(free), declared.get(name, {})) for name, free in self._axes.items()}

    def _of(self, free: _Free) -> Axis:
        whole = self._constraints.get(f"{free.multiple}*{free.symbol}", {})
        one = self._constraints.get(free.symbol, {})
        least, most = one.get("min_val"), one.get("max_val")
        # Exporters write 2 to mean only that a size of 1 is not a special case.
        least = 1 if least in (None, 2) else max(1, least)
        low = max(1, whole.get("min_val") or free.multiple * least)
        high = whole.get("max_val") or (free.multiple * most if most is not None else _LONGEST)
        return Axis(min=low, max=min(high, _LONGEST), multiple=free.multiple)

    def _narrowed(self, name: str, of_program: Axis, declared: Mapping[str, Any]) -> Axis:
        if not isinstance(declared, Mapping):
            raise ForeignError(f'--axes: {name} is {declared!r}; give its sizes as {{"max": 2000, "multiple": 4}}')
        try:
            axis = Axis.model_validate({**of_program.model_dump(), **declared})
        except ValidationError as error:
            raise ForeignError(f"--axes: {name}: {explain(error)}") from None
        if axis.min < of_program.min or axis.max > of_program.max or axis.multiple % of_program.multiple:
            raise ForeignError(
                f"--axes: {name} is {axis.describe()}, and the program takes {of_program.describe()}; export it with "
                "wider bounds"
            )
        return axis
