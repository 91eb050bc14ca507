"""Parts of error messages: pydantic's findings, the first line of another error, names that fit on one line."""

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


def printable(name: object, longest: int = _LONGEST_NAME) -> str:
    """Return a name or path on one line of bounded length; it may contain line ends, and bytes that are not text."""
    text = str(name) if str(name).isprintable() else repr(str(name))
    return text if len(text) <= longest else text[: longest - 3] + "..."
