"""The solver of a request: named by the request, chosen for its budget, or its model's own; compiled."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import solvers
from selection.choice import Choice
from service.errors import ProblemError, check_limit, invalid
from service.registry.version import ModelVersion
from service.requests.budget import choices, stored, tuning
from service.requests.schemas import SOLVER_FIELDS, WHOLE, DiffusionRequest, SampleRequest, Solving
from service.settings import Settings
from solvers import SolverSpec
from solvers.errors import SolverError
from solvers.grids import distinct_texts, snapped
from solvers.plan import Plan
from solvers.saving import check_save_at
from solvers.spec import DEFAULT_TOLERANCE, read_solver
from solvers.stochastic import Diffusion
from solvers.tuned import TUNED

_APART = tuple(name for name in SOLVER_FIELDS if name != "solver")

_SHORT_TEXT = 200
"""Characters; what follows from a longer text of a solver is not kept for later requests."""


def plan_of(
    request: SampleRequest, model: ModelVersion, t_span: tuple[float, float], settings: Settings
) -> tuple[Plan, Choice | None, float | None]:
    """Return the plan of a request, for a budget the choice that names its solver, and the start time, see `Job`.

    Raises:
        ProblemError: 422, see `request_plan` and `budget.choices`.
    """
    if request.budget is None:
        usual, start_time = _authors_solver(request, model, t_span, settings), request.start_time
        if usual is not None and (own := model.card.start_time(request.steps)) is not None:
            start_time, t_span = own, (model.card.time.begin(own)[0], 1.0)
        plan = request_plan(request, model, t_span, settings, usual=usual)
        if plan.spec.resample > 1 and (request.known is None or request.known.mode != "replace"):
            raise invalid(
                "solver", f"solver is {plan.spec}; resample is for known values in mode 'replace'; leave it out"
            )
        _check_score(request, model, plan)
        return plan, None, start_time
    if request.known is not None:
        raise invalid("budget", "budget rests on errors of paths without known values; name a solver instead")
    refused: ProblemError | None = None
    for choice in choices(request, model, settings):
        named = request.model_copy(update={"solver": choice.point.solver})
        try:
            plan = request_plan(named, model, t_span, settings)
            if request.save_at is not None:
                times_of(named, "save_at", plan)
        except ProblemError as problem:  # over a limit of this service, or times that are not on the grid
            refused = refused or problem
            continue
        if refused is not None:
            note = f"cheaper ones cannot be used here: {refused.detail}"
            choice = replace(choice, note=f"{choice.note}; {note}" if choice.note else note)
        return plan, choice, request.start_time
    assert refused is not None  # noqa: S101  (there is a choice)
    raise refused


def request_plan(
    request: Solving, model: ModelVersion, t_span: tuple[float, float], settings: Settings, usual: str | None = None
) -> Plan:
    """Return the compiled solver of a request: its text and the separate fields make one `SolverSpec`.

    If the request names none, `usual` is the solver's text; None for the default of its field.

    Raises:
        ProblemError: 422 if its arguments contradict each other, cannot be met or are over a limit.
    """
    check_limit("steps", request.steps or 0, settings.max_steps)
    fields = {name: getattr(request, name) for name in _APART if name in request.model_fields_set}
    if isinstance(request.diffusion, DiffusionRequest):
        fields["diffusion"] = Diffusion(**request.diffusion.model_dump())
    solver = usual or request.solver
    known = request.known if isinstance(request, SampleRequest) else None
    if known is not None and "resample" in known.model_fields_set:
        fields["resample"] = known.resample
    limits = (t_span, settings.max_steps, settings.max_nfe, solvers.tolerance_floor(model.compute))
    arithmetic = (model.dtype, model.plans, model.compute)
    grid = request.grid
    try:
        if own := model.card.field.solver:
            text, steps = _of_average(request, model, t_span, own)
            solver = usual or text
            if steps is not None and usual is None:
                fields["steps"] = steps
        if isinstance(grid, str) and len(grid) + len(solver) <= _SHORT_TEXT:
            return solvers.compile(_spec(solver, tuple(fields.items()), *limits), *arithmetic)
        if isinstance(grid, list | np.ndarray):
            check_limit("grid", len(grid) - 1, settings.max_steps, " intervals")
        elif not isinstance(grid, dict | str):
            raise invalid("grid", "grid must be a name, an object with a name and a parameter, or a list of times")
        return solvers.compile(_spec.__wrapped__(solver, tuple(fields.items()), *limits), *arithmetic)
    except SolverError as error:
        raise invalid(error.field, f"{error}{_about_plans(error, request, model, settings)}") from None
    except OverflowError:
        raise invalid("grid", "grid has an integer too large for double precision") from None


def _about_plans(error: SolverError, request: Solving, model: ModelVersion, settings: Settings) -> str:
    """Return more about tuned plans, if the request asked for one that does not exist: why, or how to get some."""
    if TUNED not in str(error):
        return ""
    if fault := model.plans_fault:
        return f". Its file of plans cannot be used: {fault}"
    evidence, _ = stored(request, model, settings)
    advice = tuning([] if evidence is None else [evidence], model, settings)
    return f". Here {advice}" if advice else ""


def _authors_solver(
    request: SampleRequest, model: ModelVersion, t_span: tuple[float, float], settings: Settings
) -> str | None:
    """Return the solver of a model's card, if the request names none: it has no solver fields but `max_nfe`.

    It is for the whole span from noise to data. If a scheduler makes its grid, a request may give the number of steps,
    which then start where the scheduler starts them.

    Raises:
        ProblemError: 422 if the scheduler has no grid with that many steps.
    """
    fields = request.model_fields_set.intersection(("solver", *_APART)) - {"max_nfe"}
    named = {name for name in fields if getattr(request, name) is not None}
    sampling = model.card.sampling
    if sampling is None or named - ({"steps"} if sampling.scheduler else set[str]()):
        return None
    check_limit("steps", request.steps or 0, settings.max_steps)
    try:
        own = request.start_time
        if t_span != WHOLE and (own is None or own != model.card.start_time(request.steps)):
            return None
        return model.card.authors_solver(dict(model.sizes), request.steps)
    except ValueError as error:
        raise invalid("steps", str(error)) from None


@lru_cache(maxsize=1024)
def _spec(
    solver: str,
    members: tuple[tuple[str, Any], ...],
    t_span: tuple[float, float],
    max_steps: int,
    max_nfe: int,
    floor: float,
) -> SolverSpec:
    """Return a spec, cached as most requests repeat one. A spec over a limit is refused before it is compiled.

    Where the request does not name them, a tolerance is at least the floor of the model's arithmetic, and `max_nfe` is
    at most the limit.
    """
    spec = SolverSpec.of(solver, t_span=t_span, **dict(members))
    stated = {name for name, value in members if value is not None} | read_solver(solver).keys()
    if spec.adaptive and floor > DEFAULT_TOLERANCE:
        spec = replace(spec, **{name: floor for name in ("rtol", "atol") if name not in stated})
    if "max_nfe" not in stated and spec.max_nfe > max_nfe:
        spec = replace(spec, max_nfe=max_nfe)
    check_limit("steps", (spec.steps or 0) * spec.resample, max_steps)
    check_limit("max_nfe", spec.max_nfe, max_nfe)
    return spec


def _of_average(request: Solving, model: ModelVersion, t_span: tuple[float, float], own: str) -> tuple[str, int | None]:
    """Return the solver's text, and the steps if the request names none; those of `own` if it names neither.

    Raises:
        ProblemError: 422 for any other solver, for guidance, and for a span that runs backwards.
        SolverError: the text of the solver is not understood.
    """
    if t_span[1] < t_span[0]:
        raise invalid(
            "t_span",
            f"t_span = [{t_span[0]:g}, {t_span[1]:g}] runs backwards; {model.no_path}: it goes from noise to data only",
        )
    if request.guidance not in (None, 1):
        raise invalid(
            "guidance", f"guidance was given; {model.no_path}: it is guided in training only; leave guidance out"
        )
    default = read_solver(own)
    text = request.solver if "solver" in request.model_fields_set else default["solver"]
    parsed = read_solver(text)
    if why := model.card.field.check_solver(parsed["solver"]):
        raise invalid("solver", f"solver is {text!r}, for model {model.name!r}: {why}")
    named = "steps" in parsed or request.steps is not None or isinstance(request.grid, list | np.ndarray)
    return text, None if named else default["steps"]


def refuse_average(model: ModelVersion, does: str) -> None:
    """Refuse operations that need the velocity at a single time; `does` names one, as in "encode follows".

    Raises:
        ProblemError: 422 for a field of average velocity.
    """
    if model.no_path:
        student = model.card.dataset.get("student")
        parent = student.get("parent") if isinstance(student, dict) else None
        advice = f"ask {parent!r}, the model that it was trained on" if parent else "ask a model that has one"
        raise invalid("name", f"{does} the velocity of an ODE; {model.no_path}: {advice}")


def span_of(request: SampleRequest, model: ModelVersion) -> tuple[float, float]:
    """Return the span of a request, with ends that mean 0 or 1 replaced by exactly those.

    Raises:
        ProblemError: 422 if it leaves [0, 1], and for a start time that is not on the path or beside another start.
    """
    if request.start_time is not None:
        if request.x0 is not None or tuple(request.t_span) != WHOLE:
            other = "x0" if request.x0 is not None else "t_span"
            raise invalid("start_time", f"start_time and {other} both say where to start; leave one of them out")
        try:
            return model.card.time.begin(request.start_time)[0], 1.0
        except ValueError as error:
            raise invalid("start_time", f"start_time is {request.start_time:g}; {error}, for {model.name!r}") from None
    if tuple(request.t_span) == WHOLE:
        return WHOLE
    start, end = snapped(np.asarray(request.t_span), WHOLE, WHOLE).tolist()
    if not (0 <= start <= 1 and 0 <= end <= 1):
        first, last, _, _ = distinct_texts(start, end, *WHOLE)
        raise invalid("t_span", f"t_span = [{first}, {last}] leaves [0, 1], where model {model.name!r} is defined")
    return start, end


def _check_score(request: SampleRequest, model: ModelVersion, plan: Plan) -> None:
    """Refuse stochastic solvers where the score does not follow from the velocity, see `solvers.stochastic`.

    Raises:
        ProblemError: 422 with the reason.
    """
    if not plan.spec.noisy:
        return
    if plan.t_span[0] != 0 and request.x0 is None:
        raise invalid(
            "solver", f"solver is {plan.spec}, which starts at t = 0, or from x0; give x0, or leave the start out"
        )
    if why := model.card.no_score:
        raise invalid(
            "solver",
            f"solver is {plan.spec}, whose steps need the score of the path, and it follows from the velocity only for "
            f"standard normal noise that is independent of the data: model {model.name!r} {why}; use a solver without "
            "noise",
        )


def check_transitions(plan: Plan) -> None:
    """Refuse log-densities of steps that have none.

    Raises:
        ProblemError: 422 with the reason.
    """
    spec, noise = plan.spec, plan.spec.diffusion
    if spec.method.stochastic and plan.rows.slots > 1:
        raise invalid(
            "log_prob",
            f"log_prob: a step of {spec} is no normal distribution: its second velocity depends on its noise; use sde",
        )
    if not isinstance(noise, Diffusion) or noise.scale == 0 or noise.temperature == 0:
        raise invalid("log_prob", f"log_prob: steps of {spec} have no noise, and so no density; use sde, with noise")


def times_of(request: Solving, field: str, plan: Plan) -> NDArray[np.float64]:
    """Return the times in a field, at which to save states, strictly along the span; on a fixed grid, only its points.

    Raises:
        ProblemError: 422 for a time that is outside the span, out of order, or not on the grid (the nearest is named).
    """
    try:
        times = check_save_at(plan, getattr(request, field), field)
    except SolverError as error:
        raise invalid(error.field, str(error)) from None
    assert times is not None  # noqa: S101  (times were given)
    return times
