"""Solves for evaluations: a network's samples by a solver named in its short text."""

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.endpoint_error import Field
from models.endpoint_error import solve as solve_field
from solvers import SolverSpec, compile  # noqa: A004  (a solver is what is compiled)
from solvers.errors import SolverError
from solvers.integrate import Solution
from solvers.tuned import TunedPlans
from training.errors import UsageError


def parse_solver(text: str, tuned: TunedPlans | None = None) -> SolverSpec:
    """Read a solver, such as `rk4-20`, `dopri5@1e-5` or, of those tuned for a checkpoint, `tuned-6`.

    Raises:
        UsageError: the text names no solver, or one that cannot be had.
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
        velocity: called as velocity(x, t), or velocity(x, t, condition) where there are conditions. One with a true
            `average` is a field of average velocity, which only Euler's steps suit.
        x0: starting states, in the dtype of the velocity.
        conditions: one a sample, or None.
        spec: the solver.
        save_at: times to keep the states at, in [0, 1], or None.
        tuned: what was tuned for the velocity.
    """
    field = Field(velocity, conditions)
    return solve_field(field, x0, spec, save_at, progress=sys.stderr.isatty(), plans=tuned)
