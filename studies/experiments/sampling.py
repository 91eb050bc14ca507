"""Sampling with several solvers from the same noise, and the distance of each sample from the exact end of its path."""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.noise import noise
from solvers import Solution, SolverSpec, Status, compile, integrate  # noqa: A004
from solvers.integrate import integrate_indexed
from studies.experiments.context import Context
from studies.experiments.trained import Model
from training.config import Recipe
from training.errors import TrainingError
from training.evaluation import swd

Array = NDArray[np.floating]
DOPRI5 = SolverSpec("dopri5", rtol=1e-5, atol=1e-5)
"""DOPRI5 at the paper's tolerance, relative and absolute."""
_ROWS = 1000
_FRESH_SEEDS = 1_000_000  # seeds of real data not used in any training


def label_of(spec: SolverSpec) -> str:
    """Return the short name, such as `rk4-20` or `dopri5`."""
    return spec.solver if spec.adaptive else f"{spec.solver}-{spec.steps}"


def specs(euler: Sequence[int], midpoint: Sequence[int], rk4: Sequence[int]) -> tuple[SolverSpec, ...]:
    """Return the four solvers of the paper at the given numbers of steps, DOPRI5 last."""
    steps = {"euler": euler, "midpoint": midpoint, "rk4": rk4}
    return (*(SolverSpec(solver, count) for solver, counts in steps.items() for count in counts), DOPRI5)


def solve(velocity: nn.Module, x0: Tensor, spec: SolverSpec) -> Solution:
    """Integrate from t = 0 to 1 as the spec says.

    Raises:
        TrainingError: a sample did not reach t = 1.
    """
    with torch.no_grad():
        solution = integrate_indexed(lambda x, t, _: velocity(x, t), x0, compile(spec, x0.dtype))
    bad = sum(status != Status.SUCCESS for status in solution.status)
    if bad:
        name = label_of(spec)
        raise TrainingError(f"{name}: {bad} of {len(x0)} samples did not reach t = 1; the network is not usable")
    return solution


def exact_end(velocity: nn.Module, x0: Tensor, tolerance: float) -> Array:
    """Return the end of each path by DOPRI5 in float64 with the same weights, (samples, *event)."""
    doubled = copy.deepcopy(velocity).double()
    solution = integrate(doubled, x0.double(), solver="dopri5", rtol=tolerance, atol=tolerance, controller="i")
    if any(status != Status.SUCCESS for status in solution.status):
        raise TrainingError("the tight float64 solution did not reach t = 1; the network is not usable")
    return solution.x.numpy()


def endpoint_error(x: Array, exact: Array) -> float:
    """Return the mean Euclidean distance of samples from the exact ends of their own paths, both (samples, *event)."""
    difference = np.asarray(x, dtype=np.float64) - exact
    return float(np.linalg.norm(difference.reshape(len(difference), -1), axis=1).mean())


def real(context: Context, model: Model, seed: int, count: int) -> tuple[Array, Array]:
    """Return two disjoint sets of real data that no training has used, each (count, *event).

    For moons and circles they are drawn anew for each seed; MNIST's test digits are shuffled and split for each seed.
    """
    if model.recipe.data.name == "mnist":
        both = np.concatenate([model.data.reference, model.data.second_reference])
        both = both[np.random.default_rng(seed).permutation(len(both))]
        count = min(count, len(both) // 2)
        return both[:count], both[count : 2 * count]
    fresh = context.models.data(model.recipe.model_copy(update={"seed": _FRESH_SEEDS + seed}))
    return fresh.reference[:count], fresh.second_reference[:count]


@dataclass(frozen=True)
class Amount:
    """How much to measure for one model.

    Attributes:
        wanted: the solvers.
        samples: number of samples per sampling seed.
        endpoints: number of those for which the exact end of the path is computed.
        tight: the tolerance for the exact ends.
        seeds: the sampling seeds.
    """

    wanted: tuple[SolverSpec, ...]
    samples: int
    endpoints: int
    tight: float
    seeds: tuple[int, ...]

    def key(self) -> dict[str, object]:
        """Return the part that determines the result of one seed."""
        labels = [label_of(spec) for spec in self.wanted]
        return {"solvers": labels, "amount": [self.samples, self.endpoints, self.tight]}


def quality(context: Context, label: str, recipe: Recipe, get: Callable[[], Model], amount: Amount) -> dict[str, Any]:
    """Measure SWD, endpoint error and NFE of solvers, one cell per sampling seed.

    Args:
        context: stores the results, and provides seeds and projections.
        label: prefix of the names of the cells.
        recipe: identifies the model.
        get: returns the model; called only if something has to be measured.
        amount: how much to measure.

    Returns:
        `floor`: SWD of real to fresh real data, one number per sampling seed; `solvers`: for each label of a spec `swd`
        and `endpoint`, one number per sampling seed, and `nfe`, the mean over all samples.
    """
    model = functools.cache(get)
    parts = []
    for seed in amount.seeds:
        key = {"recipe": recipe.hash, "noise": seed, "projections": context.sizes.projections, **amount.key()}
        found = context.cell(f"{label}-noise{seed}", key, lambda s=seed: _one_seed(context, model(), s, amount))
        parts.append(found)
    return {
        "floor": [part["floor"] for part in parts],
        "solvers": {
            name: {
                "swd": [part["solvers"][name]["swd"] for part in parts],
                "endpoint": [part["solvers"][name]["endpoint"] for part in parts],
                "nfe": float(np.mean([part["solvers"][name]["nfe"] for part in parts])),
            }
            for name in parts[0]["solvers"]
        },
    }


def _one_seed(context: Context, model: Model, seed: int, amount: Amount) -> dict[str, Any]:
    x0 = noise(seed, 0, amount.samples, tuple(model.data.train.shape[1:]))
    exact = exact_end(model.velocity, x0[: amount.endpoints], amount.tight)
    reference, second = real(context, model, seed, amount.samples)
    projections = context.sizes.projections
    solvers: dict[str, dict[str, float]] = {}
    for spec in amount.wanted:
        parts = [solve(model.velocity, rows, spec) for rows in x0.split(_ROWS)]
        x = torch.cat([part.x for part in parts]).numpy()
        solvers[label_of(spec)] = {
            "swd": swd(x, reference, projections, seed),
            "endpoint": endpoint_error(x[: amount.endpoints], exact),
            "nfe": float(np.concatenate([part.nfe for part in parts]).mean()),
        }
    return {"floor": swd(second, reference, projections, seed), "solvers": solvers}
