"""The numerics: tableaus, plans, lanes and the offline driver. Knows no network, no HTTP and no files."""

from solvers import catalogue
from solvers.errors import SolverError, Status
from solvers.integrate import Solution, integrate, warm_up
from solvers.likelihood import LogDensity, log_density
from solvers.plan import Adaptive, Plan
from solvers.resolve import resolve
from solvers.trace import Trace

__all__ = [
    "Adaptive",
    "LogDensity",
    "Plan",
    "Solution",
    "SolverError",
    "Status",
    "Trace",
    "catalogue",
    "integrate",
    "log_density",
    "resolve",
    "warm_up",
]
