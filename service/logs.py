"""Log format: no line of a record can be taken for another record."""

import logging
import re
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class EscapingFormatter(logging.Formatter):
    """Escapes control characters in messages, and indents tracebacks.

    Messages repeat what clients sent, in which a line break could start a line that looks like a record of its own.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the name in the standard library)
        """Return the first line."""
        return _escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return the traceback, each line of it indented."""
        lines = super().formatException(ei).splitlines()
        return "\n".join("  " + _escaped(line) for line in lines)


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
