"""Budgets: a request limits its cost or its error, and the service chooses the solver.

The choice is made on the model's frontier. Under `max_error` it is the fastest solver with a 95 % endpoint error within
it; with `max_nfe` and `max_ms` alone, the solver with the smallest error within them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from engine.job import Priority
from models.checkpoint.frontier import Curve, Point
from models.guidance import network_rows
from service.errors import invalid
from service.registry.version import ModelVersion
from service.requests.schemas import SOLVER_FIELDS, Budget, SampleRequest
from service.settings import Settings
from solvers import SolverSpec
from solvers.errors import SolverError

_FROM_NOISE = (0.0, 1.0)


@dataclass(frozen=True)
class Choice:
    """The solver chosen for a budget.

    Attributes:
        point: the chosen solver's point on the frontier.
        curve: the curve it was chosen from.
        budget: the budget of the request.
        predicted_s: estimated solving time in seconds at the service's current pace, without queueing.
        reason: the reason for the choice, in words.
    """

    point: Point
    curve: Curve
    budget: Budget
    predicted_s: float
    reason: str

    def document(self) -> dict[str, Any]:
        """Return the choice as responses show it."""
        return {
            **self.budget.model_dump(exclude_none=True),
            "solver": self.point.solver,
            "promised_error": self.point.error_95,
            "promised_distance": self.point.error_95 * self.curve.spread,
            "measured_nfe": self.point.nfe,
            "predicted_ms": round(1000 * self.predicted_s, 3),
            "reason": self.reason,
        }


def choose(request: SampleRequest, model: ModelVersion, settings: Settings) -> list[Choice]:
    """Return the choices within the budget of a request, best first.

    Raises:
        ProblemError: 422 if the budget contradicts other fields, the model has no frontier, the frontier does not apply
            to this request, or no measured solver fits (the message names the nearest).
    """
    budget = request.budget
    assert budget is not None  # noqa: S101  (checked by the caller)
    _check_alone(request)
    curve, note = _curve_of(request, model, settings)
    points = [point for point in curve.points if _is_known(point.solver)]
    if not points:
        raise invalid(
            "budget",
            f"the frontier of model {model.name!r} has no solver that can be used; name a solver, or have it measured: "
            f"{model.measured_by(settings.models_dir)}",
        )
    offered = [(point, _seconds(point, request, model)) for point in points]
    fitting = [each for each in offered if _fits(*each, budget)]
    if not fitting:
        more = "" if curve.complete else _unfinished(curve, model, settings)
        raise invalid("budget", _nearest(budget, offered, model) + more)
    if budget.max_error is not None:
        fitting.sort(key=lambda each: (each[1], each[0].nfe, each[0].error_95))
        why = f"the fastest of {len(points)} measured solvers with an error within {budget.max_error:g}"
    else:
        fitting.sort(key=lambda each: (each[0].error_95, each[1]))
        why = f"the closest of {len(points)} measured solvers"
    names = {"max_nfe": budget.max_nfe, "max_ms": budget.max_ms}
    if limits := [f"{name} {value:g}" for name, value in names.items() if value is not None]:
        why += f", within {' and '.join(limits)}"
    return [Choice(point, curve, budget, seconds, why + note) for point, seconds in fitting]


def _check_alone(request: SampleRequest) -> None:
    given = [name for name in SOLVER_FIELDS if name in request.model_fields_set]
    if given:
        raise invalid(
            "budget",
            f"budget and {given[0]} contradict each other: a budget lets the service choose the solver; leave one of "
            f"them out{' (budget has its own max_nfe)' if given[0] == 'max_nfe' else ''}",
        )
    if request.x0 is not None or tuple(request.t_span) != _FROM_NOISE:
        name = "x0" if request.x0 is not None else "t_span"
        raise invalid(
            "budget",
            f"budget does not work with {name}: errors were measured from noise at t = 0 to data at 1; name a solver",
        )


def _curve_of(request: SampleRequest, model: ModelVersion, settings: Settings) -> tuple[Curve, str]:
    """Return the curve that applies to a request, and remarks for the reason of the choice."""
    command = model.measured_by(settings.models_dir)
    if model.never_measured:
        raise invalid("budget", model.never_measured)
    frontier, fault = model.frontier()
    if frontier is None:
        why = f"cannot be used ({fault})" if fault else "was not measured"
        raise invalid(
            "budget", f"the frontier of model {model.name!r} {why}; name a solver, or have it measured: {command}"
        )
    if frontier.sizes != dict(model.sizes):
        measured, actual = _sizes_text(frontier.sizes), _sizes_text(dict(model.sizes))
        raise invalid(
            "budget",
            f"the frontier of model {model.name!r} was measured at {measured}, and this request has {actual}; name a "
            f"solver, or have it measured: {command}",
        )
    if request.noise_scale != 1:
        raise invalid("budget", "no errors were measured with another noise_scale; leave it out, or name a solver")
    strength = request.guidance
    if not isinstance(strength, float | int | None) or request.negative is not None:
        raise invalid(
            "budget",
            "budget does not work with guidance of several terms or negative conditions, for which no errors were "
            "measured; name a solver",
        )
    guidance = 1.0 if strength is None and model.card.condition is not None else strength
    curve = frontier.curve(guidance)
    if curve is None:
        known = ", ".join(f"{each.guidance:g}" for each in frontier.curves if each.guidance is not None)
        raise invalid(
            "budget",
            f"the frontier of model {model.name!r} was measured with guidance {known}, and errors with guidance "
            f"{guidance:g} may be larger; name a solver, or have it measured: {command} --guidance {guidance:g}",
        )
    note = f"; measured with {frontier.conditions}" if frontier.conditions else ""
    measured = {point.solver for point in curve.points}
    if missed := [text for text in model.plans.texts if text not in measured] if model.plans else []:
        note += f"; {', '.join(missed)} of this model cannot be chosen until measured: {command}"
    if model.card.condition is not None and request.condition is None and not request.conditions:
        note += ", and this request has no condition"
    return curve, note


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} = {size}" for axis, size in sizes.items()) or "no size"


@lru_cache(maxsize=4096)
def _is_known(solver: str) -> bool:
    try:
        SolverSpec.parse(solver)
    except SolverError:
        return False
    return True


def _seconds(point: Point, request: SampleRequest, model: ModelVersion) -> float:
    strength = request.guidance if isinstance(request.guidance, float | int) else None  # others are refused earlier
    rows = request.num_samples * network_rows(strength)
    return model.pace(point.nfe_most, rows * point.nfe, rows, Priority(request.priority), model.sizes)


def _is_adaptive(point: Point) -> bool:
    return "@" in point.solver


def _fits(point: Point, seconds: float, budget: Budget) -> bool:
    if budget.max_nfe is not None and (_is_adaptive(point) or point.nfe_most > budget.max_nfe):
        return False  # under error control, other samples may take more calls than those measured
    if budget.max_ms is not None and 1000 * seconds > budget.max_ms:
        return False
    return budget.max_error is None or point.error_95 <= budget.max_error


def _nearest(budget: Budget, offered: Sequence[tuple[Point, float]], model: ModelVersion) -> str:
    """Describe the measured solvers nearest to a budget that none of them fits."""
    stated = ", ".join(f"{name} {value:g}" for name, value in budget.model_dump(exclude_none=True).items())
    rest = budget.model_copy(update={"max_error": None})
    within = [each for each in offered if _fits(*each, rest)]
    close = [each for each in offered if budget.max_error is not None and each[0].error_95 <= budget.max_error]
    parts = [f"no measured solver of model {model.name!r} fits the budget ({stated})"]
    if within and budget.max_error is not None:
        parts.append(f"the closest within its other limits is {_described(min(within, key=lambda e: e[0].error_95))}")
    if close:
        parts.append(f"the fastest that is close enough is {_described(min(close, key=lambda each: each[1]))}")
    if not within and not close:
        parts.append(f"the fastest is {_described(min(offered, key=lambda each: each[1]))}")
    return "; ".join(parts)


def _unfinished(curve: Curve, model: ModelVersion, settings: Settings) -> str:
    """Describe how to measure the solvers that time did not allow."""
    guidance = "" if curve.guidance in (None, 1) else f" --guidance {curve.guidance:g}"
    command = f"{model.measured_by(settings.models_dir)}{guidance}"
    return f"; time ran out before all solvers were measured; this measures the others too: {command}"


def _described(each: tuple[Point, float]) -> str:
    point, seconds = each
    return f"{point.solver} (error {point.error_95:.2g}, {point.nfe:g} NFE, about {1000 * seconds:.3g} ms)"
