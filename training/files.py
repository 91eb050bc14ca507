"""File access with clear errors: gzipped files are read, and folders checked before any work."""

import gzip
import os
import zlib
from pathlib import Path

from training.errors import DataError, TrainingError


def unzipped(path: Path, *, always: bool = True) -> bytes:
    """Return the content of a gzipped file, or of a plain one unless `always` is set.

    Raises:
        DataError: it is missing, unreadable, damaged, or not a gzip file.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if always or content[:2] == b"\x1f\x8b" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def make_writable(folder: Path, what: str) -> None:
    """Create `folder` if needed and check, before any work, that it can be written to.

    Raises:
        TrainingError: it cannot be written to; the message starts with `what` and names the folder.
    """
    attempt = folder / f".attempt-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        attempt.touch()
        attempt.unlink(missing_ok=True)  # another thread's check may use the same name
    except OSError as error:
        raise TrainingError(f"{what} {folder} cannot be written to: {error.strerror}") from None
