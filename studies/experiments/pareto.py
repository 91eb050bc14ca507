"""NFE against sample quality on moons and circles, by SWD, the paper's measure, and by endpoint error."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from studies.experiments.context import Context
from studies.experiments.curves import draw_curves, means, quality_table
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import Figures
from studies.experiments.sampling import Amount, quality, specs
from studies.experiments.verdicts import Verdict, at_most, over_seeds, within

DATASETS = ("moons", "circles")
SAME_ENDPOINT = 1.1
"""RK4-20 matches Euler-200's endpoint error if its own is at most this many times as large."""
COSTS = ((20, "euler-20", "midpoint-10", "rk4-5"), (200, "euler-200", "midpoint-100", "rk4-50"))
"""NFE -> solvers that need exactly that number."""

CLAIMS = (
    Claim(
        "match",
        "RK4 at 80 function evaluations matches Euler at 200 (moons, circles)",
        "SWD: the mean difference RK4-20 minus Euler-200 is within plus or minus the noise floor (SWD of real to fresh "
        f"real data). Endpoint error: RK4-20's is at most {SAME_ENDPOINT} times Euler-200's. Each with its 95 % "
        "interval over training seeds",
        "pareto",
    ),
    Claim(
        "swd-order",
        "At the same NFE a higher order gives better samples, measured in SWD",
        "SWD of RK4 minus SWD of Euler is below 0 at 20 and at 200 NFE, with its 95 % interval over training seeds",
        "pareto",
    ),
    Claim(
        "endpoint-order",
        "At the same NFE a higher order gives better samples, measured by the distance from the exact end of each path",
        "endpoint error of RK4 over that of Euler, and of Midpoint over that of Euler, is below 1 at 20 and at 200 "
        "NFE, with its 95 % interval over training seeds (of the logarithm)",
        "pareto",
    ),
)


def run(context: Context) -> Results:
    """Measure all solvers on every model."""
    sizes = context.sizes
    wanted = specs(sizes.euler, sizes.midpoint, sizes.rk4)
    amount = Amount(wanted, sizes.samples, sizes.endpoint_samples, sizes.tight, sizes.sampling_seeds)
    results: Results = {}
    for dataset in DATASETS:
        results[dataset] = {"models": []}
        for seed in sizes.training_seeds:
            recipe = context.points_recipe(dataset, seed)
            found = quality(context, f"{dataset}-{seed}", recipe, lambda r=recipe: context.points_model(r), amount)
            results[dataset]["models"].append(found)
    return results


def _swd_difference(models: Sequence[Any], a: str, b: str) -> list[float]:
    return [means(model, a, "swd") - means(model, b, "swd") for model in models]


def _log_ratio(models: Sequence[Any], a: str, b: str) -> list[float]:
    return [float(np.log(means(model, a, "endpoint") / means(model, b, "endpoint"))) for model in models]


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    match, swd_order, endpoint_order = [], [], []
    for dataset, found in results.items():
        models = found["models"]
        floor = float(np.mean([model["floor"] for model in models]))
        difference = over_seeds(_swd_difference(models, "rk4-20", "euler-200"))
        label = f"{dataset}: SWD of RK4-20 minus Euler-200 (floor {floor:.4f})"
        match.append(Part(label, difference, within(difference, -floor, floor)))
        ratio = over_seeds(_log_ratio(models, "rk4-20", "euler-200"))
        label = f"{dataset}: ln of endpoint error RK4-20 / Euler-200"
        match.append(Part(label, ratio, at_most(ratio, float(np.log(SAME_ENDPOINT)))))
        for nfe, euler, midpoint, rk4 in COSTS:
            difference = over_seeds(_swd_difference(models, rk4, euler))
            swd_order.append(Part(f"{dataset}, {nfe} NFE: SWD RK4 - Euler", difference, at_most(difference, 0.0)))
            for name, other in (("RK4", rk4), ("Midpoint", midpoint)):
                ratio = over_seeds(_log_ratio(models, other, euler))
                label = f"{dataset}, {nfe} NFE: ln of endpoint error {name} / Euler"
                endpoint_order.append(Part(label, ratio, at_most(ratio, 0.0)))
    return [
        Finding(claims["match"], tuple(match), _smallest(results)),
        Finding(claims["swd-order"], tuple(swd_order)),
        Finding(claims["endpoint-order"], tuple(endpoint_order)),
    ]


def _smallest(results: Results) -> str:
    """Name the cheapest RK4, Midpoint and Euler runs that match Euler-200 by the same rules."""
    phrases = []
    for dataset, found in results.items():
        models = found["models"]
        floor = float(np.mean([model["floor"] for model in models]))
        nfe = {name: float(np.mean([one["solvers"][name]["nfe"] for one in models])) for name in models[0]["solvers"]}
        labels = sorted(nfe, key=nfe.__getitem__)
        for measure in ("SWD", "endpoint error"):
            cheapest: dict[str, str] = {}
            for label in labels:
                solver = label.split("-")[0]
                if measure == "SWD":
                    same = within(over_seeds(_swd_difference(models, label, "euler-200")), -floor, floor)
                else:
                    same = at_most(over_seeds(_log_ratio(models, label, "euler-200")), float(np.log(SAME_ENDPOINT)))
                if same == Verdict.HOLDS and solver not in cheapest:
                    cheapest[solver] = f"{label} ({nfe[label]:.0f} NFE)"
            listed = ", ".join(cheapest.values()) or "none"
            phrases.append(f"{dataset}, by {measure}: the cheapest settings that match Euler-200 are {listed}")
    return "; ".join(phrases)


def tables(results: Results) -> list[Table]:
    """Return one table per data set."""
    return [
        quality_table(f"pareto-{dataset}", f"{dataset}: mean ± standard deviation over training seeds", found["models"])
        for dataset, found in results.items()
    ]


def notes(results: Results) -> list[str]:
    """Report the distance of the models themselves from the data: no solver does better than its model."""
    phrases = []
    for dataset, found in results.items():
        best = over_seeds([means(model, "dopri5", "swd") for model in found["models"]])
        floor = float(np.mean([model["floor"] for model in found["models"]]))
        phrases.append(f"{dataset}: {best} with DOPRI5, {best.mean / floor:.1f} times the noise floor of {floor:.4f}")
    return [f"The error of the models themselves, as SWD to fresh real data: {'; '.join(phrases)}."]


def draw(results: Results, figures: Figures) -> None:
    """Plot SWD and endpoint error against NFE, one column per data set."""
    draw_curves(figures, "pareto", {dataset: found["models"] for dataset, found in results.items()})


EXPERIMENT = Experiment(
    name="pareto",
    title="NFE against quality on moons and circles",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
    notes=notes,
)
