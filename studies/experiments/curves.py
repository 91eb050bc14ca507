"""Tables and figures of quality against NFE, for any data set."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from solvers import catalogue
from studies.experiments.experiment import Table
from studies.experiments.figures import COLOURS, Figures
from studies.experiments.verdicts import over_seeds

Measured = Mapping[str, Any]
"""Result of `sampling.quality` for one model."""

_MARKERS = {"euler": "o", "midpoint": "s", "rk4": "^", "dopri5": "*"}


def means(model: Measured, label: str, measure: str) -> float:
    """Return the mean over sampling seeds of `swd` or `endpoint` for one solver."""
    return float(np.mean(model["solvers"][label][measure]))


def quality_table(name: str, title: str, models: Sequence[Measured]) -> Table:
    """Tabulate the solvers and the noise floor; spread is over models, or over sampling seeds of a single model."""
    rows: list[list[str | float | int | None]] = []
    for label, row in models[0]["solvers"].items():
        nfe = float(np.mean([model["solvers"][label]["nfe"] for model in models]))
        cells: list[str | float | int | None] = [label, round(nfe, 1)]
        for measure in ("swd", "endpoint"):
            values = [means(model, label, measure) for model in models] if len(models) > 1 else row[measure]
            interval = over_seeds(values)
            cells += [interval.mean, interval.sd]
        rows.append(cells)
    floor = over_seeds([value for model in models for value in model["floor"]])
    rows.append(["real to fresh real", None, floor.mean, floor.sd, None, None])
    return Table(name, title, ("solver", "NFE", "SWD", "± SWD", "endpoint error", "± endpoint"), rows)


def draw_curves(figures: Figures, name: str, datasets: Mapping[str, Sequence[Measured]]) -> None:
    """Plot SWD above endpoint error, one column per data set; a point is the mean, a bar the spread over models."""
    figure, axes = figures.panels(2, len(datasets), width=4.2)
    for column, (dataset, models) in enumerate(datasets.items()):
        for row, (measure, words) in enumerate((("swd", "SWD"), ("endpoint", "endpoint error"))):
            axis = axes[row * len(datasets) + column]
            for solver, marker in _MARKERS.items():
                controlled = catalogue.find(solver).adaptive
                labels = [label for label in models[0]["solvers"] if label.split("-")[0] == solver]
                nfe = [float(np.mean([model["solvers"][label]["nfe"] for model in models])) for label in labels]
                spread = [
                    over_seeds(
                        [means(model, label, measure) for model in models]
                        if len(models) > 1
                        else models[0]["solvers"][label][measure]
                    )
                    for label in labels
                ]
                axis.errorbar(
                    nfe,
                    [value.mean for value in spread],
                    yerr=[value.sd for value in spread],
                    color=COLOURS[solver],
                    marker=marker,
                    markersize=9 if controlled else 5,
                    linewidth=1.3,
                    capsize=2,
                    label=f"{solver} at 1e-5" if controlled else solver,
                )
            axis.set_xscale("log")
            axis.set_xlabel("NFE")
            axis.set_ylabel(words)
            axis.set_yscale("log")
            if measure == "swd":
                floor = float(np.mean([model["floor"] for model in models]))
                axis.axhline(floor, color="grey", linestyle=":", linewidth=1.2)
                axis.annotate(
                    "real to fresh real",
                    (0.98, floor),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    xytext=(0, 3),
                    textcoords="offset points",
                    fontsize=8,
                    color="grey",
                )
                axis.set_title(dataset)
            elif column == 0:
                axis.legend(loc="lower left")
    figures.save(figure, name)
