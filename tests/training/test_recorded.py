from pathlib import Path

import numpy as np

from models.checkpoint.loading import load
from training.config import Recipe
from training.data import data_of
from training.data_config import VectorsData
from training.fit import Options, fit


def test_data_that_changed_since_are_not_compared_with(recipe: Recipe, options: Options, tmp_path: Path):
    file = tmp_path / "rows.npy"
    np.save(file, np.random.default_rng(0).normal(size=(40, 2)))
    folder = fit(recipe.model_copy(update={"data": VectorsData(name="vectors", path=str(file))}), options)
    data, note = data_of(load(folder), None)
    assert data is not None
    assert data.train.shape == (36, 2)
    assert note == ""
    np.save(file, np.zeros((40, 2)))
    data, note = data_of(load(folder), None)
    assert data is None
    assert "are not those of the recipe" in note
