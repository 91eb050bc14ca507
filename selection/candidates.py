"""The candidates: the solvers among which a model's own is chosen, in the order in which they are measured.

Every stored or fresh measurement goes through this one list, cheapest first, and leaves out what would not be chosen.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch

from selection.error import Point
from solvers import SolverSpec, catalogue, tolerance_floor
from solvers import compile as compiled
from solvers.errors import SolverError

MAX_NFE = 200
"""Maximum number of calls of a candidate; beyond it, error control needs fewer."""

CLOSE = 1e-4
"""Error, as a share of the spread, below which a method is not tried with more steps."""

STEPS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 100, 128, 160, 200)
SIMILAR = ("heun2", "ralston2", "rk4_38", "dopri5", "tsit5")
"""Methods that, with fixed steps, hardly differ from others."""

EDM = "heun2/karras"
"""EDM's sampler (Karras et al. 2022, algorithm 1 without noise): a method on a grid of its own."""

GRIDS = ("sway", "shift(0.5)", "shift(2)")
"""Grids on which the best method of each family is tried, up to `GRID_NFE` calls."""

GRID_NFE = 40
ADAPTIVE = ("bosh3", "dopri5", "tsit5")
TOLERANCES = tuple(10.0**-k for k in range(2, 11))

TUNED_NFE = (4, 5, 6, 8, 10)
"""Evaluations for which plans are tuned, unless `training tune` is told others."""

_PATIENCE = 3  # consecutive losses to cheaper solvers after which a method gets no more steps
_FLOOR = 0.9  # a tolerance that leaves more than this share of the error has reached rounding


def candidates(
    points: Mapping[str, Point], dtype: torch.dtype, tuned: Sequence[str] = (), close: float = CLOSE
) -> Iterator[str]:
    """Yield the solvers to measure, one after another.

    A method gets more steps until its error or that of a cheaper solver is small enough, or until it falls further and
    further behind cheaper solvers of at least its order; it overtakes those of a lower one in the end. Then, for each
    number of calls, the best method of each family is tried on other grids. Tolerances are tightened until the error
    hardly changes.

    Args:
        points: the points measured so far, by solver; the caller adds each before it asks for the next solver, or
            leaves it out if that solver cannot be used.
        dtype: dtype of the network's arithmetic.
        tuned: the tuned solvers of the model, which come first.
        close: error below which nothing more is tried.
    """
    yield from tuned
    yield from _ladder(points, dtype, close)
    for nfe in (steps for steps in STEPS if steps <= GRID_NFE and not _close_before(points, steps, close)):
        plain = [p for p in points.values() if p.nfe == nfe and "/" not in p.solver]
        several = [p for p in plain if (SolverSpec.parse(p.solver).steps or 1) > 1]  # a single step is its own grid
        best = {_family(point): point for point in sorted(several, key=lambda point: -point.p95_high)}
        for point in best.values():
            yield from (f"{point.solver}/{grid}" for grid in GRIDS)
    yield from _tolerances(points, dtype, close if close > CLOSE else 0.0)  # what is stored goes on to rounding


def _family(point: Point) -> tuple[bool, object]:
    """Return what methods share that are alike on all grids: Runge-Kutta, Adams-Bashforth, or one exponential form."""
    method = SolverSpec.parse(point.solver).method
    return method.multistep_order > 0, method.exponential is not None


def _ladder(points: Mapping[str, Point], dtype: torch.dtype, close: float) -> Iterator[str]:
    """Yield methods (or methods on a grid) with ever more steps, fewest calls first."""
    usable = [name for name in catalogue.solvers() if name not in SIMILAR and not catalogue.find(name).stochastic]
    names = [*usable, EDM]
    rungs = {name: _rungs(name, dtype) for name in names}
    queue = [rung for name in names if (rung := next(rungs[name], None))]
    heapq.heapify(queue)
    ratios = {name: [np.inf] for name in names}
    while queue:
        nfe, name, text = heapq.heappop(queue)
        if nfe > MAX_NFE or _close_before(points, nfe, close):
            continue
        yield text
        point = points.get(text)
        done = point is not None and (point.p95_high <= close or falls_behind(ratios[name], point, points, point.order))
        if not done and (rung := next(rungs[name], None)):
            heapq.heappush(queue, rung)


def _tolerances(points: Mapping[str, Point], dtype: torch.dtype, close: float) -> Iterator[str]:
    """Yield error control at ever tighter tolerances, until errors hardly change or other solvers are better."""
    names = list(ADAPTIVE)
    before = dict.fromkeys(names, np.inf)
    ratios = {name: [np.inf] for name in names}
    for tolerance in (t for t in TOLERANCES if t > 2 * tolerance_floor(dtype)):
        for name in tuple(names):
            text = str(SolverSpec.parse(f"{name}@{tolerance:g}"))
            yield text
            point = points.get(text)
            if point is None:
                continue
            ends = point.p95_high <= close or point.p95_high > _FLOOR * before[name]
            if falls_behind(ratios[name], point, points) or ends:
                names.remove(name)
            before[name] = point.p95_high


def _close_before(points: Mapping[str, Point], nfe: float, close: float) -> bool:
    """Whether a solver with fewer calls is already close enough."""
    return any(point.nfe_most < nfe and point.p95_high <= close for point in points.values())


def _rungs(name: str, dtype: torch.dtype) -> Iterator[tuple[int, str, str]]:
    """Yield calls, name and text of a method, or of one on a grid such as `heun2/karras`, with ever more steps.

    A multistep method begins at its order, as it is another in fewer steps: the start-up of `ab3` has orders 1 and 2,
    so that `ab3-2` is `ab2-2` and `ab3-1` is `euler-1`.
    """
    method, slash, grid = name.partition("/")
    for steps in STEPS:
        spec = SolverSpec.parse(f"{method}-{steps}{slash}{grid}")
        if steps >= spec.method.multistep_order:
            try:
                yield compiled(spec, dtype).nfe or MAX_NFE + 1, name, str(spec)
            except SolverError:  # it does not support so many steps
                return


def falls_behind(ratios: list[float], point: Point, points: Mapping[str, Point], order: int = 0) -> bool:
    """Return whether a method has fallen behind cheaper solvers of an order for good, as its number of steps grows.

    Args:
        ratios: its error as a share of the best of theirs at each number of steps; that of `point` is added.
        point: its next point.
        points: all points.
        order: the least order of the solvers that it is compared with.
    """
    rivals = (p for p in points.values() if p.nfe <= point.nfe and p.solver != point.solver and p.order >= order)
    best = min((p.p95_high for p in rivals), default=np.inf)
    ratios.append(point.p95_high / best if best > 0 else np.inf)
    latest = ratios[-_PATIENCE - 1 :]
    return len(latest) > _PATIENCE and all(1 < after >= before for before, after in pairwise(latest))
