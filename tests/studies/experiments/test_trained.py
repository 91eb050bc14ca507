import json
from pathlib import Path

import pytest
import torch

from studies.experiments.trained import TrainedModels, training_seconds
from training.config import Recipe
from training.errors import StateError
from training.fit import Options, fit
from training.state import RunFolder
from training.trainer import Trainer


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in model.parameters()])


@pytest.fixture
def models(tmp_path: Path) -> TrainedModels:
    return TrainedModels(tmp_path / "models", tmp_path / "runs")


def test_snapshots_of_one_run_are_the_models_of_shorter_runs(
    models: TrainedModels, tmp_path: Path, recipe: Recipe, options: Options
):
    series = models.series(recipe, [2, 4])
    for model, epochs in zip(series, (2, 4), strict=True):
        shorter = recipe.model_copy(update={"epochs": epochs})
        alone = TrainedModels(tmp_path / f"alone{epochs}", tmp_path / "runs2").get(shorter)
        assert torch.equal(weights(model.velocity), weights(alone.velocity))
        assert model.recipe == shorter
        published = TrainedModels(options.models_dir, tmp_path / "runs3")
        fit(shorter, options)
        assert torch.equal(weights(published.get(shorter).velocity), weights(model.velocity))


def test_what_was_trained_is_found_again_also_in_another_repository(
    models: TrainedModels, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    first = models.get(recipe)

    def never(self: Trainer, hooks: object) -> bool:
        raise AssertionError

    monkeypatch.setattr(Trainer, "run", never)
    assert models.get(recipe).path == first.path
    elsewhere = TrainedModels(tmp_path / "other", tmp_path / "runs", also=models.folder)
    assert elsewhere.get(recipe).path == first.path


def test_a_run_that_dies_goes_on_from_its_state(
    models: TrainedModels, recipe: Recipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("studies.experiments.trained._SAVE_EVERY", 0.0)
    step = Trainer._train_step
    done: list[int] = []

    def dies(self: Trainer, rows: torch.Tensor) -> None:
        if self.step == 11:
            raise MemoryError
        done.append(self.step)
        step(self, rows)

    monkeypatch.setattr(Trainer, "_train_step", dies)
    with pytest.raises(MemoryError):
        models.series(recipe, [2, 4])
    monkeypatch.setattr(Trainer, "_train_step", lambda self, rows: (done.append(self.step), step(self, rows)))
    again = models.series(recipe, [2, 4])
    assert done == list(range(16))
    assert torch.equal(
        weights(again[1].velocity),
        weights(TrainedModels(tmp_path / "alone", tmp_path / "runs2").get(recipe).velocity),
    )


def test_a_deleted_snapshot_is_trained_again(models: TrainedModels, recipe: Recipe):
    before = models.series(recipe, [2, 4])
    for file in before[0].path.iterdir():
        file.unlink()
    after = models.series(recipe, [2, 4])
    assert torch.equal(weights(before[0].velocity), weights(after[0].velocity))
    assert after[1].path == before[1].path


def test_a_state_of_other_data_names_the_way_out(models: TrainedModels, recipe: Recipe, monkeypatch):
    monkeypatch.setattr("studies.experiments.trained._SAVE_EVERY", 0.0)
    monkeypatch.setattr("training.state.RunFolder.remove", lambda self: None)
    short = recipe.model_copy(update={"epochs": 1})
    models.get(short)
    saved = RunFolder(models._runs / f"tiny-{short.hash}").read()
    assert saved is not None
    target = RunFolder(models._runs / f"tiny-{recipe.hash}")
    target.folder.mkdir()
    target.write(saved[0], saved[1].model_copy(update={"data": "0" * 64}))
    with pytest.raises(StateError, match="trained on different data; delete"):
        models.get(recipe)


def test_training_time_counts_a_run_once(models: TrainedModels, recipe: Recipe):
    series = models.series(recipe, [2, 4])
    other = models.get(recipe.model_copy(update={"seed": 9}))
    longest = max(series, key=lambda model: model.recipe.epochs or 0)
    assert training_seconds(models.folder) == pytest.approx(longest.train_s + other.train_s)
    card = other.path / "card.json"
    card.write_text(json.dumps({"training": None}))
    assert training_seconds(models.folder) == pytest.approx(longest.train_s)
    assert training_seconds(models.folder / "nowhere") == 0.0
