"""Regions of absolute stability of all methods, and their effect on y' = -15 y."""

import numpy as np
import torch
from numpy.typing import NDArray

from solvers import catalogue, integrate, multistep
from studies.experiments.context import Context
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import COLOURS, Figures
from studies.experiments.verdicts import Verdict, exact, within

TIMES_FURTHER = 3.0
NEAR = 0.1
"""`three times` is kept within this share."""
RATE = -15.0
STEPS_H = {"h = 0.1": 0.1, "h = 1/6": 1 / 6}
SPAN = 3.0
PAPER = ("euler", "midpoint", "rk4", "dopri5")
_BOX = (-5.5, 1.5, -4.5, 4.5)

CLAIMS = (
    Claim(
        "three-times",
        "RK4's stability region reaches three times further than Euler's along the negative real axis",
        f"the ratio of the two real-axis limits is within {NEAR:.0%} of {TIMES_FURTHER:g}",
        "stability",
    ),
    Claim(
        "stiff-test",
        "On y' = -15 y Euler diverges where RK4 remains stable, at h = 0.1 and at h = 1/6",
        f"for each h: after t = {SPAN:g}, |y| of Euler is larger than at the start and |y| of RK4 smaller",
        "stiff-decay",
    ),
)


def growth(solver: str, z: NDArray[np.complexfloating]) -> NDArray[np.float64]:
    """Return the factor by which a step multiplies the solution of y' = lambda y, z = h lambda.

    Runge-Kutta: |R(z)| with R(z) = 1 + sum_k z^k b A^(k-1) 1 (Hairer & Wanner II, IV.2). Adams-Bashforth: the largest
    root of its characteristic polynomial (Hairer & Wanner II, V.1).
    """
    entry = catalogue.find(solver)
    if entry.multistep_order:
        [weights] = multistep.adams_bashforth_weights(np.arange(entry.multistep_order + 1.0), entry.multistep_order)
        size = len(weights)
        companion = np.zeros((z.size, size, size), dtype=np.complex128)
        companion[:, 0, :] = z.reshape(-1, 1) * weights
        companion[:, 0, 0] += 1
        companion[:, np.arange(1, size), np.arange(size - 1)] = 1
        return np.abs(np.linalg.eigvals(companion)).max(axis=1).reshape(z.shape)
    used = entry.tableau.used_stages
    a, b = entry.tableau.matrix[:used, :used], np.array(entry.tableau.b[:used])
    powers = [float(b @ np.linalg.matrix_power(a, k) @ np.ones(used)) for k in range(used)]
    return np.abs(np.polynomial.polynomial.polyval(z, np.array([1.0, *powers])))


def _grid(points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    left, right, low, high = _BOX
    return np.linspace(left, right, points), np.linspace(low, high, points)


def _area(solver: str, points: int) -> float:
    """Return the area of the region of stability left of the imaginary axis, by counting grid points."""
    x, y = _grid(points)
    inside = growth(solver, x[None, :] + 1j * y[:, None])[:, x <= 0] <= 1
    return float(inside.sum() * (x[1] - x[0]) * (y[1] - y[0]))


def _imaginary_limit(solver: str) -> float:
    """Return the largest y with |growth(i w)| <= 1 for all w in [0, y], or 0 if there is none; to three digits."""
    w = np.arange(0, 4, 1e-3)
    outside = np.flatnonzero(growth(solver, 1j * w) > 1 + 1e-9)
    return float(w[outside[0] - 1]) if len(outside) and outside[0] > 1 else 0.0


def _decay(solver: str, h: float) -> list[float]:
    """Return |y| at every step of y' = -15 y, y(0) = 1."""
    steps = round(SPAN / h)
    times = np.linspace(0.0, SPAN, steps + 1)
    solution = integrate(
        lambda x, t: RATE * x,
        torch.ones(1, 1, dtype=torch.float64),
        solver=solver,
        steps=steps,
        t_span=(0.0, SPAN),
        save_at=times.tolist(),
    )
    assert solution.saved is not None
    return solution.saved[0, :, 0].tolist()


def run(context: Context) -> Results:
    """Compute the limits of all methods, and the decay with the paper's methods."""
    points = context.sizes.grid

    def measure() -> Results:
        names = [name for name, entry in catalogue.solvers().items() if not (entry.exponential or entry.stochastic)]
        return {
            "points": points,
            "real": {name: catalogue.find(name).stability_limit for name in names},
            "imaginary": {name: _imaginary_limit(name) for name in names},
            "area": {name: _area(name, points) for name in names},
            "decay": {
                label: {name: _decay(name, h) for name in names if not catalogue.find(name).multistep_order}
                for label, h in STEPS_H.items()
            },
        }

    return context.cell("limits", {"rate": RATE, "h": list(STEPS_H.values()), "span": SPAN, "grid": points}, measure)


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    ratio = exact(results["real"]["rk4"] / results["real"]["euler"])
    further = Part(
        "real-axis limit RK4 / Euler", ratio, within(ratio, TIMES_FURTHER * (1 - NEAR), TIMES_FURTHER * (1 + NEAR))
    )
    areas = results["area"]["rk4"] / results["area"]["euler"]
    per_call = results["real"]["rk4"] / results["real"]["euler"] / 4
    note = (
        f"The limits are {results['real']['rk4']:.4f} and {results['real']['euler']:.4f}. RK4's region has {areas:.2f} "
        f"times the area left of the imaginary axis, and only RK4's includes part of that axis (up to "
        f"{results['imaginary']['rk4']:.2f}i). For each evaluation RK4 reaches {per_call:.2f} times as far as Euler"
    )
    parts = []
    for label, found in results["decay"].items():
        euler, rk4 = abs(found["euler"][-1]), abs(found["rk4"][-1])
        parts += [
            Part(f"{label}: |y({SPAN:g})| of Euler", exact(euler), Verdict.HOLDS if euler > 1 else Verdict.FAILS),
            Part(f"{label}: |y({SPAN:g})| of RK4", exact(rk4), Verdict.HOLDS if rk4 < 1 else Verdict.FAILS),
        ]
    stiff = (
        "At h = 0.1 the product is 1.5: Euler multiplies by -0.5 a step, so it swings about zero but decays. At h = "
        "1/6 it is 2.5: Euler grows by 1.5 a step, RK4 shrinks by 0.65"
    )
    return [Finding(claims["three-times"], (further,), note), Finding(claims["stiff-test"], tuple(parts), stiff)]


def tables(results: Results) -> list[Table]:
    """Tabulate the limits of all methods."""
    rows = [
        [
            name,
            round(results["real"][name], 4),
            round(results["real"][name] / results["real"]["euler"], 3),
            round(results["imaginary"][name], 3),
            round(results["area"][name], 2),
        ]
        for name in results["real"]
    ]
    decay = [
        [name, *(found[name][-1] for found in results["decay"].values())]
        for name in next(iter(results["decay"].values()))
    ]
    limits = ("method", "real axis to", "of Euler's", "imaginary axis to", "area")
    title = f"y({SPAN:g}) for y' = -15 y, y(0) = 1; exact: 2.9e-20"
    return [
        Table("stability", "Where methods are stable", limits, rows),
        Table("stiff-decay", title, ("method", *results["decay"]), decay),
    ]


def draw(results: Results, figures: Figures) -> None:
    """Plot the regions and the decay."""
    x, y = _grid(results["points"])
    z = x[None, :] + 1j * y[:, None]
    figure, axes = figures.panels(1, 2, width=4.4, height=4.4)
    for name in results["real"]:
        axis = axes[1] if catalogue.find(name).multistep_order or name not in PAPER else axes[0]
        axis.contour(x, y, growth(name, z), levels=[1.0], colors=[COLOURS[name]], linewidths=1.6)
        axis.plot([], [], color=COLOURS[name], label=name)
    for axis, title in zip(axes, ("the paper's methods", "the others"), strict=True):
        axis.set_title(f"boundary of stability, {title}")
        axis.set_xlabel("Re(h lambda)")
        axis.set_ylabel("Im(h lambda)")
        axis.set_aspect("equal")
        axis.axvline(0, color="grey", linewidth=0.6)
        axis.legend(loc="upper left", fontsize=7)
    figures.save(figure, "stability")
    figure, axes = figures.panels(1, 2, width=4.4, height=3.0)
    for axis, (label, found) in zip(axes, results["decay"].items(), strict=True):
        for name in PAPER:
            times = np.linspace(0.0, SPAN, len(found[name]))
            axis.plot(times, found[name], ".-", color=COLOURS[name], label=name)
        axis.plot(np.linspace(0, SPAN, 200), np.exp(RATE * np.linspace(0, SPAN, 200)), "k:", label="exact")
        axis.set_yscale("symlog", linthresh=1e-3)
        axis.set_title(f"y' = -15 y, {label}")
        axis.set_xlabel("t")
        axis.set_ylabel("y (symmetric log)")
    axes[0].legend()
    figures.save(figure, "stiff-decay")


EXPERIMENT = Experiment(
    name="stability",
    title="Regions of stability",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
)
