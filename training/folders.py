"""Folders that can be written to, and the versions of published models in them, read without importing torch."""

import contextlib
import csv
import fcntl
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from models.regular import open_regular, write_atomically
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


def write_results(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their names, each whole or not at all.

    Raises:
        TrainingError: one cannot be written.
    """
    for name, content in files.items():
        try:
            write_atomically(folder / name, content)
        except OSError as error:
            raise TrainingError(f"{folder / name}: cannot be written: {error.strerror}") from None


def csv_of(rows: Iterable[Iterable[object]]) -> bytes:
    """Return rows as the text of a .csv."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


_CARD = "card.json"


@contextlib.contextmanager
def training_mark(models_dir: Path, name: str) -> Iterator[Callable[[float | None], None]]:
    """Keep a file that tells a service that a model is being trained; see `models.repository.Repository.training`.

    If it cannot be written, training goes on without it.

    Yields:
        A function that notes how many seconds the training will take.
    """
    from models.repository import TRAINING_FOLDER  # imports torch

    path = models_dir / TRAINING_FOLDER / f"{name}.json"
    file: TextIO | None = None

    def note(left_s: float | None) -> None:
        with contextlib.suppress(OSError):
            if file is not None:
                file.truncate(0)
                file.write(json.dumps({"left_s": left_s}))
                file.flush()

    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    note(None)
    try:
        yield note
    finally:
        with contextlib.suppress(OSError):
            if file is not None:
                path.unlink(missing_ok=True)
                file.close()
                path.parent.rmdir()  # unless another model is being trained


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
