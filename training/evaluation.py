"""Sample quality: sliced Wasserstein distance to real data, and the NFE spent."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from models.noise import noise
from solvers import SolverSpec, Status, compile  # noqa: A004  (compiles solvers)
from solvers.integrate import integrate_indexed
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
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape[1:] != y.shape[1:] or not x.size or not y.size:
        raise ValueError(f"samples have shapes {x.shape} and {y.shape}; expected (n, *event) and (m, *event)")
    x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a sample contains a number that is not finite; leave out such rows and count them")
    directions = np.random.default_rng(seed).standard_normal((x.shape[1], projections))
    directions /= np.linalg.norm(directions, axis=0)
    return float(_wasserstein_1d(np.sort(x @ directions, axis=0), np.sort(y @ directions, axis=0)).mean())


def _wasserstein_1d(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each column of x (n, p) and y (m, p), both sorted down the columns; (p,)."""
    n, m = len(x), len(y)
    # In units of 1 / (n m) the two quantile functions jump at whole numbers, so no rounding can misplace a jump.
    ends = np.union1d(np.arange(1, n + 1) * m, np.arange(1, m + 1) * n)
    starts = np.concatenate([[0], ends[:-1]])
    return (ends - starts) @ np.abs(x[starts // m] - y[starts // n]) / (n * m)


@dataclass(frozen=True)
class Quality:
    """Measured quality of samples; goes into the card as `asdict`.

    Attributes:
        swd: sliced Wasserstein-1 distance of samples to real data unseen in training, in the network's space.
        swd_real: the same between two sets of real data: the noise floor.
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
    reference: str
    samples: int
    projections: int
    solver: str
    nfe_mean: float
    nfe_max: int
    failed: int


Velocity = Callable[..., Tensor]
"""v(x, t), or v(x, t, condition); a field of average velocity has a true `average`."""

_PROJECTIONS = 200
_TOLERANCE = 1e-5


def evaluate(network: Velocity, data: DataSet, seed: int, spec: SolverSpec | None = None) -> Quality:
    """Draw as many samples as there are reference data, and compare the two.

    A conditional network gets the conditions of the reference.

    Args:
        network: the velocity, on the CPU.
        data: what to compare with.
        seed: fixes the starting noise and the projections.
        spec: the solver; None is DOPRI5 at 1e-5, and one Euler step for a field of average velocity.

    Raises:
        TrainingError: no sample reached t = 1.
    """
    samples = len(data.reference)
    x0 = noise(seed, 0, samples, data.train.shape[1:])
    given = None if data.reference_conditions is None else torch.from_numpy(data.reference_conditions)

    def velocity(x: Tensor, t: Tensor, index: NDArray[np.int64]) -> Tensor:
        return network(x, t) if given is None else network(x, t, given[torch.from_numpy(index)])

    average = bool(getattr(network, "average", False))
    if spec is None:
        spec = SolverSpec("euler", 1) if average else SolverSpec(rtol=_TOLERANCE, atol=_TOLERANCE)
    with torch.no_grad():
        solution = integrate_indexed(velocity, x0, compile(spec, x0.dtype), step_ends=average)
    done = np.array([status == Status.SUCCESS for status in solution.status])
    if not done.any():
        raise TrainingError(f"evaluation: none of {samples} samples reached t = 1; the network is not usable")
    nfe = np.asarray(solution.nfe)
    return Quality(
        swd=swd(np.asarray(solution.x)[done], data.reference, _PROJECTIONS, seed),
        swd_real=swd(data.second_reference, data.reference, _PROJECTIONS, seed),
        reference=data.reference_text,
        samples=samples,
        projections=_PROJECTIONS,
        solver=str(spec) if spec.rtol is None else f"{spec.solver} at {spec.rtol:g}",
        nfe_mean=float(nfe.mean()),
        nfe_max=int(nfe.max()),
        failed=int((~done).sum()),
    )
