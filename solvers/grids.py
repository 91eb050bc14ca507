"""Time grids: N intervals between the ends of a span, for every method with fixed steps.

A grid maps k / N to a fraction of the span, counted from its earlier end: a span that runs backwards visits the same
times in reverse, so that encoding and decoding meet at the same points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from solvers.errors import SolverError
from solvers.times import Times, apart, check_order, snapped

GridSpec = str | Mapping[str, object] | Sequence[float] | NDArray[np.floating]


@dataclass(frozen=True)
class Grid:
    """One family of grids.

    Attributes:
        formula: the map from u = k / N to a fraction of the span, as users read it.
        reference: where it comes from.
        parameters: name -> (default or None where one must be given, lowest, highest); the ends are allowed.
        warp: u (N + 1,) and the parameters -> fractions (N + 1,).
    """

    formula: str
    reference: str
    parameters: dict[str, tuple[float | None, float, float]]
    warp: Callable[..., Times]


def _logit_normal(u: Times, mean: float, std: float) -> Times:
    return expit(mean + std * ndtri(u))


GRIDS: dict[str, Grid] = {
    "uniform": Grid("u", "Hairer I, II.1", {}, lambda u: u),
    "shift": Grid(
        "u / (u + value (1 - u))",
        "Esser et al. 2024 (Stable Diffusion 3), eq. 23, with noise at t = 0: value > 1 puts more steps near the noise",
        {"value": (None, 1e-3, 1e3)},
        lambda u, value: u / (u + value * (1 - u)),
    ),
    "sway": Grid(
        "u + coefficient (cos(pi u / 2) - 1 + u)",
        "Chen et al. 2024 (F5-TTS), eq. 6: a negative coefficient puts more steps near the noise",
        {"coefficient": (-1.0, -1.0, 2 / (np.pi - 2))},
        lambda u, coefficient: u + coefficient * (np.cos(np.pi * u / 2) - 1 + u),
    ),
    "power": Grid("u ^ exponent", "", {"exponent": (None, 1e-2, 1e2)}, lambda u, exponent: u**exponent),
    "logit_normal": Grid(
        "quantiles of a logit-normal: sigmoid(mean + std Phi^-1(u))",
        "Esser et al. 2024 (Stable Diffusion 3), eq. 19: their training density, used as a grid",
        {"mean": (0.0, -10.0, 10.0), "std": (1.0, 1e-2, 10.0)},
        _logit_normal,
    ),
}


def normalise(
    grid: GridSpec, t_span: tuple[float, float] | None = None
) -> tuple[str, tuple[tuple[str, float], ...]] | tuple[float, ...]:
    """Check a grid as users write it and give it a hashable form.

    Args:
        grid: a name, a mapping `{"name": ..., parameter: value}`, or a sequence of times.
        t_span: (start, end) of the integration: a first and last time that stand for these (see `times`) become them.

    Returns:
        (name, sorted parameters), or the times.

    Raises:
        SolverError: for an unknown name, a missing, unknown or out-of-range parameter, and for fewer than two times.
    """
    if isinstance(grid, str):
        grid = {"name": grid}
    if not isinstance(grid, Mapping):
        if not isinstance(grid, Sequence | np.ndarray):
            raise SolverError("grid", f"grid must be a name, a mapping with a name, or a list of times, not {grid!r}")
        if len(grid) < 2:
            raise SolverError("grid", f"a grid needs at least two times, got {len(grid)}")
        points = tuple(_number("grid", value) for value in grid)
        return points if t_span is None else _meeting(grid, points, t_span)
    if "name" not in grid:
        raise SolverError("grid", f"a grid with parameters needs 'name' too, one of {', '.join(GRIDS)}")
    name = grid["name"]
    if not isinstance(name, str) or name not in GRIDS:
        raise SolverError("grid", f"unknown grid {name!r}; use one of {', '.join(GRIDS)} or a list of times")
    known = GRIDS[name].parameters
    surplus = [key for key in grid if key != "name" and key not in known]
    if surplus:
        allowed = ", ".join(known) or "no parameters"
        raise SolverError("grid", f"grid {name!r} takes {allowed}, not {surplus[0]!r}")
    values: list[tuple[str, float]] = []
    for key, (default, low, high) in known.items():
        if key not in grid and default is None:
            raise SolverError("grid", f"grid {name!r} needs {key!r}, from {low:g} to {high:.6g}")
        value = _number(f"grid {name!r}: {key}", grid.get(key, default))
        if not low <= value <= high:
            raise SolverError("grid", f"grid {name!r}: {key} = {value:g} is outside {low:g} to {high:.6g}")
        values.append((key, value))
    return name, tuple(values)


def _meeting(
    grid: Sequence[float] | NDArray[np.floating], points: tuple[float, ...], t_span: tuple[float, float]
) -> tuple[float, ...]:
    """The points of a grid, with a first and last one that stand for the ends of the span put there."""
    kept = np.asarray(grid).dtype
    ends = np.array([points[0], points[-1]], dtype=kept if kept.kind == "f" else np.float64)
    if not np.isfinite(ends).all():
        return points
    first, last = snapped(ends[:1], t_span, t_span), snapped(ends[1:], t_span, t_span)
    return (float(first[0]), *points[1:-1], float(last[0]))


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise SolverError("grid", f"{what} must hold numbers, not {value!r}")
    return float(value)


def times(grid: GridSpec, steps: int | None, t_span: tuple[float, float]) -> Times:
    """The times of a grid.

    Args:
        grid: see `normalise`. Explicit times must start and end at the span's ends, but for rounding (see `times`);
            `steps` may then be left out.
        steps: N, the number of intervals, at least 1.
        t_span: (start, end) of the integration; end < start runs backwards.

    Returns:
        (N + 1,) float64, strictly monotone, first and last exactly the span's ends.

    Raises:
        SolverError: for times that are not finite, not strictly monotone, do not meet the span's ends or do not
            number `steps` + 1, and for so many steps that neighbouring times coincide in float64.
    """
    spec = normalise(grid, t_span)
    start, end = t_span
    if not isinstance(spec[0], str):
        return _explicit(np.array(spec, dtype=np.float64), steps, t_span)
    assert steps is not None  # noqa: S101  (resolve asks for steps before it asks for times)
    name, parameters = spec
    fractions = GRIDS[str(name)].warp(np.arange(steps + 1) / steps, **dict(parameters))  # type: ignore[arg-type]
    fractions[0], fractions[-1] = 0.0, 1.0
    low, high = min(start, end), max(start, end)
    points = low + (high - low) * fractions
    points[0], points[-1] = low, high
    if end < start:
        points = points[::-1].copy()
    if np.any(np.diff(points) * np.sign(end - start) <= 0):
        raise SolverError("steps", f"{steps} steps of grid {name!r} are too many: neighbouring times coincide")
    return points


def _explicit(points: Times, steps: int | None, t_span: tuple[float, float]) -> Times:
    start, end = t_span
    if steps is not None and steps != len(points) - 1:
        raise SolverError("grid", f"steps = {steps}, but the grid has {len(points) - 1} intervals; leave steps out")
    if not np.all(np.isfinite(points)):
        raise SolverError("grid", f"grid times must be finite, got {points[~np.isfinite(points)][0]}")
    check_order("grid", points, start, end)
    if points[0] != start or points[-1] != end:
        low, high, first, last = apart(float(points[0]), float(points[-1]), start, end)
        raise SolverError("grid", f"the grid runs from {low} to {high}, t_span from {first} to {last}; make them meet")
    return points
