"""Published models of a repository, read from their cards only; without torch, so it costs little."""

import json
from pathlib import Path
from typing import Any

from models.regular import open_regular
from training.errors import TrainingError

_CARD = "card.json"


def versions(models_dir: Path, name: str) -> list[Path]:
    """Return the folders of the versions of a model, the newest last; empty where there are none.

    Raises:
        TrainingError: the folder exists and cannot be read.
    """
    folder = models_dir / name
    try:
        found = [entry for entry in folder.iterdir() if entry.name.isdecimal() and (entry / _CARD).is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TrainingError(f"model folder {folder} cannot be read: {error.strerror}") from None
    return sorted(found, key=lambda entry: int(entry.name))


def find(models_dir: Path, name: str, recipe_hash: str) -> Path | None:
    """Return the newest version of a model that was trained by this recipe, or None."""
    for folder in reversed(versions(models_dir, name)):
        if recorded(folder / _CARD).get("recipe_hash") == recipe_hash:
            return folder
    return None


def recorded(card: Path) -> dict[str, Any]:
    """Return what a card says of its training.

    Of one that is damaged or no file that is nothing: `python -m models check` says so; training anew is what helps.
    """
    try:
        with open_regular(card) as file:
            training = json.loads(file.read())["training"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return training if isinstance(training, dict) else {}
