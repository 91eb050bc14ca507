"""Budgets: a request limits its cost or its error, and the service chooses the solver from the model's frontier."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from engine.job import Priority
from models.guidance import guidance_of, network_rows
from models.shapes import free_axes
from selection.candidates import TUNED_NFE
from selection.choice import USUAL_ERROR, BudgetLimits, Choice, Evidence, NoneFits, choose, measured
from selection.frontier import Point, percent
from service.errors import invalid
from service.registry.version import ModelVersion
from service.requests.schemas import SOLVER_FIELDS, WHOLE, SampleRequest, Subject
from service.settings import Settings

TUNING_ROWS, TUNING_CALLS = 512, 1500
"""Paths that plans are tuned on, and about how many network calls for all of them an evaluation of a plan costs."""


def choices(request: SampleRequest, model: ModelVersion, settings: Settings) -> list[Choice]:
    """Return the choices within the budget of a request, best first.

    Raises:
        ProblemError: 422 if the budget contradicts other fields, the model has no frontier, the frontier does not apply
            to this request, or no measured solver fits (the message says what could be met).
    """
    assert request.budget is not None  # noqa: S101  (checked by the caller)
    _check_alone(request)
    evidence, fault = stored(request, model, settings)
    if evidence is None:
        raise invalid("budget", fault)
    limits = BudgetLimits(**request.budget.model_dump())
    try:
        offers = choose([evidence], limits, lambda point: 1000 * seconds(point, request, request.num_samples, model))
    except NoneFits as error:
        strength = request.guidance
        guidance = f" --guidance {strength:g}" if isinstance(strength, float | int) and strength != 1 else ""
        command = f"{measured_by(model, settings)}{guidance}"
        more = "" if evidence.curve.complete else f"; not all were measured, and this measures the others: {command}"
        if not measured([evidence]):
            more = f"; name a solver, or have others measured: {command}"
        raise invalid("budget", f"model {model.name!r}: {error}{more}") from None
    note = unmeasured(evidence, model, settings)
    return [replace(offer, note=note) for offer in offers]


def _check_alone(request: SampleRequest) -> None:
    beside = [name for name in SOLVER_FIELDS if name in request.model_fields_set]
    if beside:
        raise invalid(
            "budget",
            f"budget and {beside[0]} contradict each other: a budget lets the service choose the solver; leave one of "
            f"them out{' (budget has its own max_nfe)' if beside[0] == 'max_nfe' else ''}",
        )
    starts = {"x0": request.x0, "start_time": request.start_time, "t_span": tuple(request.t_span) != WHOLE or None}
    name = next((name for name, start in starts.items() if start is not None), None)
    if name is not None:
        raise invalid(
            "budget",
            f"budget does not work with {name}: errors were measured from noise at t = 0 to data at 1; name a solver",
        )


def measured_by(model: ModelVersion, settings: Settings) -> str:
    """Return the command that measures the frontier, at the sizes of this request, or at N where it has none."""
    free = free_axes(model.card.event_shape)
    sizes = dict.fromkeys(free, "N") | {axis: size for axis, size in model.sizes if axis in free}
    more = "".join(f" --shape {axis}={size}" for axis, size in sizes.items())
    if model.card.conditions and model.card.condition is None:
        takes = model.card.request_conditions
        names = ", ".join(takes.in_requests) if takes else ""
        more += f" --condition FILE.npz (examples of its conditions: an array for each of {names})"
    return f"python -m models measure {_folder(model, settings)}{more}"


def never_measured(model: ModelVersion) -> str:
    """Why the model cannot have a frontier, and what to do without; empty if it can."""
    return model.no_path and (
        f"{model.no_path}: it has no endpoint error, so no frontier; compare its samples with data (python -m training "
        "evaluate), and name a solver, such as euler-4"
    )


def _folder(model: ModelVersion, settings: Settings) -> str:
    return shlex.quote(str(settings.models_dir / model.name / str(model.version)))


def stored(request: Subject, model: ModelVersion, settings: Settings) -> tuple[Evidence | None, str]:
    """Return the stored measurements that apply to a request; if there are none, why, and what to do."""
    command = measured_by(model, settings)
    if never := never_measured(model):
        return None, never
    frontier, fault = model.frontier_file.now()
    name = f"the frontier of model {model.name!r}"
    if frontier is None:
        why = f"cannot be used ({fault})" if fault else "was not measured"
        return None, f"{name} {why}; name a solver, or have it measured: {command}"
    free = free_axes(model.card.event_shape)
    requested = {axis: size for axis, size in model.sizes if axis in free}
    if frontier.sizes != requested:
        sizes, own = (
            ", ".join(f"{axis} = {size}" for axis, size in settled.items()) or "no size"
            for settled in (frontier.sizes, requested)
        )
        return None, (
            f"{name} was measured at {sizes}, and this request has {own}; name a solver, or have it measured: {command}"
        )
    if getattr(request, "noise_scale", 1) != 1:
        return None, "no errors were measured with another noise_scale; leave it out, or name a solver"
    strength = request.guidance
    if not isinstance(strength, float | int | None) or request.negative is not None:
        return None, (
            "budget does not work with guidance of several terms or negative conditions, for which no errors were "
            "measured; name a solver"
        )
    guidance = 1.0 if strength is None and model.card.conditions else strength
    curve = frontier.curve(guidance)
    if curve is None:
        strengths = ", ".join(f"{one.guidance:g}" for one in frontier.curves if one.guidance is not None)
        return None, (
            f"{name} was measured with guidance {strengths}, and errors with guidance {guidance:g} may be larger; name "
            f"a solver, or have it measured: {command} --guidance {guidance:g}"
        )
    return Evidence(curve, True, frontier.conditions, own=not frontier.conditions), ""


def unmeasured(evidence: Evidence, model: ModelVersion, settings: Settings) -> str:
    """Say which tuned solvers of a model cannot be chosen, because they were not measured; empty if there are none."""
    texts = {point.solver for point in evidence.curve.points}
    missing = [text for text in model.plans.texts if text not in texts] if model.plans else []
    if not missing:
        return ""
    command = measured_by(model, settings)
    return f"{', '.join(missing)} of this model cannot be chosen until measured: {command}"


def tuning(evidence: Sequence[Evidence], model: ModelVersion, settings: Settings) -> str:
    """Say how to tune plans for a model, how long that takes here and what it could gain; empty if that is nothing.

    The gain is what the measured solvers leave to gain: plans of `TUNED_NFE` evaluations are learned, and one of them
    may keep the usual error.
    """
    if model.no_path or model.card.bounds or (model.card.conditions and model.card.condition is None):
        return ""  # they cannot be tuned
    if model.plans and model.plans.texts:
        return ""
    calls = TUNING_CALLS * sum(TUNED_NFE)
    spent = model.pace(calls, calls * TUNING_ROWS, TUNING_ROWS, Priority.BULK, model.sizes)
    command = f"python -m training tune {_folder(model, settings)}"
    least, most, error = TUNED_NFE[0], TUNED_NFE[-1], percent(USUAL_ERROR)
    duration = f"{max(1, round(spent / 60))} min" if spent >= 60 else f"{max(1, round(spent))} s"
    text = f"no plans were tuned for this model; {command} learns some of {least} to {most} NFE in about {duration}"
    try:
        best = choose(evidence, BudgetLimits(max_error=USUAL_ERROR))[0].point
    except NoneFits:
        return f"{text}; no solver that keeps {error} was measured" if evidence else text
    if best.nfe_most <= least:
        return ""
    return f"{text}; one that keeps {error} would replace {best.solver}, which takes {best.nfe_most}"


def seconds(point: Point, request: Subject, num_samples: int, model: ModelVersion) -> float:
    """Return the seconds that a measured solver would take for the samples of a request at the current pace."""
    strength = request.guidance if isinstance(request.guidance, float | int) else 1.0  # others are refused earlier
    rows = num_samples * network_rows(guidance_of(strength, ()))
    return model.pace(point.nfe_most, rows * point.nfe, rows, Priority(request.priority), model.sizes)
