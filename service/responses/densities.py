"""Log-densities and encodings: results of ``log_prob`` and ``encode`` as responses.

    log p(x) = log N(x0) - (log p(x0) - log p(x)),    d log p / dt = -div v

The log-density of decoded data is that of their state minus log abs det J of the decoder.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from engine.job import Job, JobResult, Operation
from service.http.context import Context
from service.registry.version import ModelVersion
from service.responses.arrays import Array, ArrayResponse
from service.responses.samples import origin, outcome, timings, to_data
from service.responses.schemas import Solved
from solvers.derived import LogDensityField
from solvers.errors import Status
from solvers.kernels_torch import lane_sums

LOG_PROB_EXACT = Operation("log_prob_exact", partial(LogDensityField, probes=0))
LOG_PROB_HUTCHINSON = Operation("log_prob_hutchinson", partial(LogDensityField, probes=1))
"""The state is flat: [x, log p], with the divergence exact or estimated."""

_Residual = Annotated[
    list[float | None] | None,
    Field(description="for each sample, the largest difference from its decoded state; only with a decoder"),
]


class EncodeResponse(Solved):
    """Response of ``encode``. A sample that did not reach the noise is a null row."""

    residual: _Residual = None
    x0: list[Any] = Field(description="the noise that the samples come from, as POST /v1/sample takes it")


class DivergenceBody(BaseModel):
    """How the divergence was taken; seed and probes for estimates only."""

    method: Literal["exact", "hutchinson"]
    probes: int | None = None
    seed: int | None = None


class LogProbResponse(Solved):
    """Response of ``log_prob``; null where a sample did not reach the noise."""

    divergence: DivergenceBody
    residual: _Residual = None
    log_prob: list[float | None] = Field(description="log-densities in nats")
    standard_error: list[float | None] | None = Field(
        default=None, description="standard error of the mean over probes, if there are two or more"
    )


@dataclass(frozen=True)
class States:
    """A client's samples as the model sees them.

    Attributes:
        x: (n, *event_shape) states.
        residual: (n,) largest absolute difference of each sample from its decoded state; None without a decoder.
        log_volume: (n,) log abs det J of the decoder at each of the states; None without a decoder.
        deterministic: whether each state depends on its own sample alone, to the bit.
    """

    x: torch.Tensor
    residual: NDArray[np.float64] | None = None
    log_volume: NDArray[np.float64] | None = None
    deterministic: bool = True


def encode_response(
    model: ModelVersion, job: Job, result: JobResult, context: Context, states: States
) -> ArrayResponse:
    """Return the response with the noise of each sample, NaN where it was not reached."""
    x0 = to_data(result.x, None)
    failed = result.status != Status.SUCCESS.value
    if failed.any():
        x0 = x0.copy()
        x0[failed] = np.nan
    head = head_of(model, job, result, context, model.deterministic and states.deterministic)
    return arrays_response(head | {"shape": list(x0.shape)}, result, context, residual=states.residual, x0=x0)


def log_prob_response(
    model: ModelVersion, job: Job, result: JobResult, context: Context, states: States, deterministic: bool
) -> ArrayResponse:
    """Return the response with the log-density of each sample, and its standard error for two or more probes."""
    n = len(states.x)
    probes = job.num_samples // n
    estimates = log_density(result).reshape(probes, n).T
    if states.log_volume is not None:
        estimates = estimates - states.log_volume[:, None]
    mean = _sums(estimates) / probes
    error = None
    if probes > 1:
        error = np.sqrt(_sums((estimates - mean[:, None]) ** 2) / (probes - 1) / probes)
    exact = job.operation is LOG_PROB_EXACT
    divergence = {"method": "exact"} if exact else {"method": "hutchinson", "probes": probes, "seed": job.seed}
    head = head_of(model, job, worst(result, n), context, deterministic and states.deterministic)
    head |= {"shape": [n], "divergence": divergence}
    return arrays_response(head, result, context, residual=states.residual, log_prob=mean, standard_error=error)


def head_of(model: ModelVersion, job: Job, result: JobResult, context: Context, deterministic: bool) -> dict[str, Any]:
    """Return the members that the response of every operation begins with."""
    head = {**origin(model, context), "deterministic": deterministic, "solver": job.solve.settings}
    return head | outcome(result)


def arrays_response(head: dict[str, Any], result: JobResult, context: Context, **arrays: Array | None) -> ArrayResponse:
    """Return a response with arrays under their own names after its head; None is omitted."""
    there = {name: array for name, array in arrays.items() if array is not None}
    return ArrayResponse(head | there, there, context.elapsed, timings(result))


def log_density(result: JobResult) -> NDArray[np.float64]:
    """Return the log-density of each lane's initial state; NaN where the lane did not reach the noise."""
    latent, change = result.x[:, :-1].double(), result.x[:, -1].double()
    base = -0.5 * (lane_sums(latent.square()) + latent.shape[1] * math.log(2 * math.pi))
    return np.where(result.status == Status.SUCCESS.value, base - change.numpy(), np.nan)


def _sums(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum each row, in an order that does not depend on the number of rows."""
    return lane_sums(torch.from_numpy(rows.copy()))


def worst(result: JobResult, n: int) -> JobResult:
    """Return the result of n samples from that of probes x n lanes: each sample's largest NFE, and its worst lane."""
    order, probes = [status.value for status in Status], len(result.nfe) // n
    rank = np.array([order.index(status) for status in result.status.tolist()]).reshape(probes, n)
    lane = rank.argmax(axis=0) * n + np.arange(n)
    nfe = result.nfe.reshape(probes, n).max(axis=0)
    return replace(result, x=result.x[torch.from_numpy(lane)], t=result.t[lane], nfe=nfe, status=result.status[lane])
