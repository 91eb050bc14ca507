"""Tables of text and of HTML, with which results show themselves."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


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
