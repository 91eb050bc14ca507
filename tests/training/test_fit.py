import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.checkpoint.loading import load
from training import folders
from training.config import Recipe
from training.errors import StateError, TrainingError
from training.fit import Options, fit
from training.state import RunFolder


def test_publishes_a_checkpoint_that_loads_with_its_recipe_and_metrics(recipe: Recipe, options: Options):
    folder = fit(recipe, options)
    assert folder == options.models_dir / "tiny" / "1"
    checkpoint = load(folder)
    assert checkpoint.card.dataset["name"] == "moons"
    record = checkpoint.card.training
    assert record["recipe_hash"] == recipe.hash
    assert record["recipe"] == recipe.model_dump(mode="json")
    assert record["steps"] == 16
    assert isinstance(record["held_out_loss"], float)
    assert list(options.runs_dir.iterdir()) == []


def test_same_recipe_is_trained_once_unless_forced(
    recipe: Recipe, options: Options, capsys: pytest.CaptureFixture[str]
):
    first = fit(recipe, options)
    capsys.readouterr()
    assert fit(recipe, options) == first
    assert "already has this recipe" in capsys.readouterr().out
    second = fit(recipe, replace(options, force=True))
    assert second.name == "2"
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (first, second)]
    assert weights[0] == weights[1]
    assert fit(recipe.model_copy(update={"seed": 5}), options).name == "3"
    assert folders.find(options.models_dir, "tiny", recipe.hash) == second


def test_a_model_folder_that_cannot_be_used_fails_before_training(recipe: Recipe, options: Options, tmp_path: Path):
    (tmp_path / "file").touch()
    for place in ("models_dir", "runs_dir"):
        with pytest.raises(TrainingError, match=r"file.*cannot be"):
            fit(recipe, replace(options, **{place: tmp_path / "file" / "x"}))
    assert not options.models_dir.exists() or not list(options.models_dir.iterdir())


def test_a_state_of_other_data_names_the_way_out(recipe: Recipe, options: Options):
    run = RunFolder(options.runs_dir / f"tiny-{recipe.hash}")
    from training.data import prepare
    from training.fit import new_network
    from training.trainer import Trainer

    data = prepare(recipe)
    trainer = Trainer(recipe, new_network(recipe, data), data, torch.device("cpu"))
    with run.locked():
        tensors, header = trainer.state()
        run.write(tensors, header.model_copy(update={"data": "others"}))
    with pytest.raises(StateError, match="trained on different data; delete"):
        fit(recipe, options)


def test_a_damaged_card_does_not_count_as_trained(recipe: Recipe, options: Options):
    card = fit(recipe, options) / "card.json"
    for content in ("{", "[]", json.dumps({"training": None})):
        card.write_text(content)
        assert folders.find(options.models_dir, "tiny", recipe.hash) is None
