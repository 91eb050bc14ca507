"""Network rows that per-sample DOPRI5 evaluates: ours leaves out finished samples, torchode does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.solvers.others import torchode_
from benchmarks.solvers.overhead import network
from benchmarks.solvers.problems import Field
from benchmarks.solvers.timing import Counted
from models.analytic import Mixture
from solvers import integrate

SAMPLES, TOLERANCE = 256, 1e-5


@dataclass(frozen=True)
class Rows:
    """Rows evaluated and the error (root mean square over samples) of one solve."""

    model: str
    solver: str
    rows: int
    calls: int
    error: float


def models(checkpoints: Path) -> Iterator[tuple[str, Field]]:
    """An untrained network whose paths bend, the mixture's field, and what is trained in 2-D."""
    yield "untrained network x 20", network(20.0)
    yield "mixture of eight Gaussians", Mixture().float()
    if checkpoints.is_dir():
        from models.checkpoint import load
        from models.repository import Repository

        repository = Repository(checkpoints)
        for name in ("moons", "circles"):
            if name in repository.names():
                yield f"trained {name}", load(repository.resolve(name)).velocity


def _solves() -> dict[str, object]:
    return {"pathline dopri5, paper": "paper", "pathline dopri5, i": "i", "torchode dopri5": None}


def measure(name: str, field: Field) -> list[Rows]:
    """The same samples and tolerance through both."""
    x0 = torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = _reference(field, x0)
        found = []
        for solver, controller in _solves().items():
            counted = Counted(field)
            if controller is None:
                x = torchode_(counted, x0, 1.0, "dopri5", TOLERANCE)
            else:
                x = integrate(counted, x0, rtol=TOLERANCE, atol=TOLERANCE, controller=str(controller)).x
            error = (x - exact).double().square().sum(dim=1).mean().sqrt()
            found.append(Rows(name, solver, counted.rows, counted.calls, float(error)))
    return found


def _reference(field: Field, x0: Tensor) -> Tensor:
    """The same field at a hundredth of the tolerance, which is the floor of float32."""
    return integrate(field, x0, rtol=1e-7, atol=1e-7, controller="i").x


def at_equal_error(name: str, field: Field) -> float:
    """Rows of ours (`i`) over torchode's for torchode's error at the tolerance, from a sweep of tolerances."""
    x0 = torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(0))
    theirs = next(rows for rows in measure(name, field) if rows.solver.startswith("torchode"))
    errors, counts = [], []
    with torch.no_grad():
        exact = _reference(field, x0)
        for tolerance in np.logspace(-6, -4, 7):
            counted = Counted(field)
            x = integrate(counted, x0, rtol=float(tolerance), atol=float(tolerance), controller="i").x
            errors.append(float((x - exact).double().square().sum(dim=1).mean().sqrt()))
            counts.append(counted.rows)
    line = np.polyfit(np.log(errors), np.log(counts), 1)
    return float(np.exp(np.polyval(line, np.log(theirs.error)))) / theirs.rows
