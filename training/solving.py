"""Solves that an evaluation asks for: a solver from its short text, and a network's samples by it."""

import re
import sys
from typing import Any

import torch
from torch import Tensor

from solvers import resolve
from solvers.errors import SolverError
from solvers.integrate import Solution, integrate_indexed
from training.errors import UsageError


def parse_solver(text: str) -> dict[str, Any]:
    """Arguments of `solvers.resolve` from `rk4:20` (steps) or `dopri5@1e-5` (tolerance).

    Raises:
        UsageError: it is neither, or there is no such solver.
    """
    found = re.fullmatch(r"([a-z0-9_]+)(?::(\d{1,6})|@([0-9.eE+-]+))", text)
    try:
        if not found:
            raise ValueError
        tolerance = float(found[3]) if found[3] else None
    except ValueError:
        raise UsageError(
            f"solver is {text!r}; write NAME:STEPS or NAME@TOLERANCE, like rk4:20 or dopri5@1e-5"
        ) from None
    given = {"solver": found[1], "steps": int(found[2]) if found[2] else None, "rtol": tolerance, "atol": tolerance}
    try:
        resolve(**given, t_span=(0.0, 1.0), dtype=torch.float32)
    except SolverError as error:
        raise UsageError(f"solver {text}: {error}") from None
    return given


def solve(velocity: Any, x0: Tensor, conditions: Tensor | None, given: dict[str, Any]) -> Solution:
    """Solve from the noise x0 (samples, *event) to t = 1; on a terminal a bar shows how far it is.

    Args:
        velocity: called as velocity(x, t), or velocity(x, t, condition) where there are conditions.
        x0: starting states, in the dtype of the velocity.
        conditions: one a sample, or None.
        given: arguments of `solvers.resolve`.
    """
    plan = resolve(**given, t_span=(0.0, 1.0), dtype=x0.dtype)

    def asked(x: Tensor, t: Tensor, index: Any) -> Tensor:
        return velocity(x, t) if conditions is None else velocity(x, t, conditions[torch.from_numpy(index)])

    with torch.no_grad():
        return integrate_indexed(asked, x0, plan, progress=sys.stderr.isatty())
