"""The study of cheap flows: the price of models trained with one choice of the recipe changed at a time.

Every model is trained with three seeds. All choices are compared with the recipe at `BASE`: the paper's with another
highest frequency of the time embedding, at a smaller size for MNIST, and a plain recipe of the same kind for digits.
The run can be stopped at any time: the most decisive settings are measured first, and the report shows what has been
measured (`--measured`) and what is missing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.field import Field
from models.noise import noise
from selection.candidates import MAX_NFE
from selection.measure import measure_curve
from studies.experiments.cells import Missing
from studies.experiments.context import Context
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import Figures
from studies.experiments.trained import Model, epochs_of
from studies.experiments.verdicts import Interval, at_most, over_seeds
from training.config import CONFIGS, Recipe, ReflowConfig, load_recipe
from training.data_config import DigitsData, MnistData, PointsData
from training.draws import DrawPurpose, seed32
from training.evaluation import evaluate
from training.flow_matching import Validation
from training.parents import pin_parent
from training.price import price

BASE = 6.0
"""Highest frequency of the recipe that other choices are compared with, in radians per unit of t."""

PAPER = 100.0
FREQUENCIES = (1.5, BASE, 25.0, PAPER, 300.0)
CHEAPER = 0.75
"""Largest ratio of NFE that counts as cheaper."""

CHOICES: Mapping[str, Mapping[str, Any]] = {
    "ema 0.999": {"ema": 0.999},
    "cosine schedule": {"schedule": "cosine"},
    "OT coupling": {"coupling": "ot"},
    "cosine and OT": {"schedule": "cosine", "coupling": "ot"},
    "cosine and OT, half the epochs": {"schedule": "cosine", "coupling": "ot", "epochs": 0.5},
    "logit-normal times": {"times": "logit_normal"},
    "half the width": {"network.hidden": 0.5},
    "twice the width": {"network.hidden": 2},
    "half the blocks": {"network.blocks": 0.5},
    "twice the blocks": {"network.blocks": 2},
    "a third of the epochs": {"epochs": 1 / 3},
    "three times the epochs": {"epochs": 3},
}
"""Changes to the recipe, by name; numbers of sizes and epochs are factors."""

_FREQUENCY = "frequency {:g}"


def _key(name: str) -> str:
    """Return the key of a choice's claim, which is also part of a file name."""
    return name.replace(",", "").replace(" ", "-")


CLAIMS = (
    Claim(
        "frequency",
        f"A highest frequency of {BASE:g} instead of {PAPER:g} makes flows cheaper",
        f"NFE of DOPRI5 at 1e-5, ratio of the two: at most {CHEAPER}, with its 95 % interval over training seeds, on "
        "each data set",
        "cheapness",
        ours=True,
    ),
    Claim(
        "fixed",
        f"A highest frequency of {BASE:g} halves what fixed steps cost",
        "NFE of the cheapest solver with fixed steps for an endpoint error of 1 % of the spread, ratio of the two: at "
        "most 0.5, with its 95 % interval over training seeds, on each data set",
        "cheapness",
        ours=True,
    ),
    Claim(
        "quality",
        f"A highest frequency of {BASE:g} costs no quality",
        "sliced Wasserstein distance to unseen data minus that at the paper's frequency, as a share of the latter: at "
        "most 0.1, with its 95 % interval over training seeds, on each data set",
        "cheapness",
        ours=True,
    ),
    Claim(
        "reflow",
        "Flows are cheaper still after reflow",
        f"NFE of DOPRI5 at 1e-5 over that of its parent, the recipe at frequency {BASE:g}: below 1, with its 95 % "
        "interval over training seeds, on each data set",
        "cheapness",
        ours=True,
    ),
    *(
        Claim(
            _key(name),
            f"Flows are cheaper still with: {name}",
            f"NFE of DOPRI5 at 1e-5 over that of the recipe at frequency {BASE:g}: below 1, with its 95 % interval "
            "over training seeds, on each data set",
            "cheapness",
            ours=True,
        )
        for name in CHOICES
    ),
)


_POINTS = ("moons", "circles")
"""Data sets of points, which train fastest."""

_PLAIN: Mapping[str, Any] = {
    "ema": 0.0,
    "schedule": "constant",
    "warmup": 0.0,
    "clip": 0.0,
    "coupling": "independent",
    "times": "uniform",
}
"""A recipe without the choices under study."""


def base_recipe(context: Context, dataset: str, seed: int) -> Recipe:
    """Return the recipe that all choices start from, at the size of the run: the paper's, or a plain one for digits."""
    sizes = context.sizes
    if dataset in _POINTS:
        recipe = context.points_recipe(dataset, seed)
    else:
        recipe = load_recipe(CONFIGS / ("mnist_paper.toml" if dataset == "mnist" else f"{dataset}.toml"))
        network = recipe.network.model_copy(update={"hidden": sizes.hidden, "blocks": sizes.blocks})
        changes: dict[str, Any] = {**_PLAIN, "seed": seed, "network": network, "epochs": sizes.epochs}
        if dataset == "mnist":
            changes["data"] = MnistData(name="mnist", samples=sizes.price_digits, components=sizes.mnist_components)
            changes["epochs"] = sizes.price_mnist_epochs
        recipe = recipe.model_copy(update=changes)
    return changed(recipe.model_copy(update={"name": dataset}), {"network.max_frequency": BASE})


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return the recipe with some fields replaced; sizes and epochs are given as factors."""
    network = dict[str, Any]()
    top = dict[str, Any]()
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        old = getattr(recipe.network if table else recipe, name)
        new = max(1, round(old * value)) if name in ("hidden", "blocks", "epochs") else value
        (network if table else top)[name] = new
    return recipe.model_copy(update={**top, "network": recipe.network.model_copy(update=network)})


_REFLOW = "reflow"

DECISIVE = (_FREQUENCY.format(BASE), _FREQUENCY.format(PAPER), "cosine and OT", "cosine and OT, half the epochs")
"""Settings measured first, on points before digits."""

NEXT = ("cosine schedule", "OT coupling")
"""Settings measured next, before all others."""


def settings() -> dict[str, Mapping[str, Any]]:
    """Return each setting's changes to the recipe at `BASE`; a reflow is trained too, on the paths of that model."""
    return {**{_FREQUENCY.format(value): {"network.max_frequency": value} for value in FREQUENCIES}, **CHOICES}


def _measure(context: Context, model: Model) -> Results:
    data, network, seed = model.data, model.velocity, model.recipe.seed
    x0 = noise(seed32(seed, DrawPurpose.EVALUATION), 0, context.sizes.price_samples, tuple(data.train.shape[1:]))
    curve = measure_curve(Field(network), x0, seconds=math.inf)
    fixed = tuple(point for point in curve.points if not point.adaptive)
    cost = price(network, x0, curve.model_copy(update={"points": fixed}))
    held_out = Validation.of(seed, data.reference, None, torch.device("cpu"))
    quality = evaluate(network, data, seed32(seed, DrawPurpose.EVALUATION))
    return {
        "loss": model.loss,
        "held_out_loss": float(np.mean(held_out.losses(_Plain(network), {}))),
        "swd": quality.swd,
        "swd_real": quality.swd_real,
        **vars(cost),
    }


class _Plain(nn.Module):
    """A velocity as a plain module with no other weights, as `Validation` calls it."""

    def __init__(self, velocity: nn.Module) -> None:
        super().__init__()
        self._velocity = velocity

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self._velocity(x, t)


def _trained() -> tuple[str, ...]:
    """Return the names of all settings and of the reflow."""
    return (*settings(), _REFLOW)


def order(context: Context) -> list[tuple[str, str, int]]:
    """Return all models as (data set, setting, seed), the most important first in case the run is stopped.

    Decisive settings come first; in each group, points come before digits, which take longer. On digits each setting
    gets all its seeds before the next begins, as a verdict needs them.
    """
    seeds = context.sizes.training_seeds
    points = [dataset for dataset in context.sizes.price_datasets if dataset in _POINTS]
    digits = [dataset for dataset in context.sizes.price_datasets if dataset not in _POINTS]
    whole = [(dataset, name, seed) for seed in seeds for dataset in points for name in _trained()]
    whole += [(dataset, name, seed) for dataset in digits for name in _trained() for seed in seeds]
    return sorted(whole, key=lambda model: (model[1] not in DECISIVE, model[0] not in _POINTS, model[1] not in NEXT))


def run(context: Context) -> Results:
    """Train and measure every setting and the reflow with every seed: {data set: {setting: {seed: numbers}}}.

    With cells that are only read (`Measured`), return those that exist.

    Raises:
        Missing: none exists.
    """
    results: Results = {dataset: {name: {} for name in settings()} for dataset in context.sizes.price_datasets}
    missing = None
    for dataset, name, seed in order(context):
        try:
            results[dataset].setdefault(name, {})[str(seed)] = _cell(context, dataset, name, seed)
        except Missing as error:
            missing = error
    found = {dataset: {name: seeds for name, seeds in models.items() if seeds} for dataset, models in results.items()}
    found = {dataset: models for dataset, models in found.items() if models}
    if missing and not found:
        raise missing
    return found


def _cell(context: Context, dataset: str, name: str, seed: int) -> Results:
    """Return the numbers of one model."""
    base = base_recipe(context, dataset, seed)
    label, samples = f"{dataset}-{_key(name)}-{seed}", context.sizes.price_samples
    if name == _REFLOW:
        pairs, epochs = context.sizes.price_pairs, _reflow_epochs(context, base)
        key = {"recipe": base.hash, "pairs": pairs, "epochs": epochs, "samples": samples}
        return context.cell(label, key, lambda: _reflowed(context, base))
    recipe = changed(base, settings()[name])
    return context.cell(
        label, {"recipe": recipe.hash, "samples": samples}, lambda: _measure(context, context.models.get(recipe))
    )


def _reflow_epochs(context: Context, parent: Recipe) -> int:
    """Return the epochs over the pairs that give as many steps as the parent took over its data."""
    assert isinstance(parent.data, PointsData | DigitsData | MnistData)
    return max(1, round(epochs_of(parent) * parent.data.samples / context.sizes.price_pairs))


def _reflowed(context: Context, parent: Recipe) -> Results:
    """Measure a model trained on the paths of another one, for the same number of steps."""
    path = context.models.get(parent).path
    recipe = parent.model_copy(
        update={
            "reflow": ReflowConfig(checkpoint=str(path), pairs=context.sizes.price_pairs),
            "epochs": _reflow_epochs(context, parent),
        }
    )
    return _measure(context, context.models.get(pin_parent(recipe)))


Seeds = Mapping[str, Results]
"""The numbers of one setting by training seed."""


def _pairs(one: Seeds, other: Seeds) -> list[tuple[Results, Results]]:
    """Return the models of two settings that were trained with the same seeds."""
    return [(one[seed], other[seed]) for seed in one if seed in other]


def _ratio(pairs: Sequence[tuple[Results, Results]], what: str) -> Interval:
    return over_seeds([a[what] / b[what] for a, b in pairs])


def _fixed(model: Results) -> int:
    """Return the NFE of the cheapest solver with fixed steps for 1 %, or the most tried if none reaches it."""
    best = model["cheapest"][0]
    return best[1] if best else MAX_NFE


def judge(results: Results) -> list[Finding]:
    """Apply the rules to what has been measured."""
    claims = by_key(CLAIMS)
    ours, paper = _FREQUENCY.format(BASE), _FREQUENCY.format(PAPER)
    parts: dict[str, list[Part]] = {claim.key: [] for claim in CLAIMS}
    for dataset, models in results.items():
        mine = models.get(ours, {})
        if both := _pairs(mine, models.get(paper, {})):
            cost = _ratio(both, "dopri5_nfe")
            parts["frequency"].append(Part(f"{dataset}: NFE of DOPRI5, ratio", cost, at_most(cost, CHEAPER)))
            fixed = over_seeds([_fixed(a) / _fixed(b) for a, b in both])
            parts["fixed"].append(Part(f"{dataset}: NFE for 1 %, ratio", fixed, at_most(fixed, 0.5)))
            quality = over_seeds([a["swd"] / b["swd"] - 1 for a, b in both])
            parts["quality"].append(Part(f"{dataset}: SWD, relative change", quality, at_most(quality, 0.1)))
        for name in (*CHOICES, _REFLOW):
            if both := _pairs(models.get(name, {}), mine):
                ratio, swd = _ratio(both, "dopri5_nfe"), _ratio(both, "swd")
                label = f"{dataset}: NFE of DOPRI5, ratio (SWD {swd.mean:.2f} times)"
                parts[_key(name)].append(Part(label, ratio, at_most(ratio, 1.0)))
    return [Finding(claims[key], tuple(found)) for key, found in parts.items() if found]


COLUMNS = ("loss", "held_out_loss", "swd", "dopri5_nfe", "straightness", "bend", "stiffness")


def tables(results: Results) -> list[Table]:
    """Tabulate one row per data set and setting: means over training seeds, with the spread of the judged numbers."""
    rows: list[list[str | float | int | None]] = []
    for dataset, models in results.items():
        for name, seeds in models.items():
            found = list(seeds.values())
            row: list[str | float | int | None] = [dataset, name, len(found)]
            for column in COLUMNS:
                values = over_seeds([one[column] for one in found])
                row += [values.mean, values.sd] if column in ("swd", "dopri5_nfe") else [values.mean]
            for place in range(2):
                reached = [one["cheapest"][place] for one in found]
                row.append(float(np.mean([best[1] for best in reached])) if all(reached) else None)
            row.append(", ".join(dict.fromkeys(best[0] if best else "-" for best in (o["cheapest"][0] for o in found))))
            rows.append(row)
    columns = (
        *("data", "recipe", "seeds", "training loss", "held-out loss", "SWD", "± SWD", "NFE of DOPRI5", "± NFE"),
        *("length / distance", "bend", "stiffness", "NFE for 1 %", "NFE for 0.1 %", "cheapest for 1 %"),
    )
    return [Table("cheapness", "Price and quality by recipe; means over training seeds", columns, rows, shown=100)]


_LOSSES = (
    "Held-out losses are those of unseen data paired with independent noise. Models that learn other pairs, by OT "
    "coupling or reflow, have larger ones for that reason alone, and should be compared with each other only."
)


def notes(results: Results) -> list[str]:
    """Say what held-out losses mean, and name the settings with missing seeds, by data set."""
    most = max((len(seeds) for models in results.values() for seeds in models.values()), default=0)
    missing = list[str]()
    for dataset, models in results.items():
        counts = {name: len(models.get(name, {})) for name in _trained()}
        lacking = [
            f"{name} ({count} of {most} seeds)" if count else name for name, count in counts.items() if count < most
        ]
        if lacking:
            missing.append(f"{dataset}: {', '.join(lacking)}")
    return [_LOSSES, *([f"Not measured: {'; '.join(missing)}."] if missing else [])]


def draw(results: Results, figures: Figures) -> None:
    """Plot NFE and SWD against the highest frequency, one column per data set."""
    figure, axes = figures.panels(2, len(results), width=2.9, height=2.3)
    for column, (dataset, models) in enumerate(results.items()):
        measured = {value: models.get(_FREQUENCY.format(value)) for value in FREQUENCIES}
        series = {value: list(seeds.values()) for value, seeds in measured.items() if seeds}
        for row, (pick, words) in enumerate(((lambda one: one["dopri5_nfe"], "NFE"), (lambda one: one["swd"], "SWD"))):
            axis = axes[row * len(results) + column]
            values = [over_seeds([pick(one) for one in found]) for found in series.values()]
            axis.errorbar(
                list(series), [v.mean for v in values], yerr=[v.sd for v in values], marker="o", color="#00798c",
                capsize=2, label="DOPRI5 at 1e-5",
            )  # fmt: skip
            if row == 0:
                fixed = [over_seeds([_fixed(one) for one in found]) for found in series.values()]
                axis.errorbar(
                    list(series), [v.mean for v in fixed], yerr=[v.sd for v in fixed], marker="s", color="#d1495b",
                    capsize=2, label="fixed steps, 1 %",
                )  # fmt: skip
                axis.set_title(dataset)
                axis.set_ylim(bottom=0)
                if column == 0:
                    axis.legend()
            axis.set_xscale("log")
            axis.set_xlabel("highest frequency")
            axis.set_ylabel(words)
    figures.save(figure, "cheapness")


EXPERIMENT = Experiment(
    name="cheapness",
    title="What makes a flow cheap",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
    notes=notes,
)
