"""The study of cheap flows: one choice of the recipe changed at a time, and the price of each trained model.

Every model is trained anew with three seeds. Choices but the frequency are compared with the recipe at `BASE`, which
is the paper's but for the highest frequency of the time embedding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.noise import noise
from training.config import CONFIGS, Recipe, ReflowConfig, load_recipe
from training.data_config import MnistData
from training.draws import Purpose, seed32
from training.evaluation import evaluate
from training.experiments.context import Context
from training.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from training.experiments.figures import Figures
from training.experiments.trained import Model
from training.experiments.verdicts import Interval, at_most, over_seeds
from training.price import MOST_NFE, price
from training.reflow import pin_parent
from training.validation import Validation

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
    "logit-normal times": {"times": "logit_normal"},
    "half the width": {"network.hidden": 0.5},
    "twice the width": {"network.hidden": 2},
    "half the blocks": {"network.blocks": 0.5},
    "a third of the epochs": {"epochs": 1 / 3},
    "three times the epochs": {"epochs": 3},
}
"""Changes to the recipe, by name; numbers of sizes and epochs are factors."""

_FREQUENCY = "frequency {:g}"

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
        "Reflow makes flows cheaper still",
        f"NFE of DOPRI5 at 1e-5 over that of its parent, the recipe at frequency {BASE:g}: below 1, with its 95 % "
        "interval over training seeds, on each data set that it is tried on",
        "cheapness",
        ours=True,
    ),
    *(
        Claim(
            name.replace(" ", "-"),
            f"{name[0].upper()}{name[1:]} makes flows cheaper still",
            f"NFE of DOPRI5 at 1e-5 over that of the recipe at frequency {BASE:g}: below 1, with its 95 % interval "
            "over training seeds, on each data set that it is tried on",
            "cheapness",
            ours=True,
        )
        for name in CHOICES
    ),
)


def base_recipe(context: Context, dataset: str, seed: int) -> Recipe:
    """The recipe that all choices start from, at the size of the run: the paper's, without its average of weights."""
    sizes = context.sizes
    if dataset in ("moons", "circles"):
        recipe = context.points_recipe(dataset, seed)
    else:
        recipe = load_recipe(CONFIGS / f"{dataset}.toml")
        network = recipe.network.model_copy(update={"hidden": sizes.hidden, "blocks": sizes.blocks})
        changes: dict[str, Any] = {"seed": seed, "network": network, "epochs": sizes.epochs, "ema": 0.0}
        if dataset == "mnist":
            changes["data"] = MnistData(name="mnist", samples=sizes.price_digits, components=sizes.mnist_components)
            changes["epochs"] = sizes.price_mnist_epochs
        recipe = recipe.model_copy(update=changes)
    return changed(recipe, {"network.max_frequency": BASE})


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


REFLOWED = ("moons", "circles")
"""Data sets on which a second model is trained on the paths of the first."""

EVERYWHERE = ("ema 0.999", "cosine schedule", "OT coupling")
"""Choices that are tried on all data sets; the others on moons only."""


def settings(dataset: str) -> dict[str, Mapping[str, Any]]:
    """All that is trained on a data set."""
    frequencies = {_FREQUENCY.format(value): {"network.max_frequency": value} for value in FREQUENCIES}
    return {**frequencies, **{name: CHOICES[name] for name in CHOICES if dataset == "moons" or name in EVERYWHERE}}


def _measure(context: Context, model: Model) -> Results:
    data, network, seed = model.data, model.velocity, model.recipe.seed
    x0 = noise(seed32(seed, Purpose.EVALUATION), 0, context.sizes.price_samples, tuple(data.train.shape[1:]))
    found = price(network, x0)
    held_out = Validation.of(seed, data.reference, None, torch.device("cpu"))
    quality = evaluate(network, data, seed32(seed, Purpose.EVALUATION))
    return {
        "loss": model.loss,
        "held_out_loss": float(np.mean(held_out.losses(_Plain(network), {}))),
        "swd": quality.swd,
        "swd_real": quality.swd_real,
        **found.record(),
    }


class _Plain(nn.Module):
    """A velocity as the plain module that `Validation` calls with other weights, here none."""

    def __init__(self, velocity: nn.Module) -> None:
        super().__init__()
        self._velocity = velocity

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self._velocity(x, t)


def run(context: Context) -> Results:
    """Train and measure every setting with every seed."""
    results: Results = {}
    for dataset in context.sizes.price_datasets:
        results[dataset] = {name: [] for name in settings(dataset)}
        for seed in context.sizes.training_seeds:
            for name, changes in settings(dataset).items():
                recipe = changed(base_recipe(context, dataset, seed), changes)
                key = {"recipe": recipe.hash, "samples": context.sizes.price_samples}
                label = f"{dataset}-{name.replace(' ', '-')}-{seed}"
                found = context.cell(label, key, lambda r=recipe: _measure(context, context.models.get(r)))
                results[dataset][name].append(found)
            if dataset in REFLOWED:
                parent = base_recipe(context, dataset, seed)
                key = {"recipe": parent.hash, "reflow": 1, "samples": context.sizes.price_samples}
                found = context.cell(f"{dataset}-reflow-{seed}", key, lambda r=parent: _reflowed(context, r))
                results[dataset].setdefault("reflow", []).append(found)
    return results


def _reflowed(context: Context, parent: Recipe) -> Results:
    """Measure a model that was trained on the paths of another one."""
    path = context.models.get(parent).path
    recipe = parent.model_copy(update={"reflow": ReflowConfig(checkpoint=str(path), pairs=context.sizes.price_pairs)})
    return _measure(context, context.models.get(pin_parent(recipe)))


def _ratio(one: Sequence[Results], other: Sequence[Results], what: str) -> Interval:
    return over_seeds([a[what] / b[what] for a, b in zip(one, other, strict=True)])


def _fixed(model: Results) -> int:
    """NFE of the cheapest solver with fixed steps for 1 %; the most that was tried where none reaches it."""
    best = model["cheapest"][0]
    return best[1] if best else MOST_NFE


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    ours, paper = _FREQUENCY.format(BASE), _FREQUENCY.format(PAPER)
    parts: dict[str, list[Part]] = {claim.key: [] for claim in CLAIMS}
    for dataset, models in results.items():
        mine, theirs = models[ours], models[paper]
        cost = _ratio(mine, theirs, "dopri5_nfe")
        parts["frequency"].append(Part(f"{dataset}: NFE of DOPRI5, ratio", cost, at_most(cost, CHEAPER)))
        fixed = over_seeds([_fixed(a) / _fixed(b) for a, b in zip(mine, theirs, strict=True)])
        parts["fixed"].append(Part(f"{dataset}: NFE for 1 %, ratio", fixed, at_most(fixed, 0.5)))
        quality = over_seeds([a["swd"] / b["swd"] - 1 for a, b in zip(mine, theirs, strict=True)])
        parts["quality"].append(Part(f"{dataset}: SWD, relative change", quality, at_most(quality, 0.1)))
        for name in (*CHOICES, "reflow"):
            if name in models:
                ratio = _ratio(models[name], mine, "dopri5_nfe")
                swd = _ratio(models[name], mine, "swd")
                label = f"{dataset}: NFE of DOPRI5, ratio (SWD {swd.mean:.2f} times)"
                parts[name.replace(" ", "-")].append(Part(label, ratio, at_most(ratio, 1.0)))
    return [Finding(claims[key], tuple(found)) for key, found in parts.items() if found]


COLUMNS = ("loss", "held_out_loss", "swd", "dopri5_nfe", "straightness", "bend", "stiffness")


def tables(results: Results) -> list[Table]:
    """One row a data set and setting; means over training seeds, with the spread of what is judged."""
    rows: list[list[str | float | int | None]] = []
    for dataset, models in results.items():
        for name, found in models.items():
            row: list[str | float | int | None] = [dataset, name]
            for column in COLUMNS:
                values = over_seeds([one[column] for one in found])
                row += [values.mean, values.sd] if column in ("swd", "dopri5_nfe") else [values.mean]
            for place in range(2):
                reached = [one["cheapest"][place] for one in found]
                row.append(float(np.mean([best[1] for best in reached])) if all(reached) else None)
            row.append(", ".join(dict.fromkeys(best[0] if best else "-" for best in (o["cheapest"][0] for o in found))))
            rows.append(row)
    columns = (
        *("data", "recipe", "training loss", "held-out loss", "SWD", "± SWD", "NFE of DOPRI5", "± NFE"),
        *("length / distance", "bend", "stiffness", "NFE for 1 %", "NFE for 0.1 %", "cheapest for 1 %"),
    )
    return [Table("cheapness", "Price and quality by recipe; means over training seeds", columns, rows, shown=60)]


def draw(results: Results, figures: Figures) -> None:
    """NFE and SWD against the highest frequency, a column a data set."""
    figure, axes = figures.panels(2, len(results), width=2.9, height=2.3)
    for column, (dataset, models) in enumerate(results.items()):
        series = {value: models[_FREQUENCY.format(value)] for value in FREQUENCIES}
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
)
