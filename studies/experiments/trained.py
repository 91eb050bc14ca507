"""Models for the experiments, trained once and stored by the hash of their recipe.

The folder is a model repository like any other, so models trained here can be served, and models from
`python -m training fit` are used too. One run to the largest number of epochs also produces all smaller ones:
the rate is constant and each random number is a function of the seed and the step, so the weights after k epochs are
bit for bit those of a run of k epochs.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue
from torch import nn

from models.architectures.residual_mlp import ResidualMLPSize
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from training import folders
from training.config import Recipe
from training.data import prepare
from training.dataset import DataSet
from training.errors import StateError, Stopped, TrainingError
from training.fit import new_network
from training.folders import make_writable
from training.progress import progress_bar, stop_requests
from training.reflow import with_pairs
from training.state import RunFolder
from training.trainer import Trainer

_SAVE_EVERY = 30.0  # seconds


@dataclass(frozen=True)
class Model:
    """A trained network with its data.

    Attributes:
        velocity: the network, in eval mode, float32.
        data: its training and reference data.
        recipe: how it was trained.
        path: its checkpoint.
        loss: mean training loss of its last epoch; None if the card does not record it.
        train_s: seconds spent in its training steps.
    """

    velocity: nn.Module
    data: DataSet
    recipe: Recipe
    path: Path
    loss: float | None
    train_s: float


class TrainedModels:
    """Finds or trains models.

    Attributes:
        folder: the model repository to write to.
    """

    def __init__(self, folder: Path, runs: Path, also: Path | None = None, data_dir: Path | None = None) -> None:
        """Use `folder` and `runs` (the state of unfinished runs); look in the repository `also` too."""
        self.folder = folder
        self._runs = runs
        self._also = also
        self._data_dir = data_dir
        self._data: dict[str, DataSet] = {}

    def get(self, recipe: Recipe) -> Model:
        """Return the model of a recipe, training it if needed.

        Raises:
            TrainingError: the training failed or was stopped.
        """
        return self.series(recipe, [epochs_of(recipe)])[0]

    def series(self, recipe: Recipe, epochs: Sequence[int]) -> list[Model]:
        """Return the models after each of several numbers of epochs, from one run to the largest.

        Raises:
            TrainingError: the training failed or was stopped.
        """
        recipes = [recipe.model_copy(update={"epochs": count}) for count in epochs]
        missing = [one for one in recipes if self._find(one) is None]
        if missing:
            self._train(missing)
        return [self._load(one) for one in recipes]

    def data(self, recipe: Recipe) -> DataSet:
        """Return the data set of a recipe, creating it once."""
        key = f"{recipe.seed} {recipe.data.model_dump_json()} {recipe.reflow and recipe.reflow.model_dump_json()}"
        if key not in self._data:
            data = prepare(recipe, self._data_dir)
            self._data[key] = data if recipe.reflow is None else with_pairs(recipe, data, self._runs)
        return self._data[key]

    def _find(self, recipe: Recipe) -> Path | None:
        for folder in (self.folder, self._also):
            found = folders.find(folder, recipe.name, recipe.hash) if folder else None
            if found:
                return found
        return None

    def _load(self, recipe: Recipe) -> Model:
        path = self._find(recipe)
        if path is None:
            raise TrainingError(f"{recipe.name}: model {recipe.hash} was removed from {self.folder}; run this again")
        checkpoint = load(path)
        record = checkpoint.card.training
        loss, seconds = record.get("loss"), record.get("train_s")
        return Model(
            velocity=checkpoint.velocity,
            data=self.data(recipe),
            recipe=recipe,
            path=path,
            loss=loss if isinstance(loss, float) else None,
            train_s=seconds if isinstance(seconds, float) else float("nan"),
        )

    def _train(self, missing: Sequence[Recipe]) -> None:
        """Train to the largest number of epochs and publish each missing model when its last epoch is done."""
        recipe = max(missing, key=epochs_of)
        make_writable(self.folder, "model folder")
        run = RunFolder(self._runs / f"{recipe.name}-{recipe.hash}")
        with run.locked():
            data = self.data(recipe)
            trainer = Trainer(recipe, new_network(recipe, data), data, torch.device("cpu"))
            due = {epochs_of(one) * trainer.steps_per_epoch: one for one in missing}
            _resume(trainer, run, min(due))
            with (
                stop_requests() as signals,
                progress_bar(_label(recipe), trainer.total_steps, trainer.step) as progress,
            ):

                def after(loss: float | None) -> None:
                    progress(loss)
                    if trainer.step in due:
                        self._publish(trainer, due[trainer.step], data)

                complete = trainer.run(after, run.write, lambda: bool(signals), _SAVE_EVERY)
            if signals and not complete:
                raise Stopped(f"{_label(recipe)}: stopped; run the same command to resume", signals[0])
            run.remove()

    def _publish(self, trainer: Trainer, recipe: Recipe, data: DataSet) -> None:
        record: dict[str, JsonValue] = {
            "recipe": recipe.model_dump(mode="json"),
            "recipe_hash": recipe.hash,
            "steps": trainer.step,
            "threads": torch.get_num_threads(),
            "train_s": round(trainer.seconds, 3),
            "loss": trainer.last_loss,
        }
        network = trainer.published()
        save(self.folder, recipe.name, network, data.decoder, dataset=data.card, training=record, seed=recipe.seed)


def _resume(trainer: Trainer, run: RunFolder, first: int) -> None:
    """Resume from a saved state, unless it is past the first requested model (which was then deleted)."""
    saved = run.read()
    if saved is None or saved[1].step >= first:
        return
    try:
        trainer.restore(*saved)
    except StateError as error:
        raise StateError(f"{run.file}: {error}; delete {run.folder} to train from the start") from None
    torch.set_num_threads(saved[1].threads)  # a different number would change the last bits


def epochs_of(recipe: Recipe) -> int:
    """Return the length of a training from the paper, which counts epochs."""
    assert recipe.epochs is not None
    return recipe.epochs


def size_of(recipe: Recipe) -> ResidualMLPSize:
    """Return the size of a network from the paper; all of them are residual MLPs."""
    assert isinstance(recipe.network, ResidualMLPSize)
    return recipe.network


def _label(recipe: Recipe) -> str:
    size = size_of(recipe)
    return f"{recipe.name} {size.hidden} x {size.blocks}, seed {recipe.seed}"


def training_seconds(folder: Path) -> float:
    """Return the seconds spent training the models of a repository; snapshots of one run are counted once."""
    longest: dict[str, float] = {}
    for file in sorted(folder.glob("*/*/card.json")):
        try:
            record = folders.recorded(file)
            recipe = {key: value for key, value in record["recipe"].items() if key != "epochs"}
            run = json.dumps(recipe, sort_keys=True)
            longest[run] = max(longest.get(run, 0.0), float(record["train_s"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # not written by this project
    return sum(longest.values())
