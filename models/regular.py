"""Opening regular files only: a named pipe would keep the reader waiting for ever, and a device has no end."""

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


class NotRegular(OSError):  # noqa: N818  handled as any other reason for which a file cannot be read
    """What has the name of a file is none."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file to read its bytes; links are followed.

    Raises:
        FileNotFoundError: nothing has this name.
        NotRegular: it is a folder, a named pipe, a device or a socket. None of them is opened, but where it took the
            place of a file in this very moment, and then without waiting for whoever writes into it.
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
    """A path to a file that is open, for libraries that open by path: nobody can have put another in its place."""
    return f"/dev/fd/{stream.fileno()}"
