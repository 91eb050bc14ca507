"""The endpoint error: how far a sample ends from the exact end of its own path, as a share of the spread.

The spread is the root mean square distance of the exact ends from their mean, in the model's own coordinates. Of many
samples the median (p50), p95 and the worst are reported. p95 is what is ranked and promised: the upper end of its
interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field as Described
from scipy.special import bdtr
from torch import Tensor

from models.checkpoint.bound import Size
from models.field import Field, solve
from models.frozen import Frozen
from solvers import SolverSpec, Status
from solvers.errors import SolverError

TIGHT = 1e-9
"""Tolerance of the exact ends."""

COVERED, CONFIDENCE = 0.95, 0.99
"""The quantile that is promised, and the confidence of each end of its interval."""

LEAST_SAMPLES = 90
"""The fewest samples whose worst is above p95 with this confidence."""


class NoErrors(Exception):  # noqa: N818  (says why, like its siblings in solvers)
    """Errors cannot be measured on these paths; the message says why."""


class Point(Frozen):
    """The measurement of one solver; endpoint errors are shares of the spread.

    Attributes:
        solver: its text, such as `rk4-20`.
        nfe: mean velocity evaluations of a sample.
        nfe_most: velocity evaluations of the slowest sample, which is what it costs.
        p50, p95: quantiles over all samples; one that did not reach the end counts as infinitely far.
        p95_low, p95_high: interval of p95; each end holds with 99 % confidence, whatever the distribution: two order
            statistics (Wilks 1941, "Determination of sample sizes for setting tolerance limits").
        worst: the largest error of the samples that reached the end.
        failed: samples that did not reach the end.
    """

    p50: Size
    p95: Size
    p95_low: Size
    p95_high: Size
    worst: Size
    failed: int = Described(default=0, ge=0)
    solver: str = Described(min_length=1, max_length=2_000)
    nfe: Size
    nfe_most: int = Described(ge=1)

    @property
    def adaptive(self) -> bool:
        """Whether it has error control: other samples may then take more evaluations than those measured."""
        return "@" in self.solver

    @property
    def order(self) -> int:
        """Order of the solver; 0 if this build has none of this name: a file may name one that is gone."""
        return _order(self.solver)

    @property
    def cost(self) -> tuple[float, float, float]:
        """A key that sorts solvers, the cheapest first; of equally cheap ones the most accurate."""
        return self.nfe_most, self.nfe, self.p95_high


@lru_cache(maxsize=4096)
def _order(solver: str) -> int:
    try:
        return SolverSpec.parse(solver).method.order
    except SolverError:
        return 0


def summary(errors: NDArray[np.float64]) -> dict[str, Any] | None:
    """Return the errors of a `Point` for those of all samples (n,); None if more than 5 % of them failed."""
    ordered, n = np.sort(errors), len(errors)
    below = bdtr(np.arange(n), n, COVERED)  # below[k - 1]: the chance that fewer than k of n samples are within p95
    low = max(1, int(np.searchsorted(below, 1 - CONFIDENCE, side="right")))
    high = min(n, int(np.searchsorted(below, CONFIDENCE)) + 1)
    if not np.isfinite(ordered[high - 1]):
        return None
    finite = ordered[np.isfinite(ordered)]
    places = {"p50": n // 2 + 1, "p95": int(np.ceil(COVERED * n)), "p95_low": low, "p95_high": high}
    return {name: float(ordered[place - 1]) for name, place in places.items()} | {
        "worst": float(finite[-1]),
        "failed": n - len(finite),
    }


def arrivals(x: Tensor, status: Sequence[str] | NDArray[np.str_]) -> Tensor:
    """Return solved states x (n, *event) in float64; NaN for a sample that did not reach t = 1, by its `Status`."""
    reached = torch.tensor([one == Status.SUCCESS for one in status])
    return torch.where(reached.reshape(-1, *[1] * (x.ndim - 1)), x.double(), torch.nan)


@dataclass(frozen=True)
class Ends:
    """The exact ends of paths, from which endpoint errors are measured.

    Attributes:
        states: (n, *event) float64; NaN where a path did not reach t = 1, which then counts for no solver.
        spread: see the module.
    """

    states: Tensor
    spread: float

    @classmethod
    def of(cls, states: Tensor) -> Self:
        """Return ends with their spread; those that are not finite do not count.

        Raises:
            NoErrors: none is finite, or all are the same.
        """
        flat = states.double().flatten(1)
        flat = flat[flat.isfinite().all(1)]
        if not len(flat):
            raise NoErrors(f"none of {len(states)} paths reached t = 1; the network is not usable")
        spread = float((flat - flat.mean(0)).square().sum(1).mean().sqrt())
        if not spread > 0:
            raise NoErrors("all paths end at the same point, so errors have no scale")
        return cls(states, spread)

    def errors(self, arrived: Tensor) -> NDArray[np.float64]:
        """Return the endpoint error (n,) of each of the `arrivals`; infinite if it or its path did not reach t = 1."""
        distances = (arrived.double() - self.states.double()).flatten(1).square().sum(1).sqrt().numpy() / self.spread
        return np.where(np.isfinite(distances), distances, np.inf)

    @property
    def reached(self) -> NDArray[np.bool_]:
        """Whether each path reached t = 1, (n,)."""
        return self.states.flatten(1).isfinite().all(1).numpy()

    def point(self, solver: str, arrived: Tensor, nfe: NDArray[np.int64]) -> Point | None:
        """Return the measurement of a solver, with the calls (n,) that it took; None if more than 5 % failed."""
        members = summary(self.errors(arrived)[self.reached])
        if members is None:
            return None
        return Point(solver=solver, nfe=float(nfe.mean()), nfe_most=int(nfe.max()), **members)


def exact_ends(field: Field, x0: Tensor, tolerance: float = TIGHT, progress: bool = False) -> Tensor:
    """Solve in float64 with the same weights, by DOPRI5 at a tight tolerance.

    Returns:
        (samples, *event) float64; NaN for a sample that did not reach t = 1.
    """
    spec = SolverSpec(rtol=tolerance, atol=tolerance, controller="i", max_nfe=100_000)
    solution = solve(field.double(), x0.double(), spec, progress=progress)
    return arrivals(solution.x, solution.status)
