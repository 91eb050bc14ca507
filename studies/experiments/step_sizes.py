"""The steps that DOPRI5 chooses: sizes against t, rejections, evaluations; one step for the batch or per sample."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.noise import noise
from studies.experiments.context import Context
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import Figures
from studies.experiments.sampling import DOPRI5, solve
from studies.experiments.trained import Model
from studies.experiments.verdicts import at_least, over_seeds, within

DATASETS = ("moons", "circles")
CONTROLS = ("batch", "sample")
NFE = 90.0
ABOUT = 0.1
"""`about 90` is kept within this share."""
LATE = 0.8
CONCENTRATED = 1.5
"""`concentrates near t = 1`: steps that begin after `LATE`, as a multiple of what even spacing would put there."""
_SAMPLES = 200
_BINS = 20

CLAIMS = (
    Claim(
        "nfe",
        "DOPRI5 at 1e-5 needs about 90 evaluations",
        f"NFE within {ABOUT:.0%} of {NFE:g}, with its 95 % interval over training seeds: one step size for the batch "
        "(as in the paper), and the mean over samples with a step size for each sample",
        "step-sizes",
    ),
    Claim(
        "concentrates",
        "DOPRI5 concentrates its steps near t = 1",
        f"the share of accepted steps that begin at t >= {LATE} is at least {CONCENTRATED} times {1 - LATE:.1f}, with "
        "its 95 % interval over training seeds, in both kinds of error control",
        "step-sizes",
    ),
)


def _measure(model: Model) -> Results:
    found: Results = {}
    x0 = noise(0, 0, _SAMPLES, tuple(model.data.train.shape[1:]))
    for control in CONTROLS:
        solution = solve(model.velocity, x0, replace(DOPRI5, error_control=control))
        trace = solution.trace
        # In a batch all samples take the same steps: the first sample's are enough.
        mine = trace.sample == 0 if control == "batch" else np.ones(len(trace), dtype=bool)
        t, h, accepted = trace.t[mine], trace.h[mine], trace.accepted[mine]
        bins = np.minimum((t * _BINS).astype(int), _BINS - 1)
        first = trace.sample == 0
        found[control] = {
            "nfe_mean": solution.nfe.mean(),
            "nfe_min": solution.nfe.min(),
            "nfe_max": solution.nfe.max(),
            "late_share": (t[accepted] >= LATE).mean(),
            "rejected_share": 1 - accepted.mean(),
            "h": _quantiles(h, bins, accepted),
            "rejected": [float((~accepted[bins == k]).mean()) if (bins == k).any() else 0.0 for k in range(_BINS)],
            "first": {"t": trace.t[first], "h": trace.h[first], "accepted": trace.accepted[first]},
        }
    return found


def _quantiles(h: NDArray[np.float64], bins: NDArray[np.int64], accepted: NDArray[np.bool_]) -> list[list[float]]:
    """Return the 5 %, 50 % and 95 % quantiles of accepted steps that begin in each bin of t; NaN for empty bins."""
    groups = [h[(bins == k) & accepted] for k in range(_BINS)]
    return [np.quantile(g, [0.05, 0.5, 0.95]).tolist() if len(g) else [float("nan")] * 3 for g in groups]


def run(context: Context) -> Results:
    """Trace every model."""
    results: Results = {}
    for dataset in DATASETS:
        results[dataset] = []
        for seed in context.sizes.training_seeds:
            recipe = context.points_recipe(dataset, seed)
            key = {"recipe": recipe.hash, "samples": _SAMPLES, "bins": _BINS, "late": LATE}
            found = context.cell(f"{dataset}-{seed}", key, lambda r=recipe: _measure(context.points_model(r)))
            results[dataset].append(found)
    return results


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    nfe, late = [], []
    for dataset, models in results.items():
        for control in CONTROLS:
            calls = over_seeds([model[control]["nfe_mean"] for model in models])
            label = f"{dataset}: NFE, one step size for each {control}"
            nfe.append(Part(label, calls, within(calls, NFE * (1 - ABOUT), NFE * (1 + ABOUT))))
            share = over_seeds([model[control]["late_share"] for model in models])
            label = f"{dataset}: share of steps after t = {LATE}, {control}"
            late.append(Part(label, share, at_least(share, CONCENTRATED * (1 - LATE))))
    return [Finding(claims["nfe"], tuple(nfe)), Finding(claims["concentrates"], tuple(late))]


def tables(results: Results) -> list[Table]:
    """Tabulate one row per model and kind of error control."""
    rows = [
        [dataset, index, control, *(model[control][key] for key in _COLUMNS)]
        for dataset, models in results.items()
        for index, model in enumerate(models)
        for control in CONTROLS
    ]
    columns = ("data", "training seed", "error control", "NFE mean", "min", "max", f"share after {LATE}", "rejected")
    return [Table("step-sizes", "DOPRI5 at 1e-5, controller of the paper", columns, rows)]


_COLUMNS = ("nfe_mean", "nfe_min", "nfe_max", "late_share", "rejected_share")


def draw(results: Results, figures: Figures) -> None:
    """Plot the steps of the batch above those of single samples, for the first training seed."""
    figure, axes = figures.panels(2, len(results), width=4.2, height=2.8)
    middle = (np.arange(_BINS) + 0.5) / _BINS
    for column, (dataset, models) in enumerate(results.items()):
        steps = {key: np.array(value) for key, value in models[0]["batch"]["first"].items()}
        axis, good = axes[column], np.array(steps["accepted"], dtype=bool)
        axis.step(steps["t"][good], steps["h"][good], where="post", color="#30638e", linewidth=1.2)
        axis.plot(steps["t"][good], steps["h"][good], "o", color="#30638e", markersize=3.5, label="accepted")
        axis.plot(steps["t"][~good], steps["h"][~good], "x", color="#d1495b", markersize=6, label="rejected")
        calls = models[0]["batch"]["nfe_mean"]
        axis.set_title(f"{dataset}, per batch: {calls:.0f} NFE")
        axis.set_ylabel("step h")
        axis.set_ylim(bottom=0)
        axis.legend()
        axis = axes[len(results) + column]
        _draw_samples(axis, middle, models[0]["sample"])
        axis.set_title(f"{dataset}, per sample: {models[0]['sample']['nfe_mean']:.0f} NFE (mean)")
    figures.save(figure, "step-sizes")


def _draw_samples(axis: Any, middle: NDArray[np.float64], found: Any) -> None:
    low, median, high = np.array(found["h"], dtype=float).T
    axis.fill_between(middle, low, high, color="#00798c", alpha=0.25, linewidth=0, label="5 % to 95 %")
    axis.plot(middle, median, "o-", color="#00798c", markersize=3.5, label="median of accepted steps")
    axis.set_ylabel("step h")
    axis.set_xlabel("t")
    axis.set_ylim(bottom=0)
    other = axis.twinx()
    other.bar(middle, found["rejected"], width=0.8 / len(middle), color="#d1495b", alpha=0.35)
    other.set_ylabel("share rejected", color="#d1495b")
    other.set_ylim(0, 1)
    other.grid(visible=False)
    axis.legend()


EXPERIMENT = Experiment(
    name="step-sizes",
    title="Steps of DOPRI5",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
)
