"""The noise that data come from: the samples' own paths, from t = 1 back to 0.

That is what ``POST /v1/sample`` does with `x0` and a reverse `t_span`, in the same arena and the same network calls.
"""

import math
from typing import Any

import numpy as np

from service.engine.job import Job, JobResult, Priority
from service.ledger import Take
from service.operations.schemas import EncodeRequest
from service.registry.served import Served
from service.requests.checks import check_limits, compiled, condition_of, deadline_of
from service.requests.data import States, count_of, data_bytes, states_of
from service.requests.sizes import kept_steps, lanes_bytes, logged_beyond
from service.responses.answers import to_data
from service.responses.findings import check_size, head_of
from service.responses.traces import Array
from service.settings import Settings

BACK = (1.0, 0.0)
"""From data to noise."""


def prepare(request: EncodeRequest, model: Served, settings: Settings, media: str, take: Take) -> tuple[Job, States]:
    """Check a request, set its memory aside and make its job.

    Raises:
        ProblemError: 422 that names the field, the value and what is allowed; what `take` raises.
    """
    n = count_of(request.samples)
    check_limits(request, settings, samples=n)
    condition = condition_of(request, model, n)
    solve = compiled(request, model, BACK)
    shapes = [(n, *model.event_shape), (n,)]
    answer = check_size("samples", shapes, model.card.dtype, solve, media, settings.max_answer_bytes)
    width, steps, deadline = math.prod(model.event_shape), kept_steps(solve, "none"), deadline_of(request, settings)
    needed = lanes_bytes(model, n, width, given=True, steps=steps)
    hold = take(needed + data_bytes(n, model) + answer, deadline)
    states = states_of(request, model)
    job = Job(
        model=model.name,
        version=model.version,
        solve=solve,
        num_samples=n,
        x0=states.x,
        condition=condition,
        guidance=request.guidance,
        deadline=deadline,
        trace="none",
        priority=Priority(request.priority),
        on_logged=logged_beyond(hold, n * steps),
    )
    return job, states


def found(model: Served, job: Job, states: States, result: JobResult) -> tuple[dict[str, Any], dict[str, Array | None]]:
    """Return the head of the answer and its arrays. A sample that did not get to the noise has none."""
    x0 = to_data(result.x, None)
    failed = result.status != "success"
    if failed.any():
        x0 = x0.copy()
        x0[failed] = np.nan
    head = head_of(model, result, job.solve.settings, model.deterministic and states.deterministic)
    return head | {"shape": list(x0.shape)}, {"residual": states.residual, "x0": x0}
