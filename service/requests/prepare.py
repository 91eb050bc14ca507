"""From a parsed request to a job for the engine: everything that can be refused is refused here, before any work.

The limits come first, as a number of steps or samples must be known to be bearable before anything of that size is
made. What a solver can and cannot do is checked by `solvers.resolve` alone.
"""

from service.engine.job import Job, Priority
from service.errors import invalid
from service.ledger import Take
from service.registry.served import Served
from service.requests.checks import (
    NO_DTYPES,
    Dtypes,
    check_indices,
    check_limits,
    compiled,
    condition_of,
    deadline_of,
    seed_of,
    span_of,
    start_of,
    times_of,
)
from service.requests.schemas import SampleRequest
from service.requests.sizes import check_answer_size, check_form, kept_steps, logged_beyond, memory_bytes
from service.responses.encoders import Encoder
from service.settings import Settings


def prepare(
    request: SampleRequest,
    model: Served,
    settings: Settings,
    encoder: Encoder,
    take: Take | None = None,
    dtypes: Dtypes = NO_DTYPES,
) -> Job:
    """Check a request against its model and the limits, set its memory aside by `take`, and make its job.

    Args:
        request: what is asked for.
        model: what it is asked of.
        settings: the limits.
        encoder: of the answer.
        take: sets memory aside until a deadline (see `service.state`); None where nobody counts.
        dtypes: see `checks.times_of`.

    Raises:
        ProblemError: 422 that names the field, the value and what is allowed; 406 where the format cannot hold the
            samples; what `take` raises.
    """
    check_limits(request, settings, num_samples=request.num_samples, save_at=len(request.save_at or ()))
    check_indices(request)
    t_span = span_of(request.t_span, model, dtypes)
    _check_start(request, t_span)
    condition = condition_of(request, model, request.num_samples)
    check_form(request, model, encoder)
    solve = compiled(request, model, t_span, dtypes)
    save_at = None if request.save_at is None else times_of("save_at", request.save_at, solve, dtypes)
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


def _check_start(request: SampleRequest, t_span: tuple[float, float]) -> None:
    if t_span[0] != 0 and request.x0 is None:
        raise invalid(
            "x0", f"t_span starts at {t_span[0]:g}, where there is no noise to draw; give x0, the states to start from"
        )
