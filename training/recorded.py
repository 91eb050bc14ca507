"""Training record of a card: recreate the data from its recipe."""

import json
from pathlib import Path

from pydantic import ValidationError

from models.checkpoint.loading import Checkpoint
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
