"""Data sets of recipes: training data, reference data, and the decoder back to the data's own form."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from training.config import Recipe
from training.data_config import DigitsData, ImagesData, MnistData, PointsData, VectorsData
from training.dataset import DataSet, to_pictures
from training.errors import DataError
from training.known_data import make_points, read_digits, read_mnist
from training.parents import load_parent
from training.start import in_space_of
from training.user_data.data import read_own


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
