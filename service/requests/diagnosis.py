"""Diagnoses: the body of ``diagnose``, and the first of its two jobs: the paths of samples, with their states saved."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, WrapValidator

from service.errors import check_limit, invalid
from service.ledger import Take
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions, refuse_corrections
from service.requests.schemas import BULK, SOLVER, SOLVER_SCHEMA, X0_SCHEMA, Count, Drawn, Solving, Times
from service.requests.shapes import sized
from service.requests.sizes import check_arrays_size, doubles_bytes, kept_steps, lanes_bytes
from service.requests.solver import WHOLE, compiled, refuse_average, times_of
from service.requests.tensors import Tensor, array_too
from service.requests.validation import (
    Validated,
    check_indices,
    deadline_of,
    job_of,
    seed_of,
    start_of,
)
from service.responses.arrays import Encoder
from service.settings import Settings
from solvers.diagnose import MAX_WIDTH
from solvers.plan import Plan

TIMES = tuple(k / 10 for k in range(11))
_STEPS = 20  # if the request names neither solver nor steps


class DiagnoseRequest(Solving, Drawn):
    """Body of ``diagnose``: which samples to follow from t = 0 to 1, how, and at which times to take the Jacobian."""

    num_samples: Count = Field(default=16, description="number of samples")
    solver: str = Field(
        default="rk4",
        description=f"{SOLVER}; rk4-20 if neither solver nor steps are given",
        json_schema_extra=SOLVER_SCHEMA,
    )
    priority: Literal["interactive", "bulk"] = Field(default="bulk", description=BULK)
    x0: Annotated[Any, WithJsonSchema(X0_SCHEMA), Tensor()] = None
    times: Annotated[Times, WrapValidator(array_too), Tensor(axes=1)] = Field(
        default=TIMES, description="ascending times from 0 to 1; with fixed steps, points of the grid"
    )


def validate_diagnose(
    request: DiagnoseRequest, model: ModelVersion, settings: Settings, encoder: Encoder, take: Take
) -> Validated:
    """Check a request, reserve the memory of both its jobs, and make the job for its paths.

    Arguments and errors as in `validate_sample`.
    """
    refuse_average(model, "diagnose takes Jacobians of")
    n, times = request.num_samples, len(request.times)
    check_limit("num_samples", n, settings.max_samples)
    check_limit("times", times, settings.max_saved, " times")
    check_limit("timeout_s", request.timeout_s or 0.0, settings.max_timeout_s)
    check_indices(request)
    checked, model = sized(request, model, n, {"x0": (request.x0, model.card.event_shape)})
    refuse_corrections(checked)
    width = math.prod(model.event_shape)
    _check_cost(n, times, width, model, settings)
    unspecified = not {"solver", "steps"} & request.model_fields_set and isinstance(request.grid, str | dict)
    solve = compiled(request, model, WHOLE, settings, steps=_STEPS if unspecified else None)
    at = times_of(request, "times", solve)
    deadline = deadline_of(request, settings)
    shapes = [(n, times, width)] * 2 + [(n, times)] * 3
    response_bytes = check_arrays_size("num_samples", shapes, "float64", solve, encoder, settings.max_answer_bytes)
    hold = take(_memory(n, times, width, model, solve, checked) + response_bytes, deadline, checked.bytes)
    job = job_of(
        request,
        model,
        solve,
        hold,
        checked,
        num_samples=n,
        deadline=deadline,
        seed=seed_of(request.seed),
        first_index=request.first_index,
        x0=start_of(request.x0, n, model),
        save_at=at,
    )
    return Validated(model, job, encoder)


def _memory(n: int, times: int, width: int, model: ModelVersion, solve: Plan, checked: CheckedConditions) -> int:
    """Return the bytes of memory for the paths, the rows of all Jacobians, and the results."""
    paths = lanes_bytes(model, n, width, checked, saved=times, start=True, steps=kept_steps(solve, "none"))
    rows = n * times * width
    jacobians = lanes_bytes(model, rows, width, checked, start=True, constants=width + 2)
    found = 8 * rows * (width + 3)
    return paths + jacobians + found + doubles_bytes(n, model.event_shape)


def _check_cost(n: int, times: int, width: int, model: ModelVersion, settings: Settings) -> None:
    if width > MAX_WIDTH:
        raise invalid(
            "name",
            f"a state of model {model.name!r} has {width} numbers; Jacobians are supported for up to {MAX_WIDTH} "
            "(the cost of their eigenvalues grows with the third power)",
        )
    if n > settings.max_diagnosed:
        raise invalid(
            "num_samples",
            f"num_samples = {n} is over the limit of {settings.max_diagnosed} samples in one diagnosis of this "
            "service; ask for less, and page with first_index",
        )
    if n * times * width**2 > settings.max_derivatives:
        raise invalid(
            "num_samples",
            f"num_samples = {n} at {times} times with {width} x {width} Jacobians are {n * times * width**2} numbers, "
            f"over the limit of {settings.max_derivatives} of this service; ask for at most "
            f"{settings.max_derivatives // (times * width**2)} samples, or for fewer times",
        )
