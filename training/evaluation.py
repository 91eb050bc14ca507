"""Samples of a network for an evaluation, their sliced Wasserstein distance to real data, and the NFE spent."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from models.field import Field, solve
from models.noise import noise
from models.velocity import kind_of
from solvers import SolverSpec, Status
from training.dataset import DataSet
from training.errors import TrainingError


def swd(a: ArrayLike, b: ArrayLike, projections: int = 200, seed: int = 0) -> float:
    """Return the sliced Wasserstein-1 distance of two samples: the mean over random directions of the 1-D distance.

    Reference: Bonneel, Rabin, Peyre, Pfister, "Sliced and Radon Wasserstein Barycenters of Measures", JMIV 2015. The
    one-dimensional distances are exact (the area between the two quantile functions), for samples of any two sizes.

    Args:
        a: (n, *event); n >= 1.
        b: (m, *event); m >= 1.
        projections: number of random directions on the unit sphere.
        seed: fixes the directions.

    Returns:
        The distance, in the units of the data. Two samples of one distribution have a distance above zero too.

    Raises:
        ValueError: a sample is empty, shapes do not match, or a number is not finite.
    """
    from scipy.stats import wasserstein_distance

    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape[1:] != y.shape[1:] or not x.size or not y.size:
        raise ValueError(f"samples have shapes {x.shape} and {y.shape}; expected (n, *event) and (m, *event)")
    x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a sample contains a number that is not finite; leave out such rows and count them")
    directions = np.random.default_rng(seed).standard_normal((x.shape[1], projections))
    directions /= np.linalg.norm(directions, axis=0)
    return float(
        np.mean([wasserstein_distance(*along) for along in zip((x @ directions).T, (y @ directions).T, strict=True)])
    )


def swd_by_chance(a: ArrayLike, b: ArrayLike, seed: int = 0) -> float:
    """Return the distance that two samples of one distribution stay below 19 times in 20: the resolution of `swd`.

    It is the largest of 19 distances between random halves of both together, (n, *event) and (m, *event): a
    permutation test at 5 %. Smaller distances than this cannot be told from none.
    """
    pooled = np.concatenate([np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)])
    source = np.random.default_rng(seed)
    orders = [source.permutation(len(pooled)) for _ in range(_HALVES)]
    n = len(np.asarray(a))
    return max(swd(pooled[order[:n]], pooled[order[n:]], _FEW_PROJECTIONS, seed) for order in orders)


@dataclass(frozen=True)
class Quality:
    """Measured quality of samples; goes into the report as `asdict`.

    Attributes:
        swd: sliced Wasserstein-1 distance of samples to real data unseen in training, in the network's space.
        swd_real: the same between two sets of real data.
        swd_chance: what real data stay below in 95 % of cases, see `swd_by_chance`; distances below it say nothing.
        reference: description of the real data.
        samples: number of samples, compared with the same number of real ones.
        projections: random directions used.
        solver: the solver, with its tolerance.
        nfe_mean: velocity evaluations per sample, mean.
        nfe_max: velocity evaluations of the slowest sample.
        failed: samples that did not reach t = 1; they are left out.
    """

    swd: float
    swd_real: float
    swd_chance: float
    reference: str
    samples: int
    projections: int
    solver: str
    nfe_mean: float
    nfe_max: int
    failed: int

    def lines(self) -> Iterator[str]:
        """Yield the quality in one line."""
        seen = "so a difference can be seen" if self.swd > self.swd_chance else "so no difference can be seen"
        yield (
            f"sliced Wasserstein {self.swd:.4f}; real data from real data: {self.swd_real:.4f}, and up to "
            f"{self.swd_chance:.4f} by chance, {seen} by it; {self.solver} takes {self.nfe_mean:.1f} NFE, "
            f"{self.nfe_max} at most"
        )


Velocity = Callable[..., Tensor]
"""v(x, t), or v(x, t, condition), of the kind that its `field` says (see `models.velocity.FieldKind`)."""

_PROJECTIONS, _FEW_PROJECTIONS, _HALVES = 200, 50, 19
_TOLERANCE = 1e-5
_MOST = 2000
"""Samples drawn at most."""

_FIRST = 16
"""Samples in the first part, if time is limited; the next parts are as large as the speed allows."""


class TimeUp(Exception):  # noqa: N818  (not a fault)
    """The time for a measurement is over."""


@contextmanager
def limited(network: nn.Module, until: float) -> Iterator[None]:
    """Let every call of the network, or of a copy of it, raise TimeUp from the time `until` of `time.monotonic` on."""

    def check(module: nn.Module, arguments: object) -> None:
        if time.monotonic() > until:
            raise TimeUp

    hook = network.register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


@dataclass(frozen=True)
class Draw:
    """Samples that were drawn for an evaluation.

    Attributes:
        states: the samples that reached t = 1, (n, *event).
        rows: the rows of the reference whose conditions they have, (n,).
        requested: number of samples, with those that did not reach t = 1.
        solver: the solver, with its tolerance.
        nfe: velocity evaluations of each sample requested, (requested,).
    """

    states: NDArray[np.float64]
    rows: NDArray[np.int64]
    requested: int
    solver: str
    nfe: NDArray[np.int64]

    @property
    def failed(self) -> int:
        """Samples that did not reach t = 1."""
        return self.requested - len(self.rows)


def draw(network: Velocity, data: DataSet, seed: int, spec: SolverSpec | None = None, until: float = math.inf) -> Draw:
    """Draw as many samples as there are reference data, at most 2,000, each with the condition of one of these.

    Args:
        network: the velocity, on the CPU; a module, if time is limited.
        data: the reference.
        seed: fixes the starting noise.
        spec: the solver; None is DOPRI5 at 1e-5, and one Euler step for a field of average velocity.
        until: time of `time.monotonic` at which drawing ends, with fewer samples; no part begins in the second half.

    Raises:
        TimeUp: not even the first part was done in time.
    """
    if spec is None:
        spec = SolverSpec.parse(kind_of(network).solver or f"dopri5@{_TOLERANCE:g}")
    total = min(_MOST, len(data.reference))
    parts, start, size, began = [], 0, total if until == math.inf else _FIRST, time.monotonic()
    while start < total and (not parts or 2 * time.monotonic() < began + until):
        count = min(size, total - start)
        try:
            with limited(network, until) if isinstance(network, nn.Module) else nullcontext():
                parts.append(_solve(network, data, seed, spec, start, count))
        except TimeUp:
            if not parts:
                raise
            break
        start += count
        left, spent = until - time.monotonic(), time.monotonic() - began
        size = total if left == math.inf else max(1, int(min(8 * start, 0.5 * start * left / max(spent, 1e-9))))
    states, done, nfe = map(np.concatenate, zip(*parts, strict=True))
    solver = str(spec) if spec.rtol is None else f"{spec.solver} at {spec.rtol:g}"
    return Draw(states[done], np.flatnonzero(done), len(done), solver, nfe)


def _solve(
    network: Velocity, data: DataSet, seed: int, spec: SolverSpec, start: int, count: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
    """Return the ends of some paths, whether they reached t = 1, and their NFE."""
    x0 = noise(seed, start, count, data.train.shape[1:])
    rows = slice(start, start + count)
    conditions = None if data.reference_conditions is None else torch.from_numpy(data.reference_conditions[rows])
    solution = solve(Field(network, conditions), x0, spec)
    done = np.array([status == Status.SUCCESS for status in solution.status])
    return solution.x.double().numpy(), done, np.asarray(solution.nfe)


def evaluate(network: Velocity, data: DataSet, seed: int, spec: SolverSpec | None = None) -> Quality:
    """Draw samples (see `draw`), and measure their quality.

    Raises:
        TrainingError: no sample reached t = 1.
    """
    return quality_of(draw(network, data, seed, spec), data, seed)


def quality_of(drawn: Draw, data: DataSet, seed: int) -> Quality:
    """Compare samples with the same number of reference data.

    Raises:
        TrainingError: no sample reached t = 1.
    """
    if not len(drawn.states):
        raise TrainingError(f"evaluation: none of {drawn.requested} samples reached t = 1; the network is not usable")
    real, second = data.reference[: drawn.requested], data.second_reference[: drawn.requested]
    return Quality(
        swd=swd(drawn.states, real, _PROJECTIONS, seed),
        swd_real=swd(second, real, _PROJECTIONS, seed),
        swd_chance=swd_by_chance(second, real, seed),
        reference=data.reference_text,
        samples=drawn.requested,
        projections=_PROJECTIONS,
        solver=drawn.solver,
        nfe_mean=float(drawn.nfe.mean()),
        nfe_max=int(drawn.nfe.max()),
        failed=drawn.failed,
    )
