"""Members that stand twice in one JSON object, where parsers keep the last in silence.

Every member has a colon. So where a text has as many colons as what was parsed of it has members, none was lost, and
that is all there is to do for nearly every body; only where the numbers differ is it parsed again, with every pair in
sight.
"""

import json
from typing import Any


class _Twice(Exception):  # noqa: N818
    """Carries the name out of the parser."""


def find_duplicate(text: bytes, content: dict[str, Any]) -> str | None:
    """Return the name of a member that stands twice in one object of a JSON text, or None.

    Args:
        text: valid JSON.
        content: what was parsed of it.
    """
    if text.count(b":") == _colons(content, escapes=b"\\" in text):
        return None
    try:
        json.loads(text, object_pairs_hook=_once, parse_float=str, parse_int=str)
    except _Twice as twice:
        return str(twice)
    return None


def _colons(content: dict[str, Any], escapes: bool) -> int:
    """Count the colons that a text of these members needs.

    Those in names and texts are counted too unless the text has escapes, which may stand for some. Lists are looked
    into by the kind of their first entry only: long ones hold numbers.
    """
    count = 0
    left: list[dict[str, Any] | list[Any]] = [content]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            count += len(item)
            values = item.values()
            if not escapes:
                count += sum(name.count(":") for name in item)
        else:
            values = item
        for value in values:
            if isinstance(value, str):
                count += 0 if escapes else value.count(":")
            elif isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], str | dict)):
                left.append(value)
    return count


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Twice(name)
            seen.add(name)
    return members
