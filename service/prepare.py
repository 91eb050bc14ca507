"""From a parsed request to a job for the engine: everything that can be refused is refused here, before any work.

The limits come first, as a number of steps or samples must be known to be bearable before anything of that size is
made. What a solver can and cannot do is checked by `solvers.resolve` alone.
"""

from service.checks import (
    check_indices,
    check_limits,
    compiled,
    condition_of,
    deadline_of,
    seed_of,
    start_of,
    times_of,
)
from service.encoders import Encoder
from service.engine.job import Job, Priority
from service.errors import invalid
from service.ledger import Take
from service.schemas import SampleRequest
from service.served import Served
from service.settings import Settings
from service.sizes import check_answer_size, check_form, kept_steps, logged_beyond, memory_bytes


def prepare(
    request: SampleRequest, model: Served, settings: Settings, encoder: Encoder, take: Take | None = None
) -> Job:
    """Check a request against its model and the limits, set its memory aside by `take`, and make its job.

    Raises:
        ProblemError: 422 that names the field, the value and what is allowed; 406 where the format cannot hold the
            samples; what `take` raises.
    """
    check_limits(request, settings, num_samples=request.num_samples, save_at=len(request.save_at or ()))
    check_indices(request)
    _check_model(request, model)
    condition = condition_of(request, model, request.num_samples)
    check_form(request, model, encoder)
    solve = compiled(request, model, request.t_span)
    save_at = None if request.save_at is None else times_of("save_at", request.save_at, solve)
    if request.error_control == "batch" and request.first_index != 0:
        raise invalid(
            "first_index",
            f"first_index = {request.first_index} with error_control 'batch': all samples of such a request share "
            "their steps, so it cannot be continued; use first_index 0 or error_control 'sample'",
        )
    check_answer_size(request, model, solve, encoder, settings.max_answer_bytes)
    x0, deadline = start_of(request.x0, request.num_samples, model), deadline_of(request, settings)
    hold = None if take is None else take(memory_bytes(request, model, solve, encoder), deadline)
    return Job(
        model=model.name,
        version=model.version,
        solve=solve,
        num_samples=request.num_samples,
        seed=seed_of(request.seed),
        first_index=request.first_index,
        x0=x0,
        condition=condition,
        guidance=request.guidance,
        save_at=save_at,
        deadline=deadline,
        partial=request.on_timeout == "partial",
        trace=request.trace,
        priority=Priority(request.priority),
        on_logged=logged_beyond(hold, request.num_samples * kept_steps(solve, request.trace)),
    )


def _check_model(request: SampleRequest, model: Served) -> None:
    start, end = request.t_span
    if not (0 <= start <= 1 and 0 <= end <= 1):
        raise invalid("t_span", f"t_span = [{start:g}, {end:g}] leaves [0, 1], where model {model.name!r} is defined")
    if start != 0 and request.x0 is None:
        raise invalid(
            "x0", f"t_span starts at {start:g}, where there is no noise to draw; give x0, the states to start from"
        )
