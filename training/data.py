"""Data sets of recipes: training data, reference data, and the decoder back to the data's own form."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from models.checkpoint.loading import Checkpoint
from training.config import Recipe
from training.data_config import DigitsData, ImagesData, MnistData, PointsData, VectorsData
from training.dataset import DataSet, to_pictures
from training.errors import DataError, TrainingError
from training.known_data import make_points, read_digits, read_mnist
from training.parents import in_space_of, load_parent
from training.user_data.data import pin, read_own


def prepare(recipe: Recipe, data_dir: Path | None = None) -> DataSet:
    """Make or read the recipe's data set. The recipe's seed determines which samples it has.

    Args:
        recipe: names the data set and its settings.
        data_dir: folder with data files, for data sets that need them.

    Raises:
        DataError: a file is missing or damaged, or the data contain a number that is not finite.
        UsageError: the model that the training continues has another space or other conditions.
    """
    match recipe.data:
        case PointsData() as config:
            data = make_points(config, recipe.seed)
        case DigitsData() as config:
            data = read_digits(config, recipe.seed)
        case MnistData() as config:
            data = read_mnist(config, recipe.seed, data_dir)
        case VectorsData() | ImagesData() as config:
            data = read_own(config, recipe.seed, as_picture=recipe.network.takes == "pictures")
    if recipe.network.takes == "pictures" and data.train.ndim == 2:
        data = to_pictures(data, recipe.data.name, recipe.network.architecture)
    if data.condition is not None and not recipe.dropout:
        data = replace(data, condition=data.condition.model_copy(update={"null": None}))
    if recipe.start is not None:
        data = in_space_of(load_parent(recipe.start, "start"), data, recipe.start)
    if not np.isfinite(data.train).all():
        raise DataError(f"the {recipe.data.name} data contain numbers that are not finite")
    data.card["sha256"] = data.digest
    return data


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
