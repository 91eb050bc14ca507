"""Plans: a spec compiled to rows, on a grid or under error control, once for all that ask for the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from solvers.catalogue import Solver
from solvers.control import CONTROLLERS, MAX_STEP_SLACK, Controller
from solvers.errors import SolverError
from solvers.grids import NormalGrid, settings_of, times
from solvers.multistep import adams_bashforth
from solvers.rows import ADAPTIVE_START, Rows, adaptive_rows, fixed_rows
from solvers.spec import SolverSpec, given

TOLERANCE_FLOOR = {torch.float64: 1e-14}
"""The smallest rtol and atol by dtype; 1e-7 for every narrower one."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A solver compiled: on a grid, or under error control. Compared and cached by identity.

    Attributes:
        spec: the request, complete.
        rows: what is asked in each call. Under error control: the two calls that choose the first step, then one
            attempt.
        times: (N + 1,) the grid; None under error control.
        control: how the next step follows from the error; None on a grid.
        q: order of the error estimate; 0 on a grid.
    """

    spec: SolverSpec
    rows: Rows
    times: NDArray[np.float64] | None = None
    control: Controller | None = None
    q: int = 0

    @property
    def name(self) -> str:
        """Of the solver."""
        return self.spec.solver

    @property
    def adaptive(self) -> bool:
        """Whether steps are under error control."""
        return self.times is None

    @property
    def batch(self) -> bool:
        """Whether all samples of a request share one step size."""
        return self.spec.error_control == "batch"

    @property
    def t_span(self) -> tuple[float, float]:
        """(start, end)."""
        start, end = self.spec.t_span
        return start, end

    @cached_property
    def nfe(self) -> int | None:
        """Exactly how many calls a sample takes; None under error control."""
        if self.times is None:
            return None
        return len(self.rows.c) if self.spec.method.multistep_order else (len(self.times) - 1) * self.rows.slots

    @property
    def nfe_bound(self) -> int:
        """The most calls a sample can take."""
        return self.spec.max_nfe if self.nfe is None else self.nfe

    @property
    def attempt_nfe(self) -> int:
        """Calls of one attempted step; a method without FSAL takes one more before each attempt that follows a step."""
        return len(self.rows.c) - ADAPTIVE_START - (not self.rows.fsal)

    @property
    def nfe_least(self) -> float:
        """The fewest calls that reach the end of the span; infinite where max_step vanishes beside it."""
        if self.nfe is not None:
            return self.nfe
        start, end = self.t_span
        longest = self.spec.max_step
        steps = 1.0 if longest is None else abs(end - start) / (longest * MAX_STEP_SLACK)
        steps = max(1.0, float(math.ceil(steps))) if steps < 2**53 else math.inf
        again = 0.0 if self.rows.fsal else steps - 1
        return (2 if self.spec.first_step is None else 1) + steps * self.attempt_nfe + again

    @property
    def most_steps(self) -> int:
        """The most steps that a sample can attempt."""
        if self.times is not None:
            return len(self.times) - 1
        return max(1, self.spec.max_nfe // self.attempt_nfe)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The spec as JSON-ready data: what concerns this solver, by its names in a request (`name` for the solver)."""
        spec = self.spec
        if self.adaptive:
            names = ("rtol", "atol", "controller", "error_control", "first_step", "max_step", "max_nfe")
            return {"name": spec.solver, **{name: getattr(spec, name) for name in names}}
        grid: NormalGrid = spec.grid  # type: ignore[assignment]  (checked)
        start = {} if spec.start is None else {"start": spec.start}
        return {"name": spec.solver, "steps": spec.steps, "grid": settings_of(grid), **start}


def compile(spec: SolverSpec, dtype: torch.dtype = torch.float32) -> Plan:  # noqa: A001  (solvers.compile)
    """Compile a spec for states of a dtype. Equal specs share one plan.

    Raises:
        SolverError: for a tolerance below the floor of the dtype, a plan that takes more than `max_nfe` calls, and for
            times that are no grid of the span (see `grids.times`).
    """
    floor = TOLERANCE_FLOOR.get(dtype, 1e-7)
    for name, value in (("rtol", spec.rtol), ("atol", spec.atol)):
        if value is not None and value < floor:
            raise SolverError(
                name,
                f"{name} = {value:g} is below the floor of {floor:g} for {str(dtype).removeprefix('torch.')}; "
                "raise it to the floor or more",
            )
    plan = _compiled(spec, spec.method)
    if plan.nfe is not None and plan.nfe > spec.max_nfe:
        raise SolverError(
            "max_nfe",
            f"{plan.name} takes {plan.nfe} calls for this grid, over max_nfe = {spec.max_nfe}; raise it or take fewer "
            "steps",
        )
    if spec.max_step is not None and (least := plan.nfe_least) > spec.max_nfe:
        calls = f"at least {least:.10g} calls" if math.isfinite(least) else "more calls than can be counted"
        start, end = plan.t_span
        raise SolverError(
            "max_step",
            f"max_step = {spec.max_step:g} takes {plan.name} {calls} from {start:g} to {end:g}, over max_nfe = "
            f"{spec.max_nfe}; raise one of them",
        )
    return plan


@lru_cache(maxsize=1024)
def _compiled(spec: SolverSpec, method: Solver) -> Plan:
    if spec.controller is not None:
        q = method.tableau.embedded_order
        assert q is not None  # noqa: S101  (the method is adaptive)
        return Plan(spec, adaptive_rows(method.tableau), control=CONTROLLERS[spec.controller](q), q=q)
    start, end = spec.t_span
    points = times(spec.grid, spec.steps, (start, end))
    if method.multistep_order:
        starter = method.tableau if spec.start == "rk" else None
        return Plan(spec, adams_bashforth(points, method.multistep_order, starter), points)
    return Plan(spec, fixed_rows(method.tableau), points)


def resolve(*, solver: str = "dopri5", dtype: torch.dtype = torch.float32, **apart: Any) -> Plan:
    """`compile(SolverSpec.of(solver, ...), dtype)`, where fields at their defaults count as not given.

    Args:
        solver: a name of the catalogue, or the text of a solver.
        dtype: of the states.
        apart: other fields of `SolverSpec`.
    """
    return compile(SolverSpec.of(solver, **given(**apart)), dtype)
