"""Parts of error messages: what pydantic found, the first line of another error, names and values cut to fit."""

from typing import Any

from pydantic import ValidationError

_MAX_FAULTS = 20
_LONGEST_VALUE = 60
_LONGEST_NAME = 200
_LONGEST_LINE = 1000
_WITHOUT_VALUE = ("missing", "extra_forbidden", "json_invalid")


def explain(error: ValueError | RecursionError, values: bool = True) -> str:
    """Say in one line what pydantic found: each field, what is wrong with it, and with `values` the value found.

    The value of an unknown field is not shown, as it may be secret, nor is a text that is not JSON. If there are many
    faults, only the first are named. Any other error is its own message.
    """
    if not isinstance(error, ValidationError):
        return str(error)
    parts, faults = [], error.errors(include_url=False, include_context=False)
    for item in faults[:_MAX_FAULTS]:
        field = printable(".".join(map(str, item["loc"])), _LONGEST_VALUE) or "value"
        value = printable(repr(item["input"]), _LONGEST_VALUE)
        shown = "" if not values or item["type"] in _WITHOUT_VALUE else f", found {value}"
        parts.append(f"{field}: {item['msg']}{shown}")
    more = len(faults) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, bounded and printable, or its type if it has none."""
    return printable((str(error).splitlines() or [type(error).__name__])[0], _LONGEST_LINE)


def typed_line(error: BaseException) -> str:
    """Return an error's type and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def printable(name: object, longest: int = _LONGEST_NAME) -> str:
    """Return a name or path on one line of bounded length; it may contain line ends, and bytes that are not text."""
    text = str(name) if str(name).isprintable() else repr(str(name))
    return text if len(text) <= longest else text[: longest - 3] + "..."


def shown(value: Any) -> str:
    """Return a value as JSON would write it, cut to a readable length."""
    if isinstance(value, list | tuple | dict):
        if not value:
            return "{}" if isinstance(value, dict) else "[]"
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int) and value.bit_length() > 200:
        return "an integer of over 200 bits"
    if isinstance(value, str):
        return short(f'"{value[: _LONGEST_VALUE + 1]}"') if len(value) > _LONGEST_VALUE else f'"{value}"'
    return short(repr(value))


def short(text: str) -> str:
    """Return a text, cut to a readable length."""
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"
