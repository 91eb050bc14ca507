"""Training record of a card: recreate the data from its recipe, and add the results of an evaluation."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from models.checkpoint.card import CARD_FILE, CheckpointError, read_card
from models.checkpoint.loading import Checkpoint
from models.regular import write_atomically
from training.config import Recipe
from training.data import prepare
from training.dataset import DataSet
from training.errors import TrainingError
from training.user_data.data import pin


def data_of(checkpoint: Checkpoint, data_dir: Path | None) -> tuple[DataSet | None, str]:
    """Return the data that the checkpoint was trained on, recreated from its recipe, or None and the reason."""
    written = checkpoint.card.training.get("recipe")
    if not isinstance(written, dict):
        return None, "the card has no recipe, so there are no data to compare with"
    try:
        return prepare(pin(Recipe.model_validate_json(json.dumps(written))), data_dir), ""
    except ValidationError:
        return None, "the recipe in the card is from another release, so there are no data to compare with"
    except TrainingError as error:
        return None, f"no data to compare with: {error}"


def add_to_card(path: Path, key: str, record: Mapping[str, Any]) -> None:
    """Store a record under `key` in the card of the checkpoint `path`, replacing an earlier one.

    The card is read again first, because it may have changed meanwhile. The weights and their hash stay the same.

    Raises:
        TrainingError: the card is damaged or cannot be written; it is then unchanged.
    """
    try:
        card = read_card(path)
        changed = card.model_copy(update={"training": {**card.training, key: dict(record)}}).signed()
        write_atomically(path / CARD_FILE, changed.to_json())
    except (CheckpointError, ValueError) as error:
        raise TrainingError(f"{path / CARD_FILE}: {error}") from None
    except OSError as error:
        raise TrainingError(f"{path / CARD_FILE}: cannot be written: {error.strerror}; it is unchanged") from None
