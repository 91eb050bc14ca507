"""Order of convergence of every method with fixed steps on y' = -y, and the cost of accuracy."""

import math

import numpy as np
import torch

from models.noise import noise
from solvers import catalogue, integrate
from studies.experiments.context import Context
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import COLOURS, Figures
from studies.experiments.verdicts import at_least, exact, within

DIMENSIONS = (1, 100, 1000)
TOLERANCE = 0.1
"""Largest difference between a slope and the order."""
ROUNDING = 1e-12
"""Relative errors below this are left out of the regression, because they show rounding and not the method."""
TARGET = 1e-8
PAPER = {"euler": 1, "midpoint": 2, "rk4": 4}
RATIO = 1e4

CLAIMS = (
    Claim(
        "orders",
        "Euler, Midpoint and RK4 converge with orders 1, 2 and 4",
        f"the slope of log error against log h on y' = -y is within {TOLERANCE} of the order in 1, 100 and 1000 "
        "dimensions",
        "convergence",
    ),
    Claim(
        "all-orders",
        "Every other method with fixed steps converges with its stated order",
        "as above, for all of `solvers.catalogue` but DPM-Solver++ and UniPC; Adams-Bashforth with its `rk` start; "
        f"within {TOLERANCE}",
        "convergence",
        ours=True,
    ),
    Claim(
        "ratio",
        "At h = 0.1 RK4 is orders of magnitude more accurate than Euler",
        f"the error of Euler over that of RK4 at h = 0.1 on y' = -y is at least {RATIO:g} (theory: 60 / h^3 = 60,000)",
        "convergence",
    ),
    Claim(
        "cost",
        "High accuracy is cheaper with a higher order",
        f"NFE for a relative error of {TARGET:g} at t = 1: Midpoint needs at most a hundredth of Euler's, RK4 at most "
        "a tenth of Midpoint's",
        "convergence",
    ),
)


def _classical() -> list[str]:
    """Return the methods for any ODE; DPM-Solver++ and UniPC only work on paths from noise to data."""
    return [name for name, entry in catalogue.solvers().items() if not (entry.exponential or entry.stochastic)]


def _error(solver: str, steps: int, dimension: int) -> float:
    """Return the relative error at t = 1, in the Euclidean norm, from a random start."""
    x0 = noise(0, 0, 1, (dimension,), torch.float64)
    start = "rk" if catalogue.find(solver).starts else None
    x = integrate(lambda x, t: -x, x0, solver=solver, steps=steps, start=start).x
    return float((x - math.exp(-1) * x0).norm() / (math.exp(-1) * x0.norm()))


def _fixed_nfe(solver: str, steps: int) -> int:
    entry = catalogue.find(solver)
    stages = entry.tableau.used_stages
    return steps + (entry.multistep_order - 1) * (stages - 1) if entry.multistep_order else steps * stages


def _euler_error(steps: int) -> float:
    """Return the relative error of Euler's steps, (1 - h)^N / e^-1 - 1, without accumulating rounding over N steps."""
    return abs(math.expm1(steps * math.log1p(-1 / steps) + 1))


def steps_needed(solver: str, target: float) -> int:
    """Return the smallest number of steps with an error of at most `target`."""
    known: dict[int, float] = {}

    def error(steps: int) -> float:
        if steps not in known:
            known[steps] = _euler_error(steps) if solver == "euler" else _error(solver, steps, 1)
        return known[steps]

    # The error falls as steps^-order: this lands near the answer, and a walk finds it.
    order, steps = catalogue.find(solver).order, 32
    for _ in range(4):
        steps = max(order, math.ceil(steps * (error(steps) / target) ** (1 / order)))
    while error(steps) > target:
        steps += 1
    while steps > order and error(steps - 1) <= target:
        steps -= 1
    return steps


def run(context: Context) -> Results:
    """Measure errors at doubling numbers of steps, and the steps needed for the target."""
    counts = [10]
    while counts[-1] * 2 <= context.sizes.finest:
        counts.append(counts[-1] * 2)

    target = context.sizes.target

    def measure() -> Results:
        errors = {
            name: {str(dim): [_error(name, steps, dim) for steps in counts] for dim in DIMENSIONS}
            for name in _classical()
        }
        needed = {name: steps_needed(name, target) for name in _classical()}
        return {
            "steps": counts,
            "errors": errors,
            "needed": {name: {"steps": n, "nfe": _fixed_nfe(name, n)} for name, n in needed.items()},
            "euler_formula": {"formula": _euler_error(counts[-1]), "run": errors["euler"]["1"][-1]},
        }

    return context.cell("errors", {"steps": counts, "dimensions": DIMENSIONS, "target": target}, measure)


def slope(results: Results, solver: str, dimension: int) -> float:
    """Return the slope of log error against log h, without errors at rounding level."""
    errors = np.array(results["errors"][solver][str(dimension)])
    kept = errors > ROUNDING
    h = 1 / np.array(results["steps"])
    return float(np.polyfit(np.log(h[kept]), np.log(errors[kept]), 1)[0])


def _finest_slope(results: Results, solver: str) -> float:
    """Return the slope between the two smallest steps with errors in one dimension above rounding."""
    errors = np.array(results["errors"][solver]["1"])
    last = np.flatnonzero(errors > ROUNDING)[-2:]
    return float(np.diff(np.log(errors[last]))[0] / np.diff(np.log(1 / np.array(results["steps"])[last]))[0])


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    orders, others = [], []
    for name in results["errors"]:
        order = catalogue.find(name).order
        for dimension in DIMENSIONS:
            measured = exact(slope(results, name, dimension))
            part = Part(
                f"slope of {name} in {dimension}-D (order {order})",
                measured,
                within(measured, order - TOLERANCE, order + TOLERANCE),
            )
            (orders if name in PAPER else others).append(part)
    at = results["steps"].index(10)
    ratio = exact(results["errors"]["euler"]["1"][at] / results["errors"]["rk4"]["1"][at])
    nfe = {name: row["nfe"] for name, row in results["needed"].items()}
    cheaper = [
        Part(f"NFE of {a} / {b} for {TARGET:g}", exact(nfe[a] / nfe[b]), at_least(exact(nfe[a] / nfe[b]), bound))
        for a, b, bound in (("euler", "midpoint", 100), ("midpoint", "rk4", 10))
    ]
    listed = ", ".join(f"{name} {count:,}" for name, count in nfe.items())
    formula = results["euler_formula"]
    note = (
        f"NFE for {TARGET:g}: {listed}. Euler's number comes from the exact formula (1 - h)^N, because that many "
        f"steps cannot be run; at {results['steps'][-1]} steps, formula and run agree to "
        f"{abs(formula['formula'] / formula['run'] - 1):.0e}"
    )
    finest = ", ".join(f"{name} {_finest_slope(results, name):.2f}" for name in results["errors"])
    local = f"Between the two smallest steps above rounding the slopes are: {finest}"
    return [
        Finding(claims["orders"], tuple(orders)),
        Finding(claims["all-orders"], tuple(others), local),
        Finding(claims["ratio"], (Part("error of Euler / error of RK4", ratio, at_least(ratio, RATIO)),)),
        Finding(claims["cost"], tuple(cheaper), note),
    ]


def tables(results: Results) -> list[Table]:
    """Tabulate slopes and costs, one row per method."""
    at = results["steps"].index(10)
    rows = [
        [
            name,
            catalogue.find(name).order,
            *(round(slope(results, name, dimension), 4) for dimension in DIMENSIONS),
            results["errors"][name]["1"][at],
            results["needed"][name]["steps"],
            results["needed"][name]["nfe"],
        ]
        for name in results["errors"]
    ]
    slopes = (f"slope in {d}-D" for d in DIMENSIONS)
    columns = ("method", "order", *slopes, "error at h = 0.1", "steps for 1e-8", "NFE for 1e-8")
    return [Table("convergence", "Slopes on y' = -y, t = 0 to 1, float64", columns, rows)]


def draw(results: Results, figures: Figures) -> None:
    """Plot error against h in the smallest and the largest dimension."""
    figure, axes = figures.panels(1, 2, width=4.6, height=3.6)
    h = 1 / np.array(results["steps"])
    for axis, dimension in zip(axes, (DIMENSIONS[0], DIMENSIONS[-1]), strict=True):
        for name in results["errors"]:
            style = "o-" if name in PAPER else ".--"
            errors = np.maximum(results["errors"][name][str(dimension)], 1e-17)
            axis.loglog(h, errors, style, color=COLOURS[name], linewidth=1.3, label=name)
        axis.set_title(f"y' = -y in {dimension:,} dimension{'s' if dimension > 1 else ''}")
        axis.set_xlabel("step h")
        axis.set_ylabel("relative error at t = 1")
        axis.axhspan(1e-17, ROUNDING, color="grey", alpha=0.12, linewidth=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    figures.save(figure, "convergence")


EXPERIMENT = Experiment(
    name="convergence",
    title="Order of convergence",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
)
