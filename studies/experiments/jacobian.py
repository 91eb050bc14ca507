"""Eigenvalues and condition number of the velocity's Jacobian along the paths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.noise import noise
from solvers.diagnose import spectrum
from studies.experiments.context import Context
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import Figures
from studies.experiments.trained import Model
from studies.experiments.verdicts import at_least, at_most, over_seeds

DATASETS = ("moons", "circles")
TIMES = tuple(round(0.1 * k, 1) for k in range(11))
STEPS = 20
EIGENVALUES = ("smaller", "larger")
SHARPLY = 3.0
"""`stiffens sharply`: at least this many times as negative near t = 1 as at t = 0.5."""

CLAIMS = (
    Claim(
        "negative",
        "Both eigenvalues of the Jacobian become more negative towards t = 1",
        "real part at t = 1 minus real part at t = 0, mean over samples: below 0 for the smaller and for the larger "
        "eigenvalue, with its 95 % interval over training seeds",
        "jacobian",
    ),
    Claim(
        "stiffens",
        "The spectrum stiffens sharply near t = 1",
        f"the most negative real part (mean over samples, the lowest of t = 0.8, 0.9 and 1) is at least {SHARPLY:g} "
        "times as negative as at t = 0.5, with its 95 % interval over training seeds",
        "jacobian",
    ),
    Claim(
        "condition",
        "The condition number rises after t = 0.7",
        "at t = 0.8, 0.9 and 1 together it is higher than at t = 0.7: the mean over samples, and the median over "
        "samples; the difference is above 0 with its 95 % interval over training seeds",
        "jacobian",
    ),
)


def _measure(context: Context, model: Model) -> Results:
    x0 = noise(0, 0, context.sizes.jacobian_samples, (2,))
    found = spectrum(model.velocity, x0, TIMES, solver="rk4", steps=STEPS)

    def summary(values: NDArray[np.floating]) -> Results:
        quantiles = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
        names = ("5", "25", "50", "75", "95")
        return {
            "mean": values.mean(axis=0),
            "sd": values.std(axis=0, ddof=1),
            "max": values.max(axis=0),
            **dict(zip(names, quantiles, strict=True)),
        }

    return {
        "smaller": summary(found.real[:, :, 0]),
        "larger": summary(found.real[:, :, 1]),
        "condition": summary(found.condition),
        "complex_share": (found.imag[:, :, 1] != 0).mean(axis=0),
    }


def run(context: Context) -> Results:
    """Compute the spectra of every model."""
    key = {"samples": context.sizes.jacobian_samples, "times": TIMES, "steps": STEPS}
    return context.over_models(DATASETS, lambda _: key, lambda model, _: _measure(context, model))


def _at(model: Any, what: str, statistic: str, times: Sequence[float]) -> NDArray[np.floating]:
    return np.array([model[what][statistic][TIMES.index(t)] for t in times])


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    negative, stiff, condition, notes = [], [], [], []
    late = (0.8, 0.9, 1.0)
    for dataset, models in results.items():
        for which in EIGENVALUES:
            change = over_seeds([float(np.diff(_at(m, which, "mean", (0.0, 1.0)))[0]) for m in models])
            negative.append(Part(f"{dataset}: {which} eigenvalue, t = 1 minus t = 0", change, at_most(change, 0.0)))
        lowest = [float(_at(m, "smaller", "mean", late).min()) for m in models]
        middle = [float(_at(m, "smaller", "mean", (0.5,))[0]) for m in models]
        if all(value < 0 for value in middle):
            ratio = over_seeds([a / b for a, b in zip(lowest, middle, strict=True)])
            label = f"{dataset}: most negative real part, late over t = 0.5"
            stiff.append(Part(label, ratio, at_least(ratio, SHARPLY)))
        else:  # nothing negative to compare with: use the difference instead
            change = over_seeds([a - b for a, b in zip(lowest, middle, strict=True)])
            stiff.append(Part(f"{dataset}: real part, late minus t = 0.5", change, at_most(change, -1.0)))
        for statistic, name in (("mean", "mean"), ("50", "median")):
            rise = over_seeds(
                [
                    float(_at(m, "condition", statistic, late).mean() - _at(m, "condition", statistic, (0.7,))[0])
                    for m in models
                ]
            )
            condition.append(Part(f"{dataset}: {name} condition number, rise after 0.7", rise, at_least(rise, 0.0)))
        peak = [float(_at(m, "condition", "max", TIMES).max()) for m in models]
        notes.append(f"{dataset}: the largest condition number of any sample is {max(peak):.3g}")
    return [
        Finding(claims["negative"], tuple(negative)),
        Finding(claims["stiffens"], tuple(stiff)),
        Finding(claims["condition"], tuple(condition), "; ".join(notes)),
    ]


def tables(results: Results) -> list[Table]:
    """Tabulate one row per data set and time: means over training seeds."""
    rows = []
    for dataset, models in results.items():
        for k, t in enumerate(TIMES):
            cells: list[str | float | int | None] = [dataset, t]
            for what in (*EIGENVALUES, "condition"):
                for statistic in ("mean", "sd", "5", "50", "95"):
                    cells.append(float(np.mean([m[what][statistic][k] for m in models])))
            rows.append([*cells, float(np.mean([m["complex_share"][k] for m in models]))])
    words = [f"{what} {s}" for what in ("Re 1", "Re 2", "cond") for s in ("mean", "sd", "5 %", "median", "95 %")]
    title = "Real parts of the smaller (Re 1) and larger (Re 2) eigenvalue, and condition number; means over seeds"
    return [Table("jacobian", title, ("data", "t", *words, "share complex"), rows)]


def draw(results: Results, figures: Figures) -> None:
    """Plot eigenvalues above condition numbers; bands span the 5 % to 95 % quantiles of samples."""
    figure, axes = figures.panels(2, len(results), width=4.2, height=2.9)
    for column, (dataset, models) in enumerate(results.items()):

        def mean(what: str, statistic: str, models: Any = models) -> NDArray[np.floating]:
            return np.mean([m[what][statistic] for m in models], axis=0)

        axis = axes[column]
        for which, colour in zip(EIGENVALUES, ("#00798c", "#d1495b"), strict=True):
            axis.fill_between(TIMES, mean(which, "5"), mean(which, "95"), color=colour, alpha=0.18, linewidth=0)
            axis.plot(TIMES, mean(which, "mean"), "o-", color=colour, markersize=3.5, label=f"{which}, mean")
            for model in models:
                axis.plot(TIMES, model[which]["mean"], color=colour, linewidth=0.6, alpha=0.6)
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set_title(dataset)
        axis.set_ylabel("real part of eigenvalue")
        axis.legend()
        axis = axes[len(results) + column]
        axis.fill_between(TIMES, mean("condition", "5"), mean("condition", "95"), color="grey", alpha=0.25, linewidth=0)
        axis.plot(TIMES, mean("condition", "mean"), "o-", color="#30638e", markersize=3.5, label="mean")
        axis.plot(TIMES, mean("condition", "50"), "s--", color="#edae49", markersize=3.5, label="median")
        axis.axvline(0.7, color="black", linestyle=":", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_ylabel("condition number")
        axis.set_xlabel("t")
        axis.legend()
    figures.save(figure, "jacobian")


EXPERIMENT = Experiment(
    name="jacobian",
    title="Jacobian along the trajectories",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
)
