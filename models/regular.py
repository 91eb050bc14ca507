"""Regular files: opened for reading, and replaced atomically.

Only regular files are read: a named pipe may block forever, a device has no end.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from glob import escape
from io import BufferedReader, BufferedWriter
from pathlib import Path
from time import time as now

_STALE_S = 3600.0

OUTSIDE = "leads out of the repository; copy the file here instead"

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):  # noqa: N818  (handled like any other reason that a file cannot be read)
    """The path does not lead to a regular file."""


class LeadsOut(OSError):  # noqa: N818  (as above)
    """The path leads out of the model repository once symbolic links are followed."""


def leads_out(path: Path, root: Path) -> bool:
    """Return whether a path leads out of a folder once symbolic links are followed; a loop of links does."""
    try:
        return not path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):
        return True


def open_inside(folder: Path, name: str) -> BufferedReader:
    """Open a file of a checkpoint, `<root>/<name>/<version>/`, to read its bytes; links must stay inside the root.

    Raises:
        LeadsOut: a link leads out of the repository; it is not opened.
        OSError: as `open_regular`.
    """
    if leads_out(folder / name, folder.absolute().parent.parent):
        raise LeadsOut(errno.EACCES, OUTSIDE)
    return open_regular(folder / name)


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


def _require(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "not a file")
        raise NotRegular(errno.EINVAL, f"is {kind}; only regular files are read")


def opened_path(stream: BufferedReader) -> str:
    """Return a path to an open file, for libraries that take a path: the file cannot have been replaced."""
    return f"/dev/fd/{stream.fileno()}"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at `path` by one with this content, see `replacing`.

    Raises:
        OSError: the disk is full or the folder not writable; the old file is untouched and nothing is left behind.
    """
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BufferedWriter]:
    """Open a new file that replaces the one at `path` atomically if the block succeeds, and is removed if it fails.

    It is in the same folder, under a hidden name of its own that ends in `.part`: processes that write the same file
    at once do not disturb each other, and the last one wins. The content is flushed to the disk before the rename.

    Raises:
        OSError: the disk is full or the folder not writable; the old file is untouched and nothing is left behind.
    """
    remove_stale(unfinished(path))
    # Not tempfile: its files are closed to other users, and a service often runs as another user.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))  # a file that is private stays so
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def unfinished(path: Path) -> list[Path]:
    """Return the unfinished files of `replacing`, of processes that are writing or were killed."""
    return list(path.parent.glob(f".{escape(path.name)}.*.part"))


def remove_stale(paths: Iterable[Path], older_s: float = _STALE_S) -> None:
    """Remove the temporary files and folders that killed processes left: those not changed for `older_s` seconds."""
    for path in paths:
        with contextlib.suppress(OSError):
            if now() - path.stat().st_mtime < older_s:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def sync_folder(folder: Path) -> None:
    """Flush the folder's entries, so that a rename outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
