"""Writing files so that a reader sees the old content or the new, never a part, whenever the process dies."""

import os
from pathlib import Path

from training.errors import TrainingError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: written beside it, flushed to the disk, renamed.

    Raises:
        OSError: the disk is full or the folder not writable; the old file is untouched and nothing is left behind.
    """
    beside = path.with_name(path.name + ".tmp")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def make_writable(folder: Path, what: str) -> None:
    """Make sure before any work that `folder` exists (made if need be) and can be written to.

    Raises:
        TrainingError: it cannot; the message starts with `what` and names the folder.
    """
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise TrainingError(f"{what} {folder} cannot be written to: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entries, so that a rename outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
