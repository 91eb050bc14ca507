"""Time grids for fixed steps, and the matching of rounded times to grid points.

A grid maps k / N to a fraction of the span, measured from its earlier end: a span that runs backwards visits the same
times in reverse, so that encoding and decoding use the same points.

Times arrive rounded: through float32, through half precision, as sums of 0.1. A time stands for a point of a grid or
an end of the span if

- it is within float32 rounding of that point: four ulps of float32 at the magnitude of the span, at most 1e-5 of its
  length (so that a span far from zero keeps the digits that float64 has there), or
- the point rounds to it in the dtype of the times, if that is narrower than float64.

So 0.30000001192092896 (float32) stands for 0.3 and, in an array of half precision, 0.0999755859375 for 0.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from solvers.errors import SolverError
from solvers.tuned import TUNED

Times = NDArray[np.float64]
TimesSpec = Sequence[float] | NDArray[np.floating]
GridSpec = str | Mapping[str, object] | TimesSpec
NormalGrid = str | tuple[float, ...]
"""A checked grid, hashable: its text (`uniform`, `shift(3)`), or its times."""

NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?"
"""A number in text, lower case."""

GRID_TEXT = r"[a-z_][a-z0-9_]*(?:\([^()]*\))?|\([^()]*\)"
"""A grid in text: a name, a name with its parameters in parentheses, or times in parentheses."""

_ULPS = 4
_MAX_SPAN_FRACTION = 1e-5


@dataclass(frozen=True)
class Parameter:
    """A number of a grid.

    Attributes:
        about: what it does, for people.
        low, high: its bounds, inclusive.
        default: its value if a request has none; None makes it required.
        example: a value to begin with, if there is no default.
    """

    about: str
    low: float
    high: float
    default: float | None = None
    example: float | None = None


@dataclass(frozen=True)
class Grid:
    """One family of grids.

    Attributes:
        formula: the map from u = k / N to a fraction of the span, as shown to users.
        reference: its source.
        parameters: by name, in the order in which text has them.
        warp: u (N + 1,) and the parameters -> fractions (N + 1,).
    """

    formula: str
    reference: str
    parameters: dict[str, Parameter]
    warp: Callable[..., Times]

    def describe(self) -> dict[str, object]:
        """The entry as JSON-ready data, as returned by `GET /v1/solvers`."""
        parameters = {name: asdict(parameter) for name, parameter in self.parameters.items()}
        return {"formula": self.formula, "reference": self.reference, "parameters": parameters}


def _logit_normal(u: Times, mean: float, std: float) -> Times:
    return expit(mean + std * ndtri(u))


def _karras(u: Times, rho: float, sigma_min: float, sigma_max: float) -> Times:
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    share = np.arange(len(u) - 1) / max(len(u) - 2, 1)
    return np.append(1 / (1 + (high + share * (low - high)) ** rho), 1.0)


GRIDS: dict[str, Grid] = {
    "uniform": Grid("u", "Hairer I, II.1", {}, lambda u: u),
    "shift": Grid(
        "u / (u + value (1 - u))",
        "Esser et al. 2024 (Stable Diffusion 3), eq. 23, with noise at t = 0: value > 1 puts more steps near the noise",
        {"value": Parameter("above 1, steps are closer together near the noise", 1e-3, 1e3, example=3.0)},
        lambda u, value: u / (u + value * (1 - u)),
    ),
    "sway": Grid(
        "u + coefficient (cos(pi u / 2) - 1 + u)",
        "Chen et al. 2024 (F5-TTS), eq. 6: a negative coefficient puts more steps near the noise",
        {"coefficient": Parameter("below 0, steps are closer together near the noise", -1.0, 2 / (np.pi - 2), -1.0)},
        lambda u, coefficient: u + coefficient * (np.cos(np.pi * u / 2) - 1 + u),
    ),
    "power": Grid(
        "u ^ exponent",
        "",
        {"exponent": Parameter("above 1, steps are closer together near the noise", 1e-2, 1e2, example=2.0)},
        lambda u, exponent: u**exponent,
    ),
    "logit_normal": Grid(
        "quantiles of a logit-normal: sigmoid(mean + std Phi^-1(u))",
        "Esser et al. 2024 (Stable Diffusion 3), eq. 19: their training density, used as a grid",
        {
            "mean": Parameter("below 0, steps are closer together near the noise", -10.0, 10.0, 0.0),
            "std": Parameter("smaller values concentrate the steps around one time", 1e-2, 10.0, 1.0),
        },
        _logit_normal,
    ),
    "karras": Grid(
        "1 / (1 + s), s = (sigma_max^(1/rho) + k / (N - 1) (sigma_min^(1/rho) - sigma_max^(1/rho)))^rho; ends 0 and 1",
        "Karras et al. 2022 (EDM), eq. 5, with s = sigma / alpha = (1 - t) / t; the first time is 0, not 1 / (1 + "
        "sigma_max)",
        {
            "rho": Parameter("larger values make steps finer near the data", 1.0, 100.0, 7.0),
            "sigma_min": Parameter("noise level, (1 - t) / t, before the last step", 1e-6, 1.0, 0.002),
            "sigma_max": Parameter("noise level, (1 - t) / t, after the first step", 2.0, 1e6, 80.0),
        },
        _karras,
    ),
}


def normalise(grid: GridSpec, t_span: tuple[float, float] | None = None) -> NormalGrid:
    """Check a grid as users write it, and return its normal form.

    Args:
        grid: a name, a name with its parameters as text (`shift(3)`) or as a mapping (`{"name": ..., parameter:
            value}`), or a sequence of times.
        t_span: (start, end) of the integration; a first or last time that stands for one of them is replaced by it.

    Raises:
        SolverError: for an unknown name, a missing, unknown or out-of-range parameter, and for fewer than two times.
    """
    if isinstance(grid, str):
        grid = read(grid)
    if not isinstance(grid, Mapping):
        if not isinstance(grid, Sequence | np.ndarray):
            raise SolverError("grid", f"grid must be a name, a mapping with a name, or a list of times, not {grid!r}")
        if len(grid) < 2:
            raise SolverError("grid", f"a grid needs at least two times, got {len(grid)}")
        points = tuple(_number("grid", value) for value in grid)
        return points if t_span is None else _with_snapped_ends(grid, points, t_span)
    if "name" not in grid:
        raise SolverError("grid", f"a grid with parameters needs 'name' too, one of {', '.join(GRIDS)}")
    name = grid["name"]
    if name == TUNED and len(grid) == 1:  # its times come from the model
        return TUNED
    if not isinstance(name, str) or name not in GRIDS:
        raise SolverError("grid", f"unknown grid {name!r}; use one of {', '.join(GRIDS)} or a list of times")
    return name + _parameters_text(name, grid)


def read(text: str) -> dict[str, object] | list[float]:
    """Read a grid from text: a name, `shift(3)` with parameters in the catalogue's order, or times such as `(0,0.3,1)`.

    Raises:
        SolverError: for malformed text; `normalise` checks the numbers.
    """
    name, bracket, inside = text.strip().lower().partition("(")
    if not bracket:
        return {"name": name}
    parts = [part.strip() for part in inside.removesuffix(")").split(",")]
    if not inside.endswith(")") or not all(re.fullmatch(NUMBER, part) for part in parts):
        raise SolverError("grid", f"grid {text!r}: write comma-separated numbers in parentheses")
    values = [float(part) for part in parts]
    if not name:
        return values
    parameters = GRIDS[name].parameters if name in GRIDS else {}
    if name in (*GRIDS, TUNED) and len(values) > len(parameters):
        takes = f"{name}({', '.join(parameters)})" if parameters else f"{name}, without parameters"
        raise SolverError("grid", f"grid {text!r} has too many numbers; write {takes}")
    return {"name": name, **dict(zip(parameters, values, strict=False))}


def settings_of(grid: NormalGrid) -> str | dict[str, object] | list[float]:
    """A checked grid as JSON-ready data: a name, a name with all of its parameters, or times."""
    if not isinstance(grid, str):
        return list(grid)
    if grid == TUNED:
        return grid
    name, parameters = _named(grid)
    return {"name": name, **parameters} if parameters else name


def _named(text: str) -> tuple[str, dict[str, float]]:
    """Name and parameters of a checked grid, including those at their defaults."""
    values = read(text)
    assert isinstance(values, dict)  # noqa: S101  (a name)
    name = str(values["name"])
    return name, {key: float(values.get(key, parameter.default)) for key, parameter in GRIDS[name].parameters.items()}  # type: ignore[arg-type]


def _parameters_text(name: str, grid: Mapping[str, object]) -> str:
    """Check the parameters of a named grid and return them as text, without trailing ones at their defaults."""
    parameters = GRIDS[name].parameters
    surplus = [key for key in grid if key != "name" and key not in parameters]
    if surplus:
        allowed = ", ".join(parameters) or "no parameters"
        raise SolverError("grid", f"grid {name!r} takes {allowed}, not {surplus[0]!r}")
    values: list[str] = []
    shown = 0
    for key, parameter in parameters.items():
        bounds = f"{parameter.low:g} to {parameter.high:.6g}"
        if key not in grid and parameter.default is None:
            raise SolverError("grid", f"grid {name!r} needs {key!r}, from {bounds}")
        value = _number(f"grid {name!r}: {key}", grid.get(key, parameter.default))
        if not parameter.low <= value <= parameter.high:
            raise SolverError("grid", f"grid {name!r}: {key} = {value:g} is outside {bounds}")
        values.append(number_text(value))
        if value != parameter.default:
            shown = len(values)
    return f"({','.join(values[:shown])})" if shown else ""


def grid_text(grid: NormalGrid) -> str:
    """A checked grid as text, which `read` reads back."""
    return grid if isinstance(grid, str) else f"({','.join(map(number_text, grid))})"


def number_text(value: float) -> str:
    """The shortest text that reads back equal: 20, 0.05, 1e-5, 2.5e-4; decimal unless an exponent is shorter."""
    decimal = np.format_float_positional(value + 0.0, trim="-")  # without the sign of a zero
    return min(decimal, np.format_float_scientific(value, trim="-", exp_digits=1).replace("e+", "e"), key=len)


def _with_snapped_ends(
    grid: Sequence[float] | NDArray[np.floating], points: tuple[float, ...], t_span: tuple[float, float]
) -> tuple[float, ...]:
    """The points of a grid, with the first and last moved to the ends of the span if they stand for them."""
    dtype = np.asarray(grid).dtype
    ends = np.array([points[0], points[-1]], dtype=dtype if dtype.kind == "f" else np.float64)
    if not np.isfinite(ends).all():
        return points
    first, last = snapped(ends, t_span, t_span).tolist()
    return (first, *points[1:-1], last)


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise SolverError("grid", f"{what} must hold numbers, not {value!r}")
    return float(value)


def times(grid: GridSpec, steps: int | None, t_span: tuple[float, float]) -> Times:
    """The times of a grid.

    Args:
        grid: see `normalise`. Explicit times must start and end at the span's ends, up to rounding (see the top of
            this module); `steps` may then be left out.
        steps: N, the number of intervals, at least 1.
        t_span: (start, end) of the integration; end < start runs backwards.

    Returns:
        (N + 1,) float64, strictly monotone, first and last exactly the span's ends.

    Raises:
        SolverError: for times that are not finite, not strictly monotone, not `steps` + 1 in number or that do not
            reach the span's ends, and for so many steps that neighbouring times coincide in float64.
    """
    normal = normalise(grid, t_span)
    start, end = t_span
    if not isinstance(normal, str):
        return _explicit(np.array(normal, dtype=np.float64), steps, t_span)
    assert steps is not None  # noqa: S101  (`SolverSpec` requires them)
    name, parameters = _named(normal)
    fractions = GRIDS[name].warp(np.arange(steps + 1) / steps, **parameters)
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
        low, high, first, last = distinct_texts(float(points[0]), float(points[-1]), start, end)
        raise SolverError("grid", f"the grid runs from {low} to {high}, t_span from {first} to {last}; make them match")
    return points


def as_times(name: str, values: Any) -> NDArray[np.floating]:
    """Return times (M,) as an array in their own dtype; float64 for integers and lists, which were not rounded.

    Raises:
        SolverError: for anything but a list of finite numbers.
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind in "iuO":
            array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise SolverError(name, f"{name} must hold numbers, got {values!r}") from None
    if array.dtype.kind != "f" and array.size:
        raise SolverError(name, f"{name} must hold numbers, got {values!r}")
    if array.ndim != 1:
        raise SolverError(name, f"{name} must be a list of times, got {values!r}")
    for t in array[~np.isfinite(array)]:
        raise SolverError(name, f"{name} must hold finite times, got {t}")
    return array


def nearest(times: NDArray[np.floating], points: Times) -> Times:
    """Return the nearest point to each time (M,); the points (P,) are strictly monotone, in either direction."""
    ascending = points if points[0] < points[-1] else points[::-1]
    place = np.searchsorted(ascending, times.astype(np.float64)).clip(1, len(points) - 1)
    before, after = ascending[place - 1], ascending[place]
    return np.where(times - before <= after - times, before, after)


def stands_for(times: NDArray[np.floating], points: Times, t_span: tuple[float, float]) -> NDArray[np.bool_]:
    """Return (M,) whether each time stands for its point (M,), by the rule at the top of this module."""
    start, end = t_span
    far = _ULPS * float(np.finfo(np.float32).eps) * max(abs(start), abs(end))
    close = np.abs(times.astype(np.float64) - points) <= min(far, _MAX_SPAN_FRACTION * abs(end - start))
    if times.dtype.itemsize < points.dtype.itemsize:
        with np.errstate(over="ignore"):
            close |= points.astype(times.dtype) == times
    return close


def snapped(times: NDArray[np.floating], points: Sequence[float] | Times, t_span: tuple[float, float]) -> Times:
    """Return times (M,), each replaced by the point (P,) that it stands for, if any; points are strictly monotone."""
    near = nearest(times, np.asarray(points, dtype=np.float64))
    return np.where(stands_for(times, near, t_span), near, times.astype(np.float64))


def distinct_texts(*times: float) -> list[str]:
    """Times as text: with six digits, or as many as it takes to tell different times apart."""
    texts = [f"{t:g}" for t in times]
    if len(set(texts)) < len(set(times)):
        texts = [repr(float(t)).removesuffix(".0") for t in times]
    return texts


def check_order(name: str, times: NDArray[np.floating], start: float, end: float) -> None:
    """Refuse times (M,) that do not move strictly from start to end.

    Raises:
        SolverError: names the first two that do not.
    """
    wrong = np.flatnonzero(np.diff(times) * np.sign(end - start) <= 0)
    if len(wrong):
        k = int(wrong[0])
        a, b, first, last = distinct_texts(float(times[k]), float(times[k + 1]), start, end)
        raise SolverError(name, f"{name} must move strictly from {first} to {last}, but {b} follows {a}")
