"""Regular files, opened for reading; anything else is refused: a named pipe may block for ever, a device has no end."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):  # noqa: N818  (handled like any other reason why a file cannot be read)
    """The path does not lead to a regular file."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes, following links.

    Raises:
        FileNotFoundError: nothing has this name.
        NotRegular: it is a folder, a named pipe, a device or a socket. It is not opened, or, if it replaces a file at
            this very moment, opened without waiting and closed again.
        OSError: it cannot be opened.
    """
    _require(path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _require(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "not a file")
        raise NotRegular(errno.EINVAL, f"is {kind}; only regular files are read")


def opened_path(stream: BufferedReader) -> str:
    """A path to an open file, for libraries that take a path: nobody can have replaced what it leads to."""
    return f"/dev/fd/{stream.fileno()}"
