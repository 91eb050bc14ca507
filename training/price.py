"""The price of a flow: how many evaluations of its network an endpoint error costs, and what makes it so.

The endpoint error of a solver is the root mean square distance of its samples from the exact ends of their own paths,
here as a share of the spread of those ends: 0.01 is 1 % of the standard deviation of the data.
"""

import copy
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.noise import noise
from solvers import SolverSpec, Status
from training.dataset import DataSet
from training.errors import TrainingError
from training.solving import solve

TARGETS = (0.01, 0.001)
"""Endpoint errors whose NFE are measured, as shares of the spread."""

MOST_NFE = 200
"""A solver that needs more than this counts as not reaching a target."""

TIGHT = 1e-9
"""Tolerance of the float64 solution that stands for the exact ends of the paths."""

SOLVERS = ("euler", "midpoint", "bosh3", "rk4", "ab2", "ab3", "ab4")
"""One of each order and kind; the others of the catalogue differ from these by little."""

_TOLERANCE = 1e-5
_SAMPLES, _FEW, _LARGE = 128, 16, 256
"""Paths, and how many where a state has more numbers than `_LARGE`."""

_POINTS = 33
_STEPS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 100, 128, 160, 200)


@dataclass(frozen=True)
class Price:
    """Cost of solving a flow.

    Attributes:
        samples: how many paths were solved.
        spread: root mean square distance of the exact ends from their mean.
        dopri5_nfe: NFE of DOPRI5 at rtol = atol = 1e-5, mean over samples.
        nfe: for each solver with fixed steps, its fewest NFE for an endpoint error of 1 % and of 0.1 %; None where it
            takes more than 200. Numbers of steps are tried at a ratio of about 1.2.
        cheapest: for each of the two targets the solver and steps that reach it with the fewest NFE, as `rk4-5`, and
            those NFE; None where no solver reaches it.
        straightness: length of a path over the distance of its ends, mean over samples; 1 is a straight line.
        bend: mean squared distance of the velocity from the straight line's, as a share of the latter's mean square
            (Liu et al. 2023, "Flow Straight and Fast", eq. 3, made dimensionless); 0 is straight at constant speed.
        stiffness: largest estimate of an eigenvalue's modulus along each path, mean over samples (Hairer & Wanner II,
            IV.2); with it an explicit method needs steps shorter than its stability limit over this number.
    """

    samples: int
    spread: float
    dopri5_nfe: float
    nfe: dict[str, list[int | None]]
    cheapest: list[tuple[str, int] | None]
    straightness: float
    bend: float
    stiffness: float
    targets: list[float] = field(default_factory=lambda: list(TARGETS))

    def lines(self) -> Iterator[str]:
        """The price in two lines, for people."""
        parts = []
        for target, best in zip(self.targets, self.cheapest, strict=True):
            cost = f"{best[1]} NFE ({best[0]})" if best else f"over {MOST_NFE} NFE"
            parts.append(f"{cost} for {target:.1%} of the spread")
        yield f"price: {'; '.join(parts)}; dopri5@1e-5 takes {self.dopri5_nfe:.1f}"
        yield (
            f"paths are {self.straightness:.3f} times as long as straight ones (bend {self.bend:.3f}); "
            f"stiffness {self.stiffness:.3g}"
        )

    def record(self) -> dict[str, Any]:
        """Return the price JSON-ready."""
        return {**asdict(self), "cheapest": [None if best is None else list(best) for best in self.cheapest]}


def price_of(network: nn.Module, data: DataSet, seed: int) -> Price:
    """Measure a trained network, by the conditions of the data set's reference where it takes some.

    Args:
        network: the velocity, on the CPU.
        data: what it was trained on.
        seed: fixes the noise.

    Raises:
        TrainingError: no path came to its end.
    """
    shape = tuple(data.train.shape[1:])
    samples = _SAMPLES if np.prod(shape) <= _LARGE else _FEW
    given = data.reference_conditions
    conditions = None if given is None else torch.from_numpy(np.resize(given, (samples, *given.shape[1:])))
    return price(network, noise(seed, 0, samples, shape), conditions)


def exact_ends(velocity: nn.Module, x0: Tensor, conditions: Tensor | None = None, tolerance: float = TIGHT) -> Tensor:
    """Solve in float64 with the same weights, by DOPRI5 at a tight tolerance.

    Returns:
        (samples, *event) float64; NaN throughout for a sample that did not come to its end.
    """
    wide = copy.deepcopy(velocity).double()
    if conditions is not None and conditions.is_floating_point():
        conditions = conditions.double()
    spec = SolverSpec(rtol=tolerance, atol=tolerance, controller="i", max_nfe=100_000)
    solution = solve(wide, x0.double(), conditions, spec)
    ended = torch.tensor([status == Status.SUCCESS for status in solution.status])
    return torch.where(ended.reshape(-1, *([1] * (x0.ndim - 1))), solution.x, torch.nan)


def price(velocity: nn.Module, x0: Tensor, conditions: Tensor | None = None) -> Price:
    """Measure what solving the flow of a network costs.

    Args:
        velocity: v(x, t), or v(x, t, condition) with conditions; in the dtype of x0, on the CPU.
        x0: noise, (samples, *event).
        conditions: one row a sample, or None.

    Raises:
        TrainingError: no path came to its end.
    """
    ends = exact_ends(velocity, x0, conditions)
    sound = ends.flatten(1).isfinite().all(1)
    if not sound.any():
        raise TrainingError(f"price: none of {len(x0)} paths reached t = 1; the network is not usable")
    spread = endpoint_error(ends[sound], ends[sound].mean(0, keepdim=True))
    times = np.linspace(0.0, 1.0, _POINTS)
    spec = SolverSpec(rtol=_TOLERANCE, atol=_TOLERANCE)
    solution = solve(velocity, x0, conditions, spec, save_at=times)
    assert solution.saved is not None  # noqa: S101  (save_at was given)
    straightness, bend = _straightness(solution.saved.double().flatten(2)[sound].numpy())
    nfe = {name: _cheapest(name, velocity, x0, conditions, ends, spread) for name in SOLVERS}
    cheapest = [_best({name: found[k] for name, found in nfe.items()}) for k in range(len(TARGETS))]
    return Price(
        samples=len(x0),
        spread=spread,
        dopri5_nfe=float(np.mean(solution.nfe)),
        nfe={name: [cost and cost[1] for cost in found] for name, found in nfe.items()},
        cheapest=cheapest,
        straightness=straightness,
        bend=bend,
        stiffness=_stiffness(solution.trace.sample, solution.trace.stiffness, solution.trace.h),
    )


def _cheapest(
    name: str, velocity: nn.Module, x0: Tensor, conditions: Tensor | None, ends: Tensor, spread: float
) -> list[tuple[str, int] | None]:
    """For each target the fewest of `_STEPS` that reach it, as text and as NFE."""
    found: list[tuple[str, int] | None] = [None] * len(TARGETS)
    for steps in _STEPS:
        solution = solve(velocity, x0, conditions, SolverSpec(name, steps))
        nfe = int(solution.nfe.max())
        if nfe > MOST_NFE:
            break
        error = endpoint_error(solution.x, ends) / spread
        for place, target in enumerate(TARGETS):
            if found[place] is None and error <= target:
                found[place] = f"{name}-{steps}", nfe
        if None not in found:
            break
    return found


def endpoint_error(x: Tensor, ends: Tensor) -> float:
    """Root mean square distance of samples (n, *event) from their exact ends, over those that have one."""
    distance = (x.double() - ends).flatten(1).square().sum(1)
    return float(distance[distance.isfinite()].mean().sqrt())


def _best(costs: dict[str, tuple[str, int] | None]) -> tuple[str, int] | None:
    return min((cost for cost in costs.values() if cost is not None), key=lambda cost: cost[1], default=None)


def _straightness(states: NDArray[np.float64]) -> tuple[float, float]:
    """Mean of length over distance, and bend, of paths (samples, points, D) at equal times."""
    pieces, chord = np.diff(states, axis=1), states[:, -1] - states[:, 0]
    ratio = np.linalg.norm(pieces, axis=2).sum(1) / np.linalg.norm(chord, axis=1)
    count = pieces.shape[1]
    bend = np.square(pieces * count - chord[:, None]).sum(2).mean() / np.square(chord).sum(1).mean()
    return float(ratio.mean()), float(bend)


def _stiffness(sample: NDArray[np.int64], signal: NDArray[np.float64], h: NDArray[np.float64]) -> float:
    """Mean over samples of the largest |eigenvalue| that the steps of a trace tell of."""
    largest = np.zeros(int(sample.max()) + 1)
    np.maximum.at(largest, sample, np.nan_to_num(signal / np.abs(h), nan=0.0, posinf=0.0))
    return float(largest.mean())
