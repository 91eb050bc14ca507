"""Measured points and short catalogues for tests."""

from collections.abc import Callable, Mapping
from typing import Any

from selection.error import Point
from solvers import catalogue
from solvers.catalogue import Solver


def only(*names: str) -> Callable[[], Mapping[str, Solver]]:
    """Return what stands in for `catalogue.solvers` where few candidates are enough."""
    entries = {name: catalogue.find(name) for name in names}
    return lambda: entries


def point(solver: str, nfe: float, error: float, **changes: Any) -> Point:
    """A point with this promised error; under error control, the slowest sample takes five calls more."""
    most = max(1, round(nfe + 5 * ("@" in solver)))
    members = {"p50": error / 4, "p95": error / 2, "p95_low": error / 3, "p95_high": error, "worst": error}
    return Point(**{"solver": solver, "nfe": nfe, "nfe_most": most, **members, **changes})
