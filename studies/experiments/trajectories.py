"""Sample pictures by solver, and how straight the paths from noise to data are."""

import numpy as np
import torch
from numpy.typing import NDArray

from models.noise import noise
from solvers import SolverSpec, integrate
from studies.experiments.context import Context
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import COLOURS, Figures
from studies.experiments.sampling import DOPRI5, label_of, real, solve
from studies.experiments.trained import Model
from studies.experiments.verdicts import at_most, over_seeds

DATASETS = ("moons", "circles")
SHOWN = (
    SolverSpec("euler", 5),
    SolverSpec("euler", 10),
    SolverSpec("euler", 50),
    SolverSpec("midpoint", 10),
    SolverSpec("rk4", 20),
    DOPRI5,
)
STRAIGHT = 1.05
"""Largest ratio of length to distance between the ends for a path to count as nearly straight."""
_STEPS = 100
_POINTS = 500
_PATHS = 60

CLAIMS = (
    Claim(
        "straight",
        "The learned trajectories are nearly straight lines",
        f"length of the path over the distance of its ends: the mean over samples is at most {STRAIGHT}, with its 95 % "
        "interval over training seeds, on moons and on circles",
        "trajectories",
    ),
)


def straightness(velocity: torch.nn.Module, x0: torch.Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Follow paths with RK4 in 100 steps.

    Returns:
        The states (samples, 101, D); for each sample the length of its path over the distance between its ends; and the
        mean squared distance of the velocity from that of the straight line, as a share of the latter's mean square: 0
        for straight paths at constant speed (Liu et al. 2023, "Flow straight and fast", eq. 3, made dimensionless).
    """
    times = np.linspace(0.0, 1.0, _STEPS + 1)
    solution = integrate(velocity, x0, solver="rk4", steps=_STEPS, save_at=times.tolist())
    assert solution.saved is not None
    states = solution.saved.double().numpy()
    pieces = np.diff(states, axis=1)
    chord = states[:, -1] - states[:, 0]
    length = np.linalg.norm(pieces, axis=2).sum(axis=1)
    bend = ((pieces * _STEPS - chord[:, None]) ** 2).sum(axis=2).mean() / (chord**2).sum(axis=1).mean()
    return states, length / np.linalg.norm(chord, axis=1), float(bend)


def _measure(context: Context, model: Model, pictures: bool) -> Results:
    x0 = noise(0, 0, max(context.sizes.trajectories, _POINTS), (2,))
    states, ratio, bend = straightness(model.velocity, x0[: context.sizes.trajectories])
    found: Results = {
        "ratio": {
            "mean": ratio.mean(),
            "quantiles": dict(zip(("5", "50", "95", "max"), np.quantile(ratio, [0.05, 0.5, 0.95, 1.0]), strict=True)),
        },
        "bend": bend,
    }
    if pictures:
        found["paths"] = states[:_PATHS, ::4].round(3)
        found["real"] = real(context, model, 0, _POINTS)[0].round(3)
        found["samples"] = {
            label_of(spec): solve(model.velocity, x0[:_POINTS], spec).x.numpy().round(3) for spec in SHOWN
        }
    return found


def run(context: Context) -> Results:
    """Measure every model; store pictures for the first."""
    sizes = context.sizes

    def shown(seed: int) -> bool:
        return seed == sizes.training_seeds[0]

    def key(seed: int) -> Results:
        labels = [label_of(one) for one in SHOWN]
        return {"paths": sizes.trajectories, "shown": labels, "keep": shown(seed)}

    return context.over_models(DATASETS, key, lambda model, seed: _measure(context, model, shown(seed)))


def judge(results: Results) -> list[Finding]:
    """Apply the rule."""
    parts, bends = [], []
    for dataset, models in results.items():
        ratio = over_seeds([model["ratio"]["mean"] for model in models])
        parts.append(Part(f"{dataset}: mean length / distance of the ends", ratio, at_most(ratio, STRAIGHT)))
        bend = over_seeds([model["bend"] for model in models])
        median = over_seeds([model["ratio"]["quantiles"]["50"] for model in models])
        worst = max(model["ratio"]["quantiles"]["max"] for model in models)
        bends.append(
            f"{dataset}: the mean squared deviation of the velocity from that of the straight line is {bend} of the "
            f"mean square of the latter; the median path is {median} times as long as the line, the longest "
            f"{worst:.3g} times"
        )
    return [Finding(by_key(CLAIMS)["straight"], tuple(parts), "; ".join(bends))]


def tables(results: Results) -> list[Table]:
    """Tabulate one row per model."""
    rows = [
        [dataset, index, model["ratio"]["mean"], *model["ratio"]["quantiles"].values(), model["bend"]]
        for dataset, models in results.items()
        for index, model in enumerate(models)
    ]
    columns = ("data", "training seed", "mean length / distance", "5 %", "median", "95 %", "max", "bend")
    return [Table("straightness", "How straight the paths are", columns, rows)]


def draw(results: Results, figures: Figures) -> None:
    """Plot a sheet of samples by solver, and the paths."""
    labels = ["real data", *(label_of(spec) for spec in SHOWN)]
    figure, axes = figures.panels(len(results), len(labels), width=1.75, height=1.75)
    for row, (dataset, models) in enumerate(results.items()):
        clouds = [models[0]["real"], *(models[0]["samples"][label_of(spec)] for spec in SHOWN)]
        box = np.array(clouds[0])
        for column, (label, cloud) in enumerate(zip(labels, clouds, strict=True)):
            axis, points = axes[row * len(labels) + column], np.array(cloud)
            colour = "black" if column == 0 else COLOURS[label.split("-")[0]]
            axis.scatter(points[:, 0], points[:, 1], s=1.5, color=colour, linewidths=0, rasterized=True)
            axis.set_xlim(box[:, 0].min() - 0.4, box[:, 0].max() + 0.4)
            axis.set_ylim(box[:, 1].min() - 0.4, box[:, 1].max() + 0.4)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(label if row == 0 else "", fontsize=9)
        axes[row * len(labels)].set_ylabel(dataset)
    figures.save(figure, "samples")
    figure, axes = figures.panels(1, len(results), width=4.0, height=3.8)
    for axis, (dataset, models) in zip(axes, results.items(), strict=True):
        paths = np.array(models[0]["paths"])
        for path in paths:
            axis.plot(path[:, 0], path[:, 1], color="grey", linewidth=0.7, alpha=0.7)
        axis.scatter(paths[:, 0, 0], paths[:, 0, 1], s=8, color="#edae49", label="noise, t = 0", zorder=3)
        axis.scatter(paths[:, -1, 0], paths[:, -1, 1], s=8, color="#00798c", label="sample, t = 1", zorder=3)
        axis.set_title(dataset)
        axis.set_aspect("equal")
        axis.legend(loc="lower left")
    figures.save(figure, "trajectories")


EXPERIMENT = Experiment(
    name="trajectories",
    title="Samples by solver, and trajectories",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
)
