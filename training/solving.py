"""Solving for evaluations: samples of a network with a solver that is given by its short text."""

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selection.error import Field
from selection.error import solve as solve_field
from solvers import SolverSpec, compile  # noqa: A004  (compiles solvers)
from solvers.errors import SolverError
from solvers.integrate import Solution
from solvers.tuned import TunedPlans
from training.errors import UsageError


def parse_solver(text: str, tuned: TunedPlans | None = None) -> SolverSpec:
    """Parse a solver, such as `rk4-20`, `dopri5@1e-5` or, if tuned for the checkpoint, `tuned-6`.

    Raises:
        UsageError: the text names no solver, or one that is not available.
    """
    try:
        spec = SolverSpec.parse(text)
        compile(spec, torch.float32, tuned)
    except SolverError as error:
        raise UsageError(f"solver {text!r}: {error}") from None
    return spec


def solve(
    velocity: Any,
    x0: Tensor,
    conditions: Tensor | None,
    spec: SolverSpec,
    save_at: NDArray[np.float64] | None = None,
    tuned: TunedPlans | None = None,
) -> Solution:
    """Solve from the noise x0 (samples, *event) to t = 1, showing a progress bar on a terminal.

    Args:
        velocity: called as velocity(x, t), or velocity(x, t, condition) if there are conditions; of any kind.
        x0: starting states, in the dtype of the velocity.
        conditions: one per sample, or None.
        spec: the solver.
        save_at: times in [0, 1] at which states are saved, or None.
        tuned: plans and grids tuned for the velocity, or None.
    """
    field = Field(velocity, conditions)
    return solve_field(field, x0, spec, save_at, progress=sys.stderr.isatty(), plans=tuned)
