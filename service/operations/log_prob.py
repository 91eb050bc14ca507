"""The log-density of data: the state and log p go back to the noise together, with one error norm for both.

    log p(x) = log N(x0) - (log p(x0) - log p(x)),    d log p / dt = -div v

Data that a decoder made of a state have the state's log-density minus the log of how much decoding stretches volumes.
Each probe of an estimated divergence is a lane of its own, so their spread tells how far off the mean may be.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.probes import signs
from service.engine.job import Job, JobResult, Priority
from service.engine.operation import Operation
from service.errors import invalid
from service.ledger import Take
from service.operations.encode import BACK
from service.operations.schemas import LogProbRequest
from service.registry.served import Served
from service.requests.checks import check_limits, compiled, condition_of, deadline_of, seed_of
from service.requests.data import States, count_of, data_bytes, states_of
from service.requests.sizes import kept_steps, lanes_bytes, logged_beyond
from service.responses.findings import check_size, head_of
from service.responses.traces import Array
from service.settings import Settings
from solvers.errors import Status
from solvers.kernels_torch import lane_sums
from solvers.likelihood import EXACT_UP_TO

MOST_EXACT = 64
"""The longest samples that the exact divergence is taken of: a call costs so many vector-Jacobian products."""


def prepare(request: LogProbRequest, model: Served, settings: Settings, media: str, take: Take) -> tuple[Job, States]:
    """Check a request, set its memory aside and make its job: lane p n + i is probe p of sample i.

    Raises:
        ProblemError: 422 that names the field, the value and what is allowed; what `take` raises.
    """
    n, width = count_of(request.samples), math.prod(model.event_shape)
    exact = _is_exact(request, width)
    probes = 1 if exact else request.probes
    check_limits(request, settings, samples=n)
    _check_cost(n, probes, 0 if exact else width, settings)
    condition = condition_of(request, model, n)
    solve = compiled(request, model, BACK)
    answer = check_size("samples", [(n,)] * 3, "float64", solve, media, settings.max_answer_bytes)
    lanes, steps, deadline = n * probes, kept_steps(solve, "none"), deadline_of(request, settings)
    constants = 0 if exact else width
    needed = lanes_bytes(model, lanes, width + 1, given=True, constants=constants, steps=steps)
    hold = take(needed + lanes_bytes(model, n, width) + data_bytes(n, model) + answer, deadline)
    states = states_of(request, model)
    seed = 0 if exact else seed_of(request.seed)
    drawn = [signs(seed, p, 0, n, (width,), model.dtype) for p in range(0 if exact else probes)]
    flat = states.x.reshape(n, width)
    job = Job(
        model=model.name,
        version=model.version,
        solve=solve,
        num_samples=lanes,
        seed=seed,
        x0=torch.cat((flat, flat.new_zeros(n, 1)), dim=1).repeat(probes, 1),
        condition=None if condition is None else torch.cat([condition] * probes),
        guidance=request.guidance,
        deadline=deadline,
        trace="none",
        priority=Priority(request.priority),
        operation=Operation.LOG_PROB_EXACT if exact else Operation.LOG_PROB_HUTCHINSON,
        constants=torch.cat(drawn) if drawn else None,
        on_logged=logged_beyond(hold, lanes * steps),
    )
    return job, states


def _is_exact(request: LogProbRequest, width: int) -> bool:
    exact = request.divergence == "exact" or (request.divergence == "auto" and width <= EXACT_UP_TO)
    if exact and width > MOST_EXACT:
        raise invalid(
            "divergence",
            f"divergence 'exact' is for samples of up to {MOST_EXACT} numbers, and this model's have {width}; use "
            "'hutchinson' with more probes",
        )
    if exact and request.probes > 1:
        raise invalid("probes", f"probes = {request.probes} with the exact divergence, which needs none; leave it out")
    return exact


def _check_cost(n: int, probes: int, width: int, settings: Settings) -> None:
    if n * probes > settings.max_samples:
        raise invalid(
            "probes",
            f"{n} samples with probes = {probes} are {n * probes} paths, over the limit of {settings.max_samples} of "
            "this service; ask for fewer of either",
        )
    if n * probes * width > settings.max_derivatives:
        raise invalid(
            "samples",
            f"{n} samples of {width} numbers with probes = {probes} need {n * probes * width} random signs, over the "
            f"limit of {settings.max_derivatives} of this service; send at most "
            f"{settings.max_derivatives // (probes * width)} samples at a time",
        )


def found(
    model: Served, job: Job, states: States, result: JobResult, deterministic: bool
) -> tuple[dict[str, Any], dict[str, Array | None]]:
    """Return the head of the answer and its arrays."""
    n = len(states.x)
    probes = job.num_samples // n
    estimates = log_density(result).reshape(probes, n).T - states.log_volume
    mean = _sums(estimates) / probes
    error = None
    if probes > 1:
        error = np.sqrt(_sums((estimates - mean[:, None]) ** 2) / (probes - 1) / probes)
    exact = job.operation is Operation.LOG_PROB_EXACT
    said = {"method": "exact"} if exact else {"method": "hutchinson", "probes": probes, "seed": job.seed}
    head = head_of(model, worst(result, n), job.solve.settings, deterministic and states.deterministic)
    head |= {"shape": [n], "divergence": said}
    arrays = {"residual": states.residual, "log_prob": mean, "standard_error": error}
    return head, arrays


def log_density(result: JobResult) -> NDArray[np.float64]:
    """Return the log-density of the state that each lane began at; NaN where it did not get to the noise."""
    latent, change = result.x[:, :-1].double(), result.x[:, -1].double()
    base = -0.5 * (lane_sums(latent.square()) + latent.shape[1] * math.log(2 * math.pi))
    return np.where(result.status == Status.SUCCESS.value, base - change.numpy(), np.nan)


def _sums(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum each row, in an order that does not depend on how many there are."""
    return lane_sums(torch.from_numpy(rows.copy()))


def worst(result: JobResult, n: int) -> JobResult:
    """Return a result of n samples from that of probes x n lanes: most calls, and the lane of each that ended worst."""
    order, probes = [status.value for status in Status], len(result.nfe) // n
    rank = np.array([order.index(status) for status in result.status.tolist()]).reshape(probes, n)
    lane = rank.argmax(axis=0) * n + np.arange(n)
    nfe = result.nfe.reshape(probes, n).max(axis=0)
    return replace(result, x=result.x[torch.from_numpy(lane)], t=result.t[lane], nfe=nfe, status=result.status[lane])
