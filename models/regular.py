"""Regular files: opened for reading, and replaced atomically.

Anything else is refused: a named pipe may block forever, a device has no end.
"""

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


class NotRegular(OSError):  # noqa: N818  (handled like any other reason that a file cannot be read)
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
    """Return a path to an open file, for libraries that take a path: the file cannot have been replaced."""
    return f"/dev/fd/{stream.fileno()}"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at `path` atomically: write beside it, flush to the disk, rename.

    Raises:
        OSError: the disk is full or the folder not writable; the old file is untouched and nothing is left behind.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the folder's entries, so that a rename outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
