"""From a parsed request to a job for the engine: everything that can be refused is refused here, before any work.

The limits come first, as a number of steps or samples must be known to be bearable before anything of that size is
made. What a solver can and cannot do is checked by `solvers.resolve` alone.
"""

import math
import secrets
import time

import numpy as np
import torch

from models.condition import ConditionError
from service.encoders import Encoder
from service.engine.job import Job, Priority
from service.errors import invalid
from service.schemas import SEED_LIMIT, SampleRequest
from service.served import Served
from service.settings import Settings
from service.sizes import check_answer_size, check_form
from service.starts import to_array
from solvers.errors import SolverError
from solvers.plan import Adaptive, Plan
from solvers.resolve import resolve


def prepare(request: SampleRequest, model: Served, settings: Settings, encoder: Encoder) -> Job:
    """Check a request against its model and the limits, and make its job.

    Raises:
        ProblemError: 422 that names the field, the value and what is allowed; 406 where the format cannot hold the
            samples.
    """
    _check_limits(request, settings)
    _check_model(request, model)
    condition = _condition(request, model)
    check_form(request, model, encoder)
    try:
        solve = _resolve(request, model)
        save_at = check_save_at(solve, request.save_at)
    except SolverError as error:
        raise invalid(error.field, str(error)) from None
    except OverflowError:
        raise invalid("grid", "grid holds an integer that is no double-precision number") from None
    if request.error_control == "batch" and request.first_index != 0:
        raise invalid(
            "first_index",
            f"first_index = {request.first_index} with error_control 'batch': all samples of such a request share "
            "their steps, so it cannot be continued; use first_index 0 or error_control 'sample'",
        )
    check_answer_size(request, model, solve, encoder, settings.max_answer_bytes)
    return Job(
        model=model.name,
        version=model.version,
        solve=solve,
        num_samples=request.num_samples,
        seed=secrets.randbelow(SEED_LIMIT) if request.seed is None else request.seed,
        first_index=request.first_index,
        x0=_start(request, model),
        condition=condition,
        guidance=request.guidance,
        save_at=None if save_at is None else np.array(save_at),
        deadline=time.monotonic() + (request.timeout_s or settings.timeout_s),
        partial=request.on_timeout == "partial",
        trace=request.trace,
        priority=Priority(request.priority),
    )


def _check_limits(request: SampleRequest, settings: Settings) -> None:
    intervals = len(request.grid) - 1 if isinstance(request.grid, list) else 0
    for name, value, limit in (
        ("num_samples", request.num_samples, settings.max_samples),
        ("steps", request.steps or 0, settings.max_steps),
        ("grid", intervals, settings.max_steps),
        ("max_nfe", request.max_nfe, settings.max_nfe),
        ("save_at", len(request.save_at or ()), settings.max_saved),
        ("timeout_s", request.timeout_s or 0.0, settings.max_timeout_s),
    ):
        if value > limit:
            unit = {"grid": " intervals", "save_at": " times"}.get(name, "")
            raise invalid(name, f"{name} = {value}{unit} is over the limit of {limit} of this service; ask for less")
    if request.first_index + request.num_samples > SEED_LIMIT:
        raise invalid(
            "first_index",
            f"first_index + num_samples = {request.first_index + request.num_samples} is over 2**63, the end of a seed",
        )


def _check_model(request: SampleRequest, model: Served) -> None:
    start, end = request.t_span
    if not (0 <= start <= 1 and 0 <= end <= 1):
        raise invalid("t_span", f"t_span = [{start:g}, {end:g}] leaves [0, 1], where model {model.name!r} is defined")
    if start != 0 and request.x0 is None:
        raise invalid(
            "x0", f"t_span starts at {start:g}, where there is no noise to draw; give x0, the states to start from"
        )


def _condition(request: SampleRequest, model: Served) -> torch.Tensor | None:
    """Return the condition as a tensor with one row a sample; None where the model samples without."""
    takes = model.card.condition
    if takes is None:
        for name in ("condition", "guidance"):
            if getattr(request, name) is not None:
                raise invalid(name, f"{name} was given, but model {model.name!r} is unconditional; leave {name} out")
        return None
    try:
        if request.guidance is not None:
            if request.condition is None:
                raise invalid("guidance", "guidance was given without a condition; give both, or leave guidance out")
            if request.guidance != 1:
                takes.nulls(1, model.dtype)
        if request.condition is None:
            takes.nulls(1, model.dtype)  # the model must have learned to do without
            return None
    except ConditionError as error:
        raise invalid("condition" if request.guidance is None else "guidance", str(error)) from None
    try:
        return takes.tensor(request.condition, request.num_samples, model.dtype)
    except (ConditionError, OverflowError) as error:
        raise invalid("condition", str(error)) from None


def _resolve(request: SampleRequest, model: Served) -> Plan | Adaptive:
    if not isinstance(request.grid, str | list | dict):
        raise SolverError("grid", "grid must be a name, an object with a name and a parameter, or a list of times")
    return resolve(
        solver=request.solver,
        steps=request.steps,
        rtol=request.rtol,
        atol=request.atol,
        grid=request.grid,
        start=request.start,
        error_control=request.error_control,
        controller=request.controller,
        first_step=request.first_step,
        max_nfe=request.max_nfe,
        t_span=request.t_span,
        dtype=model.dtype,
    )


def check_save_at(solve: Plan | Adaptive, save_at: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """Return the times to save at: strictly in the direction of the span; on a fixed grid, its own points only.

    Raises:
        SolverError: A time is outside the span, out of order, or not on the grid (the nearest is named).
    """
    if save_at is None:
        return None
    start, end = solve.t_span
    for time_ in save_at:
        if not min(start, end) <= time_ <= max(start, end):
            raise SolverError("save_at", f"save_at holds {time_:g}, outside the span from {start:g} to {end:g}")
    steps = np.diff(save_at) * math.copysign(1.0, end - start)
    if np.any(steps <= 0):
        k = int(np.argmax(steps <= 0))
        raise SolverError(
            "save_at",
            f"save_at must move strictly from {start:g} to {end:g}, but {save_at[k + 1]:g} follows {save_at[k]:g}",
        )
    return tuple(_on_grid(time_, solve) for time_ in save_at) if isinstance(solve, Plan) else save_at


def _on_grid(time_: float, plan: Plan) -> float:
    nearest = float(plan.times[np.argmin(np.abs(plan.times - time_))])
    if abs(nearest - time_) > 1e-9:
        raise SolverError(
            "save_at", f"save_at holds {time_:g}, which is no point of the grid; the nearest is {nearest!r}"
        )
    return nearest


def _start(request: SampleRequest, model: Served) -> torch.Tensor | None:
    """Return x0 as a tensor (num_samples, *event_shape) in the model's dtype."""
    if request.x0 is None:
        return None
    expected = (request.num_samples, *model.event_shape)
    x0 = torch.from_numpy(to_array(request.x0, expected)).to(model.dtype)
    if not x0.isfinite().all():
        raise invalid("x0", f"x0 holds a number that is not finite in {model.card.dtype}")
    return x0
