"""Folders, checked before any work."""

import os
from pathlib import Path

from training.errors import TrainingError


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
