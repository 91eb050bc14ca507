"""The price of a flow: the network evaluations needed for a given endpoint error, and properties that explain it.

The endpoint error of a solver is the root mean square distance of its samples from the exact ends of their own paths,
here as a share of the spread of those ends: 0.01 is 1 % of the standard deviation of the data.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.checkpoint.frontier import Curve, Point
from models.endpoint_error import Field
from models.measure import MAX_NFE, MeasureError, measure_curve
from models.noise import noise
from solvers import SolverSpec
from training.dataset import DataSet
from training.errors import TrainingError
from training.solving import solve

TARGETS = (0.01, 0.001)
"""Endpoint errors to reach, as shares of the spread."""

SOLVERS = ("euler", "midpoint", "bosh3", "rk4", "ab2", "ab3", "ab4")
"""One solver of each order and kind; the others in the catalogue differ little from these."""

_TOLERANCE = 1e-5
_SAMPLES, _FEW, _LARGE = 128, 16, 256
"""Number of paths, and the number if a state has more numbers than `_LARGE`."""

_POINTS = 33


@dataclass(frozen=True)
class Price:
    """Cost of solving a flow.

    Attributes:
        samples: number of paths solved.
        spread: root mean square distance of the exact ends from their mean.
        dopri5_nfe: NFE of DOPRI5 at rtol = atol = 1e-5, mean over samples.
        nfe: for each solver with fixed steps, its fewest NFE for an endpoint error of 1 % and of 0.1 %; None if it
            needs more than `tried`. Numbers of steps are tried at a ratio of about 1.2.
        cheapest: for each of the two targets the solver and steps that reach it with the fewest NFE, as `rk4-5`, and
            those NFE; None if no solver reaches it.
        straightness: length of a path over the distance between its ends, mean over samples; 1 is a straight line.
        bend: mean squared distance of the velocity from the straight line's, as a share of the latter's mean square
            (Liu et al. 2023, "Flow Straight and Fast", eq. 3, made dimensionless); 0 is straight at constant speed.
        tried: the NFE up to which each solver was tried: 200, or less if time was short.
        stiffness: largest estimate of an eigenvalue's modulus along each path, mean over samples (Hairer & Wanner II,
            IV.2); an explicit method needs steps shorter than its stability limit divided by this number.
    """

    samples: int
    spread: float
    dopri5_nfe: float
    nfe: dict[str, list[int | None]]
    cheapest: list[tuple[str, int] | None]
    straightness: float
    bend: float
    stiffness: float
    tried: dict[str, int]
    targets: list[float] = field(default_factory=lambda: list(TARGETS))

    def lines(self) -> Iterator[str]:
        """Yield a three-line report of the price."""
        more = f"over {MAX_NFE} NFE" if min(self.tried.values()) == MAX_NFE else "more NFE than were tried"
        parts = []
        for target, best in zip(self.targets, self.cheapest, strict=True):
            cost = f"{best[1]} NFE ({best[0]})" if best else more
            parts.append(f"{cost} for {target:.1%} of the spread")
        yield f"price: {'; '.join(parts)}; dopri5@1e-5 takes {self.dopri5_nfe:.1f}"
        each = "; ".join(f"{name} {_shown(costs, self.tried[name])}" for name, costs in self.nfe.items())
        yield f"NFE for {' and '.join(f'{target:.1%}' for target in self.targets)}: {each}"
        yield (
            f"paths are {self.straightness:.3f} times as long as straight ones (bend {self.bend:.3f}); "
            f"stiffness {self.stiffness:.3g}"
        )

    def record(self) -> dict[str, Any]:
        """Return the price as JSON-ready data."""
        return {**asdict(self), "cheapest": [None if best is None else list(best) for best in self.cheapest]}


def _shown(costs: Sequence[int | None], tried: int) -> str:
    """Return the NFE of one solver for each target."""
    shown = [(f"over {tried}" if tried else "not tried") if cost is None else f"{cost}" for cost in costs]
    return shown[0] if len(set(shown)) == 1 else " and ".join(shown)


def price_of(network: nn.Module, data: DataSet, seed: int) -> Price:
    """Measure a trained network, with the conditions of the data set's reference if it takes any.

    Args:
        network: the velocity, on the CPU.
        data: its training data.
        seed: fixes the noise.

    Raises:
        TrainingError: no path reached t = 1.
    """
    shape = tuple(data.train.shape[1:])
    samples = _SAMPLES if np.prod(shape) <= _LARGE else _FEW
    given = data.reference_conditions
    conditions = None if given is None else torch.from_numpy(np.resize(given, (samples, *given.shape[1:])))
    return price(network, noise(seed, 0, samples, shape), conditions)


def price(velocity: nn.Module, x0: Tensor, conditions: Tensor | None = None, curve: Curve | None = None) -> Price:
    """Measure the cost of solving the flow of a network.

    Args:
        velocity: v(x, t), or v(x, t, condition) with conditions; in the dtype of x0, on the CPU.
        x0: noise, (samples, *event).
        conditions: one row for each sample, or None.
        curve: earlier measurements; by default `SOLVERS` are measured from x0.

    Raises:
        TrainingError: no path reached t = 1.
    """
    if curve is None:
        try:
            curve = measure_curve(
                Field(velocity, conditions), x0, methods=SOLVERS, grids=(), tolerances=(), close=min(TARGETS),
                seconds=math.inf,
            )  # fmt: skip
        except MeasureError as error:
            raise TrainingError(f"price: {error}") from None
    times = np.linspace(0.0, 1.0, _POINTS)
    spec = SolverSpec(rtol=_TOLERANCE, atol=_TOLERANCE)
    solution = solve(velocity, x0, conditions, spec, save_at=times)
    assert solution.saved is not None  # noqa: S101  (save_at was given)
    states = solution.saved.double().flatten(2)
    straightness, bend = _straightness(states[states.isfinite().flatten(1).all(1)].numpy())
    found = {name: [_cheapest(curve, name, target) for target in TARGETS] for name in SOLVERS}
    cheapest = [_best([best[k] for best in found.values()]) for k in range(len(TARGETS))]
    return Price(
        samples=curve.samples,
        spread=curve.spread,
        dopri5_nfe=float(np.mean(solution.nfe)),
        nfe={name: [best and best.nfe_most for best in points] for name, points in found.items()},
        cheapest=[best and (best.solver, best.nfe_most) for best in cheapest],
        straightness=straightness,
        bend=bend,
        stiffness=_stiffness(solution.trace.sample, solution.trace.stiffness, solution.trace.h),
        tried={name: _tried(curve, name) for name in SOLVERS},
    )


def _points(curve: Curve, name: str) -> list[Point]:
    """Return the points of a method on the uniform grid."""
    return [point for point in curve.points if re.fullmatch(rf"{name}-\d+", point.solver)]


def _tried(curve: Curve, name: str) -> int:
    return MAX_NFE if curve.complete else max((point.nfe_most for point in _points(curve, name)), default=0)


def _cheapest(curve: Curve, name: str, target: float) -> Point | None:
    """Return the point with the fewest steps of a method, on the uniform grid, that reaches a target."""
    return _best([point for point in _points(curve, name) if point.error <= target])


def _best(points: Sequence[Point | None]) -> Point | None:
    return min((point for point in points if point is not None), key=lambda point: point.nfe, default=None)


def _straightness(states: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of length over distance, and the bend, of paths (samples, points, D) at equally spaced times."""
    pieces, chord = np.diff(states, axis=1), states[:, -1] - states[:, 0]
    ratio = np.linalg.norm(pieces, axis=2).sum(1) / np.linalg.norm(chord, axis=1)
    count = pieces.shape[1]
    bend = np.square(pieces * count - chord[:, None]).sum(2).mean() / np.square(chord).sum(1).mean()
    return float(ratio.mean()), float(bend)


def _stiffness(sample: NDArray[np.int64], signal: NDArray[np.float64], h: NDArray[np.float64]) -> float:
    """Return the mean over samples of the largest |eigenvalue| estimated along the steps of a trace."""
    largest = np.zeros(int(sample.max()) + 1)
    np.maximum.at(largest, sample, np.nan_to_num(signal / np.abs(h), nan=0.0, posinf=0.0))
    return float(largest.mean())
