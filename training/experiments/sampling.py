"""Drawing samples with a list of solvers from the same noise, and how far each is from the exact end of its path."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.noise import noise
from solvers import Solution, Status, integrate
from training.errors import TrainingError
from training.evaluation import swd
from training.experiments.context import Context
from training.experiments.trained import Model

Array = NDArray[np.floating]
TOLERANCE = 1e-5
"""The paper's tolerance of DOPRI5, relative and absolute."""
_ROWS = 1000
_FRESH_SEEDS = 1_000_000  # seeds of real data that no training uses


@dataclass(frozen=True)
class Spec:
    """A solver with its number of steps, or with the paper's tolerance.

    Attributes:
        solver: its name.
        steps: number of steps; None for error control at `TOLERANCE`.
        error_control: `sample` or `batch`; only for error control.
    """

    solver: str
    steps: int | None = None
    error_control: str = "sample"

    @property
    def label(self) -> str:
        """Short name, as `rk4-20` or `dopri5`."""
        return self.solver if self.steps is None else f"{self.solver}-{self.steps}"


def specs(euler: Sequence[int], midpoint: Sequence[int], rk4: Sequence[int]) -> list[Spec]:
    """The four solvers of the paper at the given numbers of steps, DOPRI5 last."""
    steps = {"euler": euler, "midpoint": midpoint, "rk4": rk4}
    return [*(Spec(solver, count) for solver, counts in steps.items() for count in counts), Spec("dopri5")]


def solve(velocity: nn.Module, x0: Tensor, spec: Spec) -> Solution:
    """Integrate from t = 0 to 1 as the spec says.

    Raises:
        TrainingError: a sample did not get to the end.
    """
    if spec.steps is None:
        solution = integrate(
            velocity, x0, solver=spec.solver, rtol=TOLERANCE, atol=TOLERANCE, error_control=spec.error_control
        )
    else:
        solution = integrate(velocity, x0, solver=spec.solver, steps=spec.steps)
    bad = sum(status != Status.SUCCESS for status in solution.status)
    if bad:
        raise TrainingError(f"{spec.label}: {bad} of {len(x0)} samples did not reach t = 1; the network is not usable")
    return solution


def exact_end(velocity: nn.Module, x0: Tensor, tolerance: float) -> Array:
    """The end of each path, by DOPRI5 in float64 with the same weights; (samples, *event)."""
    doubled = copy.deepcopy(velocity).double()
    solution = integrate(doubled, x0.double(), solver="dopri5", rtol=tolerance, atol=tolerance, controller="i")
    if any(status != Status.SUCCESS for status in solution.status):
        raise TrainingError("the tight float64 solution did not reach t = 1; the network is not usable")
    return solution.x.numpy()


def endpoint_error(x: Array, exact: Array) -> float:
    """Mean Euclidean distance of samples from the exact ends of their own paths, (samples, *event) both."""
    difference = np.asarray(x, dtype=np.float64) - exact
    return float(np.linalg.norm(difference.reshape(len(difference), -1), axis=1).mean())


def real(context: Context, model: Model, seed: int, count: int) -> tuple[Array, Array]:
    """Two sets of real data that no training saw and that share no sample, each (count, *event).

    For moons and circles they are drawn anew for each seed; MNIST's test digits are shuffled and split for each seed.
    """
    if model.recipe.data.name == "mnist":
        both = np.concatenate([model.data.reference, model.data.second_reference])
        both = both[np.random.default_rng(seed).permutation(len(both))]
        count = min(count, len(both) // 2)
        return both[:count], both[count : 2 * count]
    fresh = context.models.data(model.recipe.model_copy(update={"seed": _FRESH_SEEDS + seed}))
    return fresh.reference[:count], fresh.second_reference[:count]


def quality(
    context: Context, model: Model, wanted: Sequence[Spec], samples: int, endpoints: int, tight: float
) -> dict[str, object]:
    """Measure SWD, endpoint error and NFE of solvers over all sampling seeds.

    Args:
        context: gives seeds and projections.
        model: what is sampled.
        wanted: the solvers.
        samples: how many samples of each sampling seed.
        endpoints: how many of them have the exact end of their path computed.
        tight: the tolerance of that.

    Returns:
        `floor`: SWD of real to fresh real data, one number a sampling seed; `solvers`: for each label `swd` and
        `endpoint`, one number a sampling seed, and `nfe`, the mean over all samples.
    """
    projections = context.sizes.projections
    shape = tuple(model.data.train.shape[1:])
    floor: list[float] = []
    found: dict[str, dict[str, list[float]]] = {spec.label: {"swd": [], "endpoint": [], "nfe": []} for spec in wanted}
    for seed in context.sizes.sampling_seeds:
        x0 = noise(seed, 0, samples, shape)
        exact = exact_end(model.velocity, x0[:endpoints], tight)
        reference, second = real(context, model, seed, samples)
        floor.append(swd(second, reference, projections, seed))
        for spec in wanted:
            parts = [solve(model.velocity, rows, spec) for rows in x0.split(_ROWS)]
            x = torch.cat([part.x for part in parts]).numpy()
            row = found[spec.label]
            row["swd"].append(swd(x, reference, projections, seed))
            row["endpoint"].append(endpoint_error(x[:endpoints], exact))
            row["nfe"].append(float(np.concatenate([part.nfe for part in parts]).mean()))
    return {
        "floor": floor,
        "solvers": {label: {**row, "nfe": float(np.mean(row["nfe"]))} for label, row in found.items()},
    }
