"""Folders that can be written to, and the versions of published models in them, read without importing torch."""

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, Self, TextIO

from models.regular import open_regular
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


_CARD = "card.json"


class TrainingMark:
    """The file that tells a service that a model is being trained; see `models.repository.Repository.training`.

    If it cannot be written, training goes on without it.
    """

    def __init__(self, models_dir: Path, name: str) -> None:
        from models.repository import TRAINING_FOLDER  # imports torch

        self._path = models_dir / TRAINING_FOLDER / f"{name}.json"
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.update(None)
        return self

    def update(self, left_s: float | None) -> None:
        """Note how many seconds the training will take."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.truncate(0)
                self._file.write(json.dumps({"left_s": left_s}))
                self._file.flush()

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
                self._file.close()
                self._path.parent.rmdir()  # unless another model is being trained


def versions(models_dir: Path, name: str) -> list[Path]:
    """Return the folders of a model's versions, the newest last; empty if there are none.

    Raises:
        TrainingError: the folder exists and cannot be read.
    """
    folder = models_dir / name
    try:
        entries = [entry for entry in folder.iterdir() if entry.name.isdecimal() and (entry / _CARD).is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TrainingError(f"model folder {folder} cannot be read: {error.strerror}") from None
    return sorted(entries, key=lambda entry: int(entry.name))


def find(models_dir: Path, name: str, recipe_hash: str) -> Path | None:
    """Return the newest version of a model that was trained by this recipe, or None."""
    for folder in reversed(versions(models_dir, name)):
        if recorded(folder / _CARD).get("recipe_hash") == recipe_hash:
            return folder
    return None


def recorded(card: Path) -> dict[str, Any]:
    """Return the training record of a card.

    It is empty if the card is damaged or not a regular file: `python -m models check` reports that, and training again
    makes another version.
    """
    try:
        with open_regular(card) as file:
            training = json.loads(file.read())["training"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return training if isinstance(training, dict) else {}
