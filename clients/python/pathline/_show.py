"""How results show themselves: tables of text and of HTML, and links to the service's page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import urlencode

_COMMON = ("model", "num_samples", "seed", "condition", "guidance")
_AS_THEY_ARE = "/(),@="  # allowed in a fragment; a plus would be read as a space


def text_table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return the lines of a table, the first `left` columns aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def html_table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the caption is HTML, the cells are text."""
    cells = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><caption>{caption}</caption><tr>{names}</tr>{cells}</table>"


def percent(value: float) -> str:
    """Return a share as text, such as `0.74 %`."""
    return f"{100 * value:.0f} %" if value >= 1 else f"{100 * value:.2g} %"


def page_url(url: str, common: Mapping[str, Any], *solvers: str) -> str:
    """Return the address of the page that shows one solver, or two side by side; the part after # says what it shows.

    Args:
        url: Base URL of the service.
        common: The request's `model`, `num_samples`, `seed`, `condition` and `guidance`, if given.
        solvers: As text, with all their settings.
    """
    parts: dict[str, str] = {}
    for name in _COMMON:
        value = common.get(name)
        if isinstance(value, float):
            parts[name] = repr(value).removesuffix(".0")
        elif value is not None:
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            parts[name] = json.dumps(value) if is_list else str(value)
    return f"{url}/#{urlencode(parts | dict(zip('ab', solvers, strict=False)), safe=_AS_THEY_ARE)}"
