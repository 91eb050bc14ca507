from pathlib import Path

import numpy as np
import pytest

from models.checkpoint.loading import load
from training.config import Recipe
from training.data_config import VectorsData
from training.errors import TrainingError
from training.fit import Options, fit
from training.recorded import add_to_card, data_of


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


def test_a_record_replaces_the_one_before_and_keeps_the_rest(recipe: Recipe, options: Options):
    folder = fit(recipe, options)
    before = load(folder).card
    add_to_card(folder, "more", {"a": 1})
    add_to_card(folder, "more", {"b": 2})
    after = load(folder).card
    assert after.training == {**before.training, "more": {"b": 2}}
    assert after.weights_sha256 == before.weights_sha256


def test_a_card_that_is_gone_is_said(tmp_path: Path):
    with pytest.raises(TrainingError, match=r"card\.json"):
        add_to_card(tmp_path, "more", {})
