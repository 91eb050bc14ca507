"""From what is asked for to what is solved: every argument checked, compiled once and shared by equal requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from solvers import catalogue
from solvers.control import CONTROLLERS
from solvers.errors import SolverError
from solvers.grids import GridSpec, normalise, times
from solvers.multistep import adams_bashforth, check_start
from solvers.plan import MAX_STEP_SLACK, Adaptive, Plan, Settings
from solvers.rows import adaptive_rows, fixed_rows
from solvers.times import snapped

TOLERANCE_FLOOR = {torch.float64: 1e-14}
"""The smallest rtol and atol by dtype; 1e-7 for every narrower one."""

DEFAULT_TOLERANCE = 1e-5
ERROR_CONTROLS = ("sample", "batch")
MOST_STEPS = 10_000_000
"""More steps than this are refused before anything is allocated."""


def resolve(
    *,
    solver: str = "dopri5",
    steps: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    grid: GridSpec = "uniform",
    start: str | None = None,
    error_control: str = "sample",
    controller: str | None = None,
    first_step: float | None = None,
    max_step: float | None = None,
    max_nfe: int = 10_000,
    t_span: Sequence[float] = (0.0, 1.0),
    dtype: torch.dtype = torch.float32,
) -> Plan | Adaptive:
    """Check what was asked and compile it. Equal requests share one result.

    Args:
        solver: a name of the catalogue.
        steps: N for fixed steps; needed by methods without an error estimate unless `grid` lists the times.
        rtol, atol: tolerances for error control, 1e-5 where left out.
        grid: see `grids.normalise`; for fixed steps only.
        start: `ramp` or `rk`, for multistep methods.
        error_control: `sample` or `batch`.
        controller: `paper` (default for dopri5), `i` (default otherwise) or `pi`.
        first_step: size of the first step, positive, at most the span; automatic where left out.
        max_step: the longest step of error control, in units of |t|; no bound where left out.
        max_nfe: calls that no sample exceeds.
        t_span: (start, end); end < start runs backwards.
        dtype: of the state; it decides the smallest tolerance.

    Raises:
        SolverError: names the argument, what is wrong with it and what to do.
    """
    entry = catalogue.find(solver)
    span = _check_span(t_span)
    _whole("max_nfe", max_nfe)
    if steps is not None:
        _whole("steps", steps)
        if steps > MOST_STEPS:
            raise SolverError("steps", f"steps = {steps} is over the limit of {MOST_STEPS}")
    spec = normalise(grid, span)
    explicit = not isinstance(spec[0], str)
    tolerances = {"rtol": rtol, "atol": atol}
    given = [name for name, value in tolerances.items() if value is not None]
    if start is not None and not entry.multistep_order:
        raise SolverError("start", f"start is for multistep methods; {solver} has none, leave it out")
    if steps is None and not explicit and entry.adaptive:
        if spec != ("uniform", ()):
            raise SolverError("grid", f"a grid needs fixed steps; give {solver} steps, or leave grid out")
        checked = _check_tolerances(tolerances, dtype)
        batch, chosen = _check_control(entry, error_control, controller)
        steps_ = _check_first_and_longest(first_step, max_step, span)
        adaptive = _adaptive(entry, *checked, batch, chosen, *steps_, int(max_nfe), span)
        if max_step is not None and (least := adaptive.nfe_least) > max_nfe:
            calls = f"at least {least:.10g} calls" if math.isfinite(least) else "more calls than can be counted"
            raise SolverError(
                "max_step",
                f"max_step = {max_step:g} takes {solver} {calls} from {span[0]:g} to {span[1]:g}, over max_nfe = "
                f"{max_nfe}; raise one of them",
            )
        return adaptive
    if given and not entry.adaptive:
        raise SolverError(given[0], f"{solver} has no error estimate, so {given[0]} means nothing to it; give steps")
    if given:
        raise SolverError("steps", f"steps (or a list of times) and {given[0]} contradict each other; give one of them")
    if steps is None and not explicit:
        raise SolverError("steps", f"{solver} has no error estimate and needs steps")
    control = {
        "controller": controller,
        "first_step": first_step,
        "max_step": max_step,
        "error_control": None if error_control == "sample" else error_control,
    }
    for name, value in control.items():
        if value is not None:
            advice = ": the grid says how long they are" if name == "max_step" else ""
            raise SolverError(name, f"{name} is for error control; with fixed steps leave it out{advice}")
    chosen = check_start(solver, start) if entry.multistep_order else None
    plan = _plan(entry, spec, steps, chosen, span)
    if plan.nfe > max_nfe:
        raise SolverError(
            "max_nfe",
            f"{solver} takes {plan.nfe} calls for this grid, over max_nfe = {max_nfe}; raise it or take fewer steps",
        )
    return plan


@lru_cache(maxsize=1024)
def _plan(
    entry: catalogue.Solver,
    spec: tuple[str, tuple[tuple[str, float], ...]] | tuple[float, ...],
    steps: int | None,
    start: str | None,
    span: tuple[float, float],
) -> Plan:
    named = isinstance(spec[0], str)
    grid: GridSpec = {"name": spec[0], **dict(spec[1])} if named else spec  # type: ignore[arg-type, dict-item]
    points = times(grid, steps, span)
    count = len(points) - 1
    if entry.multistep_order:
        rows = adams_bashforth(points, entry.multistep_order, entry.tableau if start == "rk" else None)
        nfe = len(rows.c)
    else:
        rows = fixed_rows(entry.tableau)
        nfe = count * rows.slots
    shown = (spec[0] if not spec[1] else grid) if named else list(spec)
    settings: Settings = {"name": entry.name, "steps": count, "grid": shown, "start": start}
    return Plan(rows, points, nfe, {key: value for key, value in settings.items() if value is not None})


@lru_cache(maxsize=1024)
def _adaptive(
    entry: catalogue.Solver,
    rtol: float,
    atol: float,
    batch: bool,
    controller: str,
    first_step: float | None,
    max_step: float | None,
    max_nfe: int,
    span: tuple[float, float],
) -> Adaptive:
    q = entry.tableau.embedded_order
    assert q is not None  # noqa: S101  (the entry is adaptive)
    settings: Settings = {
        "name": entry.name,
        "rtol": rtol,
        "atol": atol,
        "controller": controller,
        "error_control": "batch" if batch else "sample",
        "first_step": first_step,
        "max_step": max_step,
        "max_nfe": max_nfe,
    }
    rows, control = adaptive_rows(entry.tableau), CONTROLLERS[controller](q)
    return Adaptive(rows, q, control, rtol, atol, first_step, max_step, max_nfe, batch, span, settings)


def _check_span(t_span: Sequence[float]) -> tuple[float, float]:
    if not isinstance(t_span, Sequence | np.ndarray) or isinstance(t_span, str):
        raise SolverError("t_span", f"t_span must be two finite numbers (start, end), got {t_span!r}")
    if len(t_span) != 2 or not all(map(_is_finite, t_span)):
        raise SolverError("t_span", f"t_span must be two finite numbers (start, end), got {list(t_span)}")
    if t_span[0] == t_span[1]:
        raise SolverError("t_span", f"t_span starts and ends at {t_span[0]:g}; the ends must differ")
    return float(t_span[0]), float(t_span[1])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer that is too large for double precision
        return False


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise SolverError(name, f"{name} must be a whole number of at least 1, got {value!r}")


def _check_tolerances(tolerances: dict[str, float | None], dtype: torch.dtype) -> tuple[float, float]:
    floor = TOLERANCE_FLOOR.get(dtype, 1e-7)
    checked: list[float] = []
    for name, value in tolerances.items():
        tolerance = DEFAULT_TOLERANCE if value is None else value
        if not _is_finite(tolerance):
            raise SolverError(name, f"{name} must be a finite number, got {tolerance!r}")
        if tolerance < floor:
            raise SolverError(
                name,
                f"{name} = {tolerance:g} is below the floor of {floor:g} for {str(dtype).removeprefix('torch.')}; "
                "raise it to the floor or more",
            )
        checked.append(float(tolerance))
    return checked[0], checked[1]


def _check_control(
    entry: catalogue.Solver,
    error_control: str,
    controller: str | None,
) -> tuple[bool, str]:
    if error_control not in ERROR_CONTROLS:
        raise SolverError(
            "error_control",
            f"unknown error_control {error_control!r}; use one of {', '.join(ERROR_CONTROLS)}",
        )
    chosen = ("paper" if entry.name == "dopri5" else "i") if controller is None else controller
    if not isinstance(chosen, str) or chosen not in CONTROLLERS:
        raise SolverError("controller", f"unknown controller {controller!r}; use one of {', '.join(CONTROLLERS)}")
    return error_control == "batch", chosen


def _check_first_and_longest(
    first_step: float | None, max_step: float | None, span: tuple[float, float]
) -> tuple[float | None, float | None]:
    length = abs(span[1] - span[0])
    if first_step is not None and _is_finite(first_step) and first_step > length:
        first_step = float(snapped(np.array([float(first_step)]), (0.0, length), span)[0])
    if first_step is not None and not (_is_number(first_step) and 0 < first_step <= length):
        raise SolverError(
            "first_step", f"first_step must be over 0 and at most the span {length:g}, got {first_step!r}"
        )
    if max_step is None:
        return None if first_step is None else float(first_step), None
    if not (_is_finite(max_step) and max_step > 0):
        raise SolverError(
            "max_step", f"max_step must be a finite number over 0, got {max_step!r}; leave it out for no bound"
        )
    if first_step is None:
        return None, float(max_step)
    if first_step > max_step * MAX_STEP_SLACK:
        raise SolverError("first_step", f"first_step = {first_step!r} is over max_step = {max_step!r}; make it shorter")
    return min(float(first_step), float(max_step)), float(max_step)
