"""Network rows that per-sample DOPRI5 evaluates: ours leaves out finished samples, torchode does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.architectures.analytic import Mixture
from solvers import integrate
from studies.solvers.others import torchode_
from studies.solvers.overhead import network
from studies.solvers.problems import Field
from studies.solvers.timing import Counted

SIZES, TOLERANCE = (256, 2048), 1e-5


@dataclass(frozen=True)
class Rows:
    """Rows evaluated by one solve, and its error: the geometric mean over samples, and the root mean square.

    The latter is dominated by a few samples that pass close to where the paths diverge.
    """

    model: str
    samples: int
    solver: str
    rows: int
    calls: int
    error: float
    rms: float


def models(checkpoints: Path) -> Iterator[tuple[str, Field]]:
    """Yield an untrained network with curved paths, the mixture's field, and trained 2-D models."""
    yield "untrained network x 20", network(20.0)
    yield "mixture of eight Gaussians", Mixture().float()
    if checkpoints.is_dir():
        from models.checkpoint.loading import load
        from models.repository import Repository

        repository = Repository(checkpoints)
        for name in ("moons", "circles"):
            if name in repository.names():
                yield f"trained {name}", load(repository.resolve(name)).velocity


def _start(samples: int) -> Tensor:
    return torch.randn(samples, 2, generator=torch.Generator().manual_seed(0))


def _solve(model: str, field: Field, solver: str, tolerance: float, exact: Tensor) -> Rows:
    counted, start = Counted(field), _start(len(exact))
    if solver == "torchode dopri5":
        x = torchode_(counted, start, 1.0, "dopri5", tolerance)
    else:
        x = integrate(counted, start, rtol=tolerance, atol=tolerance, controller=solver.split()[-1]).x
    error = (x - exact).double().norm(dim=1).clamp_min(1e-9)
    rms = float(error.square().mean().sqrt())
    return Rows(model, len(exact), solver, counted.rows, counted.calls, float(error.log().mean().exp()), rms)


def measure(model: str, field: Field, samples: int) -> tuple[list[Rows], float]:
    """Measure both libraries at the tolerance; also return our rows over torchode's at torchode's error.

    Our rows at that error are read off a line through our solves at seven tolerances, in log-log.
    """
    with torch.no_grad():
        # As exact as float32 allows: a hundredth of the tolerance.
        exact = integrate(field, _start(samples), rtol=1e-7, atol=1e-7, controller="i").x
        solvers = ("pathline dopri5, paper", "pathline dopri5, i", "torchode dopri5")
        found = [_solve(model, field, solver, TOLERANCE, exact) for solver in solvers]
        sweep = [_solve(model, field, solvers[0], float(tolerance), exact) for tolerance in np.logspace(-5.5, -4, 7)]
    line = np.polyfit(np.log([r.error for r in sweep]), np.log([r.rows for r in sweep]), 1)
    return found, float(np.exp(np.polyval(line, np.log(found[-1].error)))) / found[-1].rows
