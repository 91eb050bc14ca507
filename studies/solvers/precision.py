"""Work against precision: the NFE and time that each library needs for a given error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from studies.solvers.others import LIBRARIES, METHODS
from studies.solvers.problems import PROBLEMS, Problem
from studies.solvers.timing import Counted, clock

TOLERANCES = {"dopri5": np.logspace(-3, -9, 49), "tsit5": np.logspace(-3, -9, 49), "bosh3": np.logspace(-2, -6, 33)}


@dataclass(frozen=True)
class Curve:
    """Errors, NFE and seconds over falling tolerances."""

    problem: str
    method: str
    library: str
    error: np.ndarray
    nfe: np.ndarray
    seconds: np.ndarray

    def nfe_at(self, errors: np.ndarray) -> np.ndarray:
        """Return the NFE for errors, by a parabola through the points in log-log, which smooths out their jitter."""
        x, y = np.log(self.error), np.log(self.nfe)
        return np.exp(np.polyval(np.polyfit(x, y, 2), np.log(errors)))


def curve(problem: Problem, method: str, library: str) -> Curve:
    """Solve a problem at each tolerance."""
    exact, rows = problem.answer(), []
    for tolerance in TOLERANCES[method]:
        counted = Counted(problem.field)
        begin = clock()
        found = LIBRARIES[library](counted, problem.start(), problem.end, method, float(tolerance))
        rows.append((max(float((found - exact).abs().max()), 1e-15), counted.calls, clock() - begin))
    return Curve(problem.name, method, library, *np.array(rows).T)


def curves() -> Iterator[Curve]:
    """Yield the curve of every problem and method in every library that has the method."""
    for problem in PROBLEMS:
        for method, libraries in METHODS.items():
            for library in libraries:
                yield curve(problem, method, library)


def compare(found: list[Curve]) -> list[tuple[str, str, dict[str, float], float]]:
    """Return (problem, method, mean NFE of each library at equal errors, ours over the best of the others).

    The means are geometric, over nine errors between the largest and the smallest that all libraries reach.
    """
    rows = []
    for problem in dict.fromkeys(c.problem for c in found):
        for method in METHODS:
            mine = {c.library: c for c in found if (c.problem, c.method) == (problem, method)}
            low = max(c.error.min() for c in mine.values())
            high = min(c.error.max() for c in mine.values())
            errors = np.logspace(np.log10(max(low, 1e-13)), np.log10(high), 9)
            nfe = {name: float(np.exp(np.log(c.nfe_at(errors)).mean())) for name, c in mine.items()}
            best = min(value for name, value in nfe.items() if name != "pathline")
            rows.append((problem, method, nfe, nfe["pathline"] / best))
    return rows
