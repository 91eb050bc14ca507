"""Numerics: tableaus, plans, lanes and the offline drivers. Independent of networks, HTTP and files."""

from solvers import catalogue
from solvers.errors import SolverError, Status
from solvers.integrate import Solution, integrate, warm_up
from solvers.likelihood import LogDensity, log_density
from solvers.plan import Plan, compile, resolve, tolerance_floor  # noqa: A004
from solvers.spec import SolverSpec
from solvers.trace import StepTrace

__all__ = [
    "LogDensity",
    "Plan",
    "Solution",
    "SolverError",
    "SolverSpec",
    "Status",
    "StepTrace",
    "catalogue",
    "compile",
    "integrate",
    "log_density",
    "resolve",
    "tolerance_floor",
    "warm_up",
]
