"""The log's format: whatever a record says, no line of it can be taken for another record."""

import logging
import re
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class OneRecord(logging.Formatter):
    """Writes control characters of a message as escapes, and indents the lines of a traceback.

    Messages repeat what clients sent. A line break in it would begin a line that looks like a record of its own.
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
