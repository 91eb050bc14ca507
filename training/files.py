"""Files read with clear errors, and written so that a reader sees the old content or the new, never a part."""

import gzip
import os
import zlib
from pathlib import Path

from models.regular import write_atomically as write_atomically
from training.errors import DataError, TrainingError


def unzipped(path: Path, *, always: bool = True) -> bytes:
    """Return the content of a gzipped file; of a plain one, too, if it need not be one.

    Raises:
        DataError: it is missing, unreadable, damaged, or no gzip file.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if always or content[:2] == b"\x1f\x8b" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def make_writable(folder: Path, what: str) -> None:
    """Make sure before any work that `folder` exists (made if need be) and can be written to.

    Raises:
        TrainingError: it cannot; the message starts with `what` and names the folder.
    """
    attempt = folder / f".attempt-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        attempt.touch()
        attempt.unlink()
    except OSError as error:
        raise TrainingError(f"{what} {folder} cannot be written to: {error.strerror}") from None
