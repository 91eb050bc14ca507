"""The noise that data come from: the samples' own paths, from t = 1 back to 0.

That is what ``POST /v1/sample`` does with `x0` and a reverse `t_span`, in the same arena and the same network calls.
"""

from typing import Any

import numpy as np

from service.answers import to_data
from service.checks import check_limits, compiled, condition_of, deadline_of
from service.engine.job import Job, JobResult, Priority
from service.operations.data import States, count_of, states_of
from service.operations.findings import check_size, head_of
from service.operations.schemas import EncodeRequest
from service.served import Served
from service.settings import Settings
from service.traces import Array

BACK = (1.0, 0.0)
"""From data to noise."""


def prepare(request: EncodeRequest, model: Served, settings: Settings, media: str) -> tuple[Job, States]:
    """Check a request and make its job.

    Raises:
        ProblemError: 422 that names the field, the value and what is allowed.
    """
    n = count_of(request.samples)
    check_limits(request, settings, samples=n)
    condition = condition_of(request, model, n)
    solve = compiled(request, model, BACK)
    check_size("samples", n * int(np.prod(model.event_shape)), model.card.dtype, media, settings.max_answer_bytes)
    states = states_of(request, model)
    job = Job(
        model=model.name,
        version=model.version,
        solve=solve,
        num_samples=n,
        x0=states.x,
        condition=condition,
        guidance=request.guidance,
        deadline=deadline_of(request, settings),
        trace="none",
        priority=Priority(request.priority),
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
