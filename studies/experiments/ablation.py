"""The ablation: whether the gap from Euler-50 to RK4-20 is wider for small and for undertrained models."""

import numpy as np

from solvers import SolverSpec
from studies.experiments.context import Context
from studies.experiments.curves import means
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import Figures
from studies.experiments.sampling import Amount, label_of, quality
from studies.experiments.trained import Model, size_of
from studies.experiments.verdicts import Interval, at_least, over_seeds
from training.config import Recipe

DATASET = "moons"
EULER, RK4 = SolverSpec("euler", 50), SolverSpec("rk4", 20)
MEASURES = {"swd": "SWD", "endpoint": "endpoint error"}

CLAIMS = (
    Claim(
        "undertrained",
        "The gap between low-order and high-order solvers widens for undertrained models",
        "gap = Euler-50 minus RK4-20; the gap after the fewest epochs minus the gap after the most is above 0, with "
        "its 95 % interval over training seeds, in SWD and in endpoint error",
        "ablation",
    ),
    Claim(
        "smaller",
        "The gap between low-order and high-order solvers widens for smaller models",
        "the gap of the narrowest network minus the gap of the widest is above 0, with its 95 % interval over training "
        "seeds, in SWD and in endpoint error",
        "ablation",
    ),
)


def run(context: Context) -> Results:
    """Measure both solvers on every model: widths at the paper's epochs, and epochs at the paper's width."""
    sizes = context.sizes
    points = [(width, sizes.epochs) for width in sizes.widths]
    points += [(sizes.hidden, epochs) for epochs in sizes.epoch_counts if epochs != sizes.epochs]
    amount = Amount((EULER, RK4), sizes.samples, sizes.endpoint_samples, sizes.tight, sizes.sampling_seeds)
    cells: list[Results] = []
    for seed in sizes.training_seeds:
        for width, epochs in sorted(points):
            recipe = context.points_recipe(DATASET, seed, width)

            def get(recipe: Recipe = recipe, epochs: int = epochs) -> Model:
                # One run produces the models for all numbers of epochs (see `trained`).
                counts = sizes.epoch_counts if size_of(recipe).hidden == sizes.hidden else (sizes.epochs,)
                return context.models.series(recipe, counts)[counts.index(epochs)]

            label = f"hidden{width}-epochs{epochs}-seed{seed}"
            found = quality(context, label, recipe.model_copy(update={"epochs": epochs}), get, amount)
            cells.append({"hidden": width, "epochs": epochs, "seed": seed, **found})
    return {
        "widths": list(sizes.widths),
        "epoch_counts": list(sizes.epoch_counts),
        "hidden": sizes.hidden,
        "epochs": sizes.epochs,
        "cells": cells,
    }


def _gaps(results: Results, hidden: int, epochs: int, measure: str) -> list[float]:
    """Return Euler-50 minus RK4-20 for each training seed, in the order of the seeds."""
    return [
        means(cell, label_of(EULER), measure) - means(cell, label_of(RK4), measure)
        for cell in results["cells"]
        if (cell["hidden"], cell["epochs"]) == (hidden, epochs)
    ]


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    hidden, epochs = results["hidden"], results["epochs"]
    few, many = min(results["epoch_counts"]), max(results["epoch_counts"])
    narrow, wide = min(results["widths"]), max(results["widths"])

    def compare(a: tuple[int, int], b: tuple[int, int], words: str) -> tuple[Part, ...]:
        parts = []
        for measure, name in MEASURES.items():
            pairs = zip(_gaps(results, *a, measure), _gaps(results, *b, measure), strict=True)
            change = over_seeds([one - other for one, other in pairs])
            parts.append(Part(f"gap in {name}, {words}", change, at_least(change, 0.0)))
        return tuple(parts)

    return [
        Finding(claims["undertrained"], compare((hidden, few), (hidden, many), f"{few} epochs minus {many}")),
        Finding(claims["smaller"], compare((narrow, epochs), (wide, epochs), f"width {narrow} minus {wide}")),
    ]


def _points(results: Results) -> dict[str, list[tuple[int, int]]]:
    """Return the two rows of the ablation: (hidden, epochs)."""
    return {
        "hidden width": [(width, results["epochs"]) for width in sorted(results["widths"])],
        "epochs": [(results["hidden"], epochs) for epochs in sorted(results["epoch_counts"])],
    }


def tables(results: Results) -> list[Table]:
    """Tabulate one row per model size and training length."""
    rows = []
    for hidden, epochs in dict.fromkeys(point for row in _points(results).values() for point in row):
        mine = [c for c in results["cells"] if (c["hidden"], c["epochs"]) == (hidden, epochs)]
        cells: list[str | float | int | None] = [hidden, epochs]
        for measure in MEASURES:
            cells += [float(np.mean([means(c, label_of(spec), measure) for c in mine])) for spec in (EULER, RK4)]
            gap = over_seeds(_gaps(results, hidden, epochs, measure))
            cells += [gap.mean, gap.sd]
        rows.append(cells)
    words = [
        f"{name} {what}" for name in ("SWD", "endpoint") for what in (label_of(EULER), label_of(RK4), "gap", "± gap")
    ]
    title = f"{DATASET}: gap Euler-50 to RK4-20, mean ± standard deviation over training seeds"
    return [Table("ablation", title, ("hidden", "epochs", *words), rows)]


def draw(results: Results, figures: Figures) -> None:
    """Plot the gap against width and against epochs; the bars are 95 % intervals over training seeds."""
    figure, axes = figures.panels(2, 2, width=4.2, height=2.7)
    for column, (label, points) in enumerate(_points(results).items()):
        for row, (measure, name) in enumerate(MEASURES.items()):
            gaps: list[Interval] = [over_seeds(_gaps(results, *point, measure)) for point in points]
            x = [point[column] for point in points]
            axis = axes[2 * row + column]
            bars = [gap.high - gap.mean if np.isfinite(gap.high) else 0.0 for gap in gaps]
            axis.errorbar(x, [gap.mean for gap in gaps], yerr=bars, fmt="o-", color="#00798c", capsize=3, markersize=4)
            for k, point in enumerate(points):
                single = _gaps(results, *point, measure)
                axis.plot([x[k]] * len(single), single, ".", color="#d1495b", markersize=4)
            axis.axhline(0, color="black", linewidth=0.7)
            axis.set_xscale("log")
            axis.set_xticks(x, [str(value) for value in x])
            axis.minorticks_off()
            axis.set_xlabel(label)
            axis.set_ylabel(f"gap in {name}")
    figures.save(figure, "ablation")


EXPERIMENT = Experiment(
    name="ablation",
    title="Small and undertrained models",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
)
