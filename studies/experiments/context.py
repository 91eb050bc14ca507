"""The context of an experiment: sizes, trained models, and storage for its results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.experiments.cells import Cells
from studies.experiments.sizes import Sizes
from studies.experiments.trained import Model, TrainedModels, epochs_of, size_of
from training.config import CONFIGS, Recipe, load_recipe
from training.data_config import MnistData


@dataclass(frozen=True)
class Context:
    """The surroundings of one experiment.

    Attributes:
        sizes: how much to measure.
        models: finds or trains models.
        cells: results of this experiment on disk.
        data_dir: folder with data files, or None.
    """

    sizes: Sizes
    models: TrainedModels
    cells: Cells
    data_dir: Path | None = None

    def cell(self, label: str, key: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`, stored under `key` (see `Cells.get`)."""
        return self.cells.get(label, key, compute)

    def points_recipe(self, dataset: str, seed: int, hidden: int | None = None) -> Recipe:
        """Return the paper's recipe for `moons` or `circles` at this size, with the largest number of epochs in use."""
        recipe = load_recipe(CONFIGS / f"{dataset}_paper.toml")
        network = recipe.network.model_copy(update={"hidden": hidden or self.sizes.hidden, "blocks": self.sizes.blocks})
        return recipe.model_copy(update={"seed": seed, "network": network, "epochs": self.sizes.epochs})

    def points_model(self, recipe: Recipe) -> Model:
        """Return the model of a recipe for moons or circles; a run on moons also covers the ablation's epochs."""
        counts = (epochs_of(recipe),)
        if recipe.data.name == "moons" and size_of(recipe).hidden == self.sizes.hidden:
            counts = self.sizes.epoch_counts
        return self.models.series(recipe, counts)[counts.index(epochs_of(recipe))]

    def over_models(
        self,
        datasets: Sequence[str],
        key: Callable[[int], Mapping[str, Any]],
        measure: Callable[[Model, int], Any],
    ) -> dict[str, list[Any]]:
        """Measure the models of all training seeds.

        Args:
            datasets: of `moons` and `circles`.
            key: training seed -> what determines the result besides the recipe.
            measure: model, training seed -> its result.

        Returns:
            For each data set, one result per training seed.
        """

        def result(dataset: str, seed: int) -> Any:
            recipe = self.points_recipe(dataset, seed)
            whole = {"recipe": recipe.hash, **key(seed)}
            return self.cell(f"{dataset}-{seed}", whole, lambda: measure(self.points_model(recipe), seed))

        return {dataset: [result(dataset, seed) for seed in self.sizes.training_seeds] for dataset in datasets}

    def mnist_recipe(self) -> Recipe:
        """Return the paper's recipe for MNIST at this size."""
        recipe = load_recipe(CONFIGS / "mnist_paper.toml")
        sizes = self.sizes
        return recipe.model_copy(
            update={
                "data": MnistData(name="mnist", samples=sizes.mnist_digits, components=sizes.mnist_components),
                "network": recipe.network.model_copy(
                    update={"hidden": sizes.mnist_hidden, "blocks": sizes.mnist_blocks}
                ),
                "epochs": sizes.mnist_epochs,
            }
        )
