"""Request validation: a parsed request and its model become a `Job`, or an error before any work.

Limits come first, so that nothing is allocated for a number of steps or samples that is over them. What a solver can
and cannot do is checked by `solvers` alone.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import solvers
from models.named_conditions import repeated
from models.nested import NestedError, to_floats
from service.engine.job import Job, Priority
from service.errors import ProblemError, invalid
from service.ledger import Hold, Take
from service.registry.version import ModelVersion
from service.requests.average import solver_of
from service.requests.budget import Choice, choose
from service.requests.conditions import Told
from service.requests.schemas import SEED_LIMIT, Drawn, SampleRequest, Solving
from service.requests.shapes import sized
from service.requests.sizes import check_form, check_size, kept_steps, logged_beyond, memory_bytes, response_bytes
from service.responses.arrays import Encoder
from service.settings import Settings
from solvers import SolverSpec
from solvers.errors import SolverError
from solvers.grids import apart, snapped
from solvers.plan import Plan
from solvers.saving import check_save_at
from solvers.spec import DEFAULT_TOLERANCE, DEFAULTS, read_solver

WHOLE = (0.0, 1.0)
"""Where models are defined: from noise to data."""


@dataclass(frozen=True)
class Validated:
    """A validated request. It keeps nothing of the body: its lists take many times the memory of the tensors.

    Attributes:
        model: the requested model.
        job: for the engine.
        encoder: the format of the response.
        decode: whether samples are data, not states.
        most_bytes: upper bound on the response.
        choice: of the solver, where the request left it to the service.
    """

    model: ModelVersion
    job: Job
    encoder: Encoder
    decode: bool = True
    most_bytes: int = 0
    choice: Choice | None = None


def validate_sample(
    request: SampleRequest, model: ModelVersion, settings: Settings, encoder: Encoder, take: Take
) -> Validated:
    """Check a request for samples against its model and the limits, reserve its memory and make its job.

    Args:
        request: the parsed body.
        model: the requested model.
        settings: the limits.
        encoder: the format of the response.
        take: reserves bytes of memory until a deadline.

    Raises:
        ProblemError: 422 that names the field, the value and what is allowed; 406 if the format cannot represent the
            samples; what `take` raises.
    """
    n, saved = request.num_samples, len(request.save_at or ())
    check_limit("num_samples", n, settings.max_samples)
    check_limit("save_at", saved, settings.max_saved, " times")
    check_limit("timeout_s", request.timeout_s or 0.0, settings.max_timeout_s)
    check_indices(request)
    t_span = _span(request, model)
    if t_span[0] != 0 and request.x0 is None:
        raise invalid(
            "x0", f"t_span starts at {t_span[0]:g}, where there is no noise to draw; give x0, the states to start from"
        )
    told, model = sized(request, model, n, {"x0": (request.x0, model.card.event_shape)})
    check_form(request, model, encoder)
    request, choice, solve = _solver_of(request, model, t_span, settings)
    save_at = None if request.save_at is None else times_of(request, "save_at", solve)
    if solve.batch and request.first_index != 0:
        raise invalid(
            "first_index",
            f"first_index = {request.first_index} with error_control 'batch': all samples of such a request share "
            "their steps, so it cannot be continued; use first_index 0 or error_control 'sample'",
        )
    most_bytes = response_bytes(request, model, solve, encoder)
    check_size(request, most_bytes, encoder, settings.max_answer_bytes)
    x0, deadline = start_of(request.x0, n, model), deadline_of(request, settings)
    hold = take(memory_bytes(request, model, solve, encoder, most_bytes, told), deadline, told.bytes)
    job = job_of(
        request,
        model,
        solve,
        hold,
        told,
        num_samples=n,
        deadline=deadline,
        trace=request.trace,
        seed=seed_of(request.seed),
        first_index=request.first_index,
        x0=x0,
        save_at=save_at,
        partial=request.on_timeout == "partial",
    )
    return Validated(model, job, encoder, request.decode, most_bytes, choice)


def _solver_of(
    request: SampleRequest, model: ModelVersion, t_span: tuple[float, float], settings: Settings
) -> tuple[SampleRequest, Choice | None, Plan]:
    """Return a request that names its solver, the choice that named it, and the solver compiled.

    Raises:
        ProblemError: 422, see `compiled` and `budget.choose`.
    """
    if request.budget is None:
        return request, None, compiled(request, model, t_span, settings, usual=_authors_solver(model, t_span))
    refused: ProblemError | None = None
    for choice in choose(request, model, settings):
        named = request.model_copy(update={"solver": choice.point.solver})
        try:
            solve = compiled(named, model, t_span, settings)
            if request.save_at is not None:
                times_of(named, "save_at", solve)
        except ProblemError as problem:  # over a limit of this service, or times that are not on the grid
            refused = refused or problem
            continue
        return named, choice, solve
    assert refused is not None  # noqa: S101  (there is a choice)
    raise refused


def job_of(
    request: Solving,
    model: ModelVersion,
    solve: Plan,
    hold: Hold,
    told: Told,
    *,
    num_samples: int,
    deadline: float,
    trace: str = "none",
    lanes_of: NDArray[np.int64] | None = None,
    **others: Any,
) -> Job:
    """Return the job of a checked request; it reserves memory for attempted steps beyond those that `hold` expects.

    Args:
        request: the parsed body.
        model: the requested model.
        solve: the compiled solver.
        hold: memory of the request.
        told: what its samples are told.
        lanes_of: (lanes,) the sample whose conditions each lane has; None where lane i is sample i.
        num_samples, deadline, trace: see `Job`.
        others: more fields of `Job`.
    """
    conditions, negative = told.conditions(), told.negatives()
    return Job(
        model=model.name,
        version=model.version,
        solve=solve,
        num_samples=num_samples,
        conditions=conditions if lanes_of is None else repeated(conditions, lanes_of),
        guidance=told.guidance,
        negative=negative if lanes_of is None else repeated(negative, lanes_of),
        sizes=model.sizes,
        deadline=deadline,
        trace=trace,
        priority=Priority(request.priority),
        on_logged=logged_beyond(hold, num_samples * kept_steps(solve, trace)),
        **others,
    )


def check_limit(name: str, value: float, limit: float, unit: str = "") -> None:
    """Refuse a value over a limit of the service.

    Raises:
        ProblemError: 422 with the value and the limit.
    """
    if value > limit:
        raise invalid(name, f"{name} = {value}{unit} is over the limit of {limit} of this service; ask for less")


def check_indices(request: Drawn) -> None:
    """Refuse samples beyond the end of a seed.

    Raises:
        ProblemError: 422.
    """
    if request.first_index + request.num_samples > SEED_LIMIT:
        raise invalid(
            "first_index",
            f"first_index + num_samples = {request.first_index + request.num_samples} is over 2**63, the end of a seed",
        )


def seed_of(seed: int | None) -> int:
    """Return the seed, or draw one."""
    return secrets.randbelow(SEED_LIMIT) if seed is None else seed


def deadline_of(request: Solving, settings: Settings) -> float:
    """Return when the time limit passes, in `time.monotonic`."""
    return request.came + (request.timeout_s or settings.timeout_s)


def _authors_solver(model: ModelVersion, t_span: tuple[float, float]) -> str | None:
    """Return the solver that a model's card names, which is meant for the whole way from noise to data."""
    sampling = model.card.sampling
    return None if sampling is None or t_span != WHOLE else sampling.solver


def compiled(
    request: Solving,
    model: ModelVersion,
    t_span: tuple[float, float],
    settings: Settings,
    steps: int | None = None,
    usual: str | None = None,
) -> Plan:
    """Return the solver of a request, compiled: its text and the fields given apart make one `SolverSpec`.

    Args:
        request: the parsed body.
        model: the requested model.
        t_span: start and end.
        settings: the limits.
        steps: fixed steps if the request names none.
        usual: text of the solver if the request says nothing of how to solve but `max_nfe`; None for the service's.

    Raises:
        ProblemError: 422 where its arguments contradict each other, cannot be met or are over a limit.
    """
    check_limit("steps", request.steps or 0, settings.max_steps)
    check_limit("max_nfe", request.max_nfe, settings.max_nfe)
    given = tuple((name, getattr(request, name)) for name in _APART if name in request.model_fields_set)
    solver = request.solver
    if model.card.average:
        solver, steps = solver_of(request, model, t_span)
    if usual is not None and not _names_solver(request):
        solver, steps = usual, None
    if steps is not None:
        given += (("steps", steps),)
    rest = (t_span, settings.max_steps, settings.max_nfe, solvers.tolerance_floor(model.compute))
    made_for = (model.dtype, model.plans, model.compute)
    grid = request.grid
    try:
        if isinstance(grid, str):
            return solvers.compile(_spec(solver, given, *rest), *made_for)
        if isinstance(grid, list):
            check_limit("grid", len(grid) - 1, settings.max_steps, " intervals")
        elif not isinstance(grid, dict):
            raise invalid("grid", "grid must be a name, an object with a name and a parameter, or a list of times")
        given = (*given, ("grid", request.in_its_dtype("grid")))
        return solvers.compile(_spec.__wrapped__(solver, given, *rest), *made_for)
    except SolverError as error:
        raise invalid(error.field, str(error)) from None
    except OverflowError:
        raise invalid("grid", "grid holds an integer that is too large for double precision") from None


_APART = tuple(name for name in DEFAULTS if name not in ("solver", "t_span"))
"""Fields of a request that are fields of a `SolverSpec`."""


def _names_solver(request: Solving) -> bool:
    """Whether a request says how to solve; `max_nfe` and what is null say nothing of it."""
    said = request.model_fields_set.intersection(("solver", *_APART)) - {"max_nfe"}
    return any(getattr(request, name) is not None for name in said)


@lru_cache(maxsize=1024)
def _spec(
    solver: str,
    given: tuple[tuple[str, Any], ...],
    t_span: tuple[float, float],
    max_steps: int,
    max_nfe: int,
    floor: float,
) -> SolverSpec:
    """Return a spec; most requests repeat one. One over a limit is refused before it is compiled.

    A tolerance that the request does not name is at least the floor of the model's arithmetic.
    """
    spec = SolverSpec.of(solver, t_span=t_span, **dict(given))
    if spec.adaptive and floor > DEFAULT_TOLERANCE:
        said = {name for name, value in given if value is not None} | read_solver(solver).keys()
        spec = replace(spec, **{name: floor for name in ("rtol", "atol") if name not in said})
    check_limit("steps", spec.steps or 0, max_steps)
    check_limit("max_nfe", spec.max_nfe, max_nfe)
    return spec


def _span(request: SampleRequest, model: ModelVersion) -> tuple[float, float]:
    """Return the span of a request, with ends that stand for 0 or 1 replaced by them.

    Raises:
        ProblemError: 422 where it leaves [0, 1].
    """
    if request.t_span == WHOLE:
        return WHOLE
    start, end = snapped(np.asarray(request.in_its_dtype("t_span")), WHOLE, WHOLE).tolist()
    if not (0 <= start <= 1 and 0 <= end <= 1):
        first, last, _, _ = apart(start, end, *WHOLE)
        raise invalid("t_span", f"t_span = [{first}, {last}] leaves [0, 1], where model {model.name!r} is defined")
    return start, end


def times_of(request: Solving, name: str, solve: Plan) -> NDArray[np.float64]:
    """Return the times at which to save states: strictly in the direction of the span, on a fixed grid only its points.

    Args:
        request: the parsed body.
        name: the field that holds the times.
        solve: the compiled solver.

    Raises:
        ProblemError: 422 for a time that is outside the span, out of order, or not on the grid (the nearest is named).
    """
    try:
        found = check_save_at(solve, request.in_its_dtype(name), name)
    except SolverError as error:
        raise invalid(error.field, str(error)) from None
    assert found is not None  # noqa: S101  (times were given)
    return found


def to_array(nested: Any, shape: Sequence[int], name: str = "x0", event: str = "event_shape") -> NDArray[np.float64]:
    """Return nested lists of numbers, or an array of them, as an array.

    Args:
        nested: the value that was sent.
        shape: the shape it must have, (num_samples, *event_shape).
        name, event: the names of the field and of the shape of one sample.

    Raises:
        ProblemError: 422 for another shape, for non-numeric values, including booleans, and for an integer that a
            double cannot hold.
    """
    wanted = f"(num_samples, *{event}) = {list(shape)}"
    if not isinstance(nested, np.ndarray):
        try:
            return to_floats(nested, tuple(shape), name, wanted)
        except NestedError as error:
            raise invalid(name, str(error)) from None
    if nested.shape != tuple(shape):
        raise invalid(name, f"{name} has the shape {list(nested.shape)}; it must be {wanted}")
    return nested.astype(np.float64)


def start_of(x0: Any, num_samples: int, model: ModelVersion) -> torch.Tensor | None:
    """Return start states as a tensor (num_samples, *event_shape) in the model's dtype; None for None.

    Raises:
        ProblemError: 422 for another shape, or for numbers that are not finite in that dtype.
    """
    if x0 is None:
        return None
    states = torch.from_numpy(to_array(x0, (num_samples, *model.event_shape))).to(model.dtype)
    if not states.isfinite().all():
        raise invalid("x0", f"x0 holds a number that is not finite in {model.card.dtype}")
    return states
