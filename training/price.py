"""The price of a flow: what its samples cost, read off its frontier, and properties of its paths that explain it.

Endpoint errors do not apply to a field of average velocity: its steps follow no ODE, so they do not converge as their
number grows. Instead, its samples are compared with data, and with samples of the model that it was trained from.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from models.field import Field, solve
from selection.choice import BudgetLimits, Evidence, NoneFits, choose
from selection.frontier import Curve
from solvers import SolverSpec
from training.dataset import DataSet
from training.evaluation import Quality, Velocity, evaluate

TARGETS = (0.01, 0.001)
"""Endpoint errors to keep, as shares of the spread."""

_TOLERANCE = 1e-5
_POINTS = 33


@dataclass(frozen=True)
class Price:
    """Cost of solving a flow.

    Attributes:
        samples: number of paths solved.
        spread: see `selection.error`.
        dopri5_nfe: NFE of DOPRI5 at rtol = atol = 1e-5, mean over samples.
        cheapest: for each target the solver that keeps it with the fewest NFE, and those NFE; None if none does.
        answers: for each target the choice in words, or what could be met.
        straightness: length of a path over the distance between its ends, mean over samples; 1 is a straight line.
        bend: mean squared distance of the velocity from the straight line's, as a share of the latter's mean square
            (Liu et al. 2023, "Flow Straight and Fast", eq. 3, made dimensionless); 0 is straight at constant speed.
        stiffness: largest estimate of an eigenvalue's modulus along each path, mean over samples (Hairer & Wanner II,
            IV.2); an explicit method needs steps shorter than its stability limit divided by this number.
    """

    samples: int
    spread: float
    dopri5_nfe: float
    cheapest: list[tuple[str, int] | None]
    answers: list[str]
    straightness: float
    bend: float
    stiffness: float
    targets: list[float] = field(default_factory=lambda: list(TARGETS))

    def lines(self) -> Iterator[str]:
        """Yield the price as lines of text."""
        yield from (f"price: {answer}" for answer in self.answers)
        yield (
            f"dopri5@1e-5 takes {self.dopri5_nfe:.1f} NFE; paths are {self.straightness:.3f} times as long as straight "
            f"ones (bend {self.bend:.3f}); stiffness {self.stiffness:.3g}"
        )


def price(velocity: nn.Module, x0: Tensor, curve: Curve, conditions: Tensor | None = None, about: str = "") -> Price:
    """Read the price of a network off its measured solvers, and measure its paths.

    Args:
        velocity: v(x, t), or v(x, t, condition) with conditions; in the dtype of x0, on the CPU.
        x0: noise, (samples, *event).
        curve: the measurements.
        conditions: one row for each sample, or None.
        about: a description of the conditions of the curve.
    """
    spec = SolverSpec(rtol=_TOLERANCE, atol=_TOLERANCE)
    solution = solve(Field(velocity, conditions), x0, spec, save_at=np.linspace(0.0, 1.0, _POINTS))
    assert solution.saved is not None  # noqa: S101  (save_at was given)
    states = solution.saved.double().flatten(2)
    straightness, bend = _straightness(states[states.isfinite().flatten(1).all(1)].numpy())
    trace = solution.trace
    largest = np.zeros(int(trace.sample.max()) + 1)  # |eigenvalue| of each sample, estimated along its steps
    np.maximum.at(largest, trace.sample, np.nan_to_num(trace.stiffness / np.abs(trace.h), nan=0.0, posinf=0.0))
    cheapest, answers = list[tuple[str, int] | None](), list[str]()
    for target in TARGETS:
        try:
            best = choose([Evidence(curve, conditions=about)], BudgetLimits(max_error=target))[0]
        except NoneFits as error:
            cheapest.append(None)
            answers.append(f"{error}{'' if curve.complete else '; not all solvers were measured'}")
        else:
            cheapest.append((best.point.solver, best.point.nfe_most))
            answers.append(best.text)
    return Price(
        samples=curve.samples,
        spread=curve.spread,
        dopri5_nfe=float(np.mean(solution.nfe)),
        cheapest=cheapest,
        answers=answers,
        straightness=straightness,
        bend=bend,
        stiffness=float(largest.mean()),
    )


def _straightness(states: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of length over distance, and the bend, of paths (samples, points, D) at equally spaced times."""
    pieces, chord = np.diff(states, axis=1), states[:, -1] - states[:, 0]
    ratio = np.linalg.norm(pieces, axis=2).sum(1) / np.linalg.norm(chord, axis=1)
    count = pieces.shape[1]
    bend = np.square(pieces * count - chord[:, None]).sum(2).mean() / np.square(chord).sum(1).mean()
    return float(ratio.mean()), float(bend)


STEPS = (1, 2, 4)
"""Numbers of steps of a field of average velocity."""


@dataclass(frozen=True)
class FewSteps:
    """Sample quality by steps.

    Attributes:
        kind: tells it from a `Price` in a report.
        swd: sliced Wasserstein-1 distance of samples to real data, for each number of steps of `euler`, which is also
            the NFE.
        swd_real: the same between two sets of real data: the noise floor.
        samples: number of samples, compared with the same number of real ones.
        parent: name of the model that the field was trained from, or "".
        parent_swd: distance of that model's samples from the same noise, by `parent_solver`; None without a parent.
        parent_nfe: velocity evaluations per sample of the parent, mean.
        parent_solver: the solver, with its tolerance.
    """

    kind: str = field(default="few_steps", init=False)
    swd: dict[int, float]
    swd_real: float
    samples: int
    parent: str = ""
    parent_swd: float | None = None
    parent_nfe: float | None = None
    parent_solver: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the price as one or two lines of text."""
        by_steps = "; ".join(f"{swd:.4f} at {steps} NFE" for steps, swd in self.swd.items())
        yield f"price: SWD {by_steps} (real to real {self.swd_real:.4f}); there is no ODE, so no endpoint error"
        if self.parent_swd is not None:
            cost = f"{self.parent_nfe:.1f} NFE ({self.parent_solver})"
            yield f"its parent {self.parent}: SWD {self.parent_swd:.4f} at {cost}"


def few_steps(network: Velocity, data: DataSet, seed: int, parent: str = "", theirs: Quality | None = None) -> FewSteps:
    """Measure a field of average velocity on the CPU, and add its parent's quality, measured with the same seed.

    Raises:
        TrainingError: no sample reached t = 1.
    """
    qualities = {steps: evaluate(network, data, seed, SolverSpec("euler", steps)) for steps in STEPS}
    first = qualities[STEPS[0]]
    swds = {steps: quality.swd for steps, quality in qualities.items()}
    if theirs is None:
        return FewSteps(swds, first.swd_real, first.samples)
    return FewSteps(
        swds, first.swd_real, first.samples, parent, theirs.swd, parent_nfe=theirs.nfe_mean, parent_solver=theirs.solver
    )
