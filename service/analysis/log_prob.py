"""``POST /v1/models/{name}/log_prob``: the log-density of data, solved for together with x, under one error norm.

    log p(x) = log N(x0) - (log p(x0) - log p(x)),    d log p / dt = -div v

The log-density of decoded data is that of their state minus log abs det J of the decoder.
"""

import asyncio
import math
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal, NotRequired

import numpy as np
import torch
from fastapi import Response
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from engine.job import JobResult, Operation
from models.noise import mean_along, rademacher
from service import examples
from service.analysis.data import BACK, DataRequest, Residual, ValidatedData, data_bytes, sized_data, states_of
from service.errors import invalid
from service.http.context import Context
from service.openapi import ANALYSIS, ModelName, Router, requested, solved
from service.registry.version import ModelVersion
from service.requests import pipeline
from service.requests.conditions import refuse_corrections
from service.requests.schemas import Background, Index
from service.requests.sizes import check_arrays_size, lanes_bytes
from service.requests.solver import refuse_average, request_plan
from service.requests.validation import job_of
from service.responses.arrays import ARRAY_FORMATS, ArrayResponse, Encoder
from service.responses.solved import Floats, Solved, closed, described, head, latency
from service.settings import Settings
from solvers.derived import log_density_field
from solvers.errors import Status
from solvers.kernels_torch import lane_sums
from solvers.likelihood import EXACT_UP_TO

router = Router(tags=[ANALYSIS], route_class=pipeline.BodyRoute)

LOG_PROB_EXACT = Operation("log_prob_exact", log_density_field)
LOG_PROB_HUTCHINSON = Operation("log_prob_hutchinson", partial(log_density_field, probes=1))

MAX_PROBES = 256

_OFF_CENTRE = 1e-4
"""Largest mean of states without a centre of mass, as a share of their largest number."""

MAX_EXACT = 64
"""Maximum numbers per sample for an exact divergence, which costs one vector-Jacobian product per number and call."""


class LogProbRequest(DataRequest):
    """Body of ``log_prob``: data, how to solve back from t = 1 to 0, and how to take the divergence on the way."""

    priority: Background = "bulk"
    divergence: Literal["auto", "exact", "hutchinson"] = Field(
        default="auto",
        description=f"exact, an estimate by Rademacher probes, or auto: exact up to {EXACT_UP_TO} numbers per sample",
    )
    probes: int = Field(default=1, ge=1, le=MAX_PROBES)
    """Rademacher probes of a sample, each with its own path; their estimates are averaged"""
    seed: Index | None = None
    """seed of the probes; drawn below 2**53 and echoed if omitted"""


class DivergenceBody(TypedDict):
    """How the divergence was taken; seed and probes for estimates only."""

    method: Literal["exact", "hutchinson"]
    probes: NotRequired[int]
    seed: NotRequired[int]


@described
@closed
class LogProbResponse(Solved):
    """Response of ``log_prob``; null where a sample did not reach the noise."""

    divergence: DivergenceBody
    residual: NotRequired[Residual]
    log_prob: Floats
    """log-densities in nats"""
    standard_error: NotRequired[Floats]
    """standard error of the mean over probes, if there are two or more"""


_PATH = "/v1/models/{name}/log_prob"
_REQUESTS = {
    "exact": {"samples": examples.DATA},
    "estimate": {"samples": examples.DATA, "divergence": "hutchinson", "probes": 4, "seed": 0},
}


@router.post(
    _PATH, summary="Compute log-densities", responses=solved(_PATH, LogProbResponse, "The results", ARRAY_FORMATS)
)
async def log_prob(
    http: Context, name: ModelName, request: Annotated[LogProbRequest, requested(_REQUESTS)]
) -> Response:
    """Find the log-density of data: solve for x and log p together, from data back to noise."""
    valid = await pipeline.make_job(http, request, validate_log_prob, name)
    result = await pipeline.solve(http, valid.job)
    worst = await asyncio.to_thread(_worst, result, request.probes)
    pipeline.count(http, valid.job, worst)
    return await pipeline.respond(http, valid, await asyncio.to_thread(_response, http, valid, result, worst))


def validate_log_prob(
    request: LogProbRequest, model: ModelVersion, settings: Settings, encoder: Encoder, http: Context
) -> ValidatedData:
    """Check a request, reserve its memory and make its job: lane p n + i is probe p of sample i.

    Each probe of an estimated divergence has its own lane, so their spread tells how far off the mean may be. Errors
    are those of `validate_sample`.
    """
    refuse_average(model, "log_prob integrates the divergence of")
    n, checked, model = sized_data(request, model, settings)
    refuse_corrections(checked)
    width = math.prod(model.event_shape)
    exact, probes = _is_exact(request, width), request.probes
    constants = 0 if exact else width
    _check_cost(n, probes, constants, settings)
    plan = request_plan(request, model, BACK, settings)
    response_bytes = check_arrays_size("samples", [(n,)] * 3, "float64", plan, encoder, settings)
    lanes = n * probes
    memory = lanes_bytes(model, lanes, width + 1, checked, start=True, constants=constants, plan=plan)
    memory += lanes_bytes(model, n, width) + data_bytes(n, model) + response_bytes
    job = job_of(
        http,
        request,
        model,
        plan,
        checked,
        memory,
        num_samples=lanes,
        seed=0 if exact else request.seed,
        lanes_of=np.tile(np.arange(n), probes),
        operation=LOG_PROB_EXACT if exact else LOG_PROB_HUTCHINSON,
    )
    model, x, decoded = states_of(request, model)
    _check_centred(x, bool(decoded), model)
    flat = x.reshape(n, width)
    x0 = torch.cat((flat, flat.new_zeros(n, 1)), dim=1).repeat(probes, 1)
    drawn = [rademacher(job.seed, p, 0, n, (width,), model.dtype) for p in range(0 if exact else probes)]
    job = replace(job, x0=x0, constants=torch.cat(drawn) if drawn else None)
    return ValidatedData(model=model, job=job, encoder=encoder, **decoded)


def _is_exact(request: LogProbRequest, width: int) -> bool:
    exact = request.divergence == "exact" or (request.divergence == "auto" and width <= EXACT_UP_TO)
    if exact and width > MAX_EXACT:
        raise invalid(
            "divergence",
            f"divergence 'exact' is for samples of up to {MAX_EXACT} numbers, and this model's have {width}; use "
            "'hutchinson' with more probes",
        )
    if exact and request.probes > 1:
        raise invalid("probes", f"probes = {request.probes} with the exact divergence, which needs none; leave it out")
    return exact


def _check_centred(x: torch.Tensor, decoded: bool, model: ModelVersion) -> None:
    """Refuse states that are not in the subspace on which a model with centred noise has a density."""
    if (place := model.card.centred) is None:
        return
    if decoded:
        raise invalid(
            "decode",
            f"model {model.name!r} has a density only where the mean along axis {place} of a state is zero, which its "
            "decoder does not keep; send states, with decode false",
        )
    off, size = float(mean_along(x, place).abs().max()), float(x.abs().max())
    if off > _OFF_CENTRE * max(1.0, size):
        raise invalid(
            "samples",
            f"samples have a mean of {off:.3g} along axis {place} of a state; model {model.name!r} has a density only "
            "where that is zero: subtract it, and send states with decode false",
        )


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
            f"{n} samples of {width} numbers with probes = {probes} need {n * probes * width} random numbers, over the "
            f"limit of {settings.max_derivatives} of this service; send at most "
            f"{settings.max_derivatives // (probes * width)} samples at a time",
        )


def _response(http: Context, valid: ValidatedData, result: JobResult, worst: JobResult) -> ArrayResponse:
    """Return the response with the log-density of each sample, and its standard error for two or more probes."""
    n, job = len(worst.nfe), valid.job
    probes = job.num_samples // n
    estimates = _log_density(result, valid.model).reshape(probes, n).T
    if valid.log_volume is not None:
        estimates = estimates - valid.log_volume[:, None]
    # `lane_sums` adds in an order that does not depend on the number of samples
    mean = lane_sums(torch.from_numpy(estimates.copy())) / probes
    error = None
    if probes > 1:
        error = np.sqrt(lane_sums(torch.from_numpy((estimates - mean[:, None]) ** 2)) / (probes - 1) / probes)
    exact: DivergenceBody = {"method": "exact"}
    estimated: DivergenceBody = {"method": "hutchinson", "probes": probes, "seed": job.seed}
    document: LogProbResponse = {
        **head(http, valid.model, job, worst),
        "shape": [n],
        "divergence": exact if job.operation is LOG_PROB_EXACT else estimated,
        **({} if valid.residual is None else {"residual": valid.residual}),
        "log_prob": mean,
        **({} if error is None else {"standard_error": error}),
        "latency": latency(result),
    }
    return ArrayResponse.of(document, http.elapsed)


def _log_density(result: JobResult, model: ModelVersion) -> NDArray[np.float64]:
    """Return the log-density of each lane's initial state; NaN where the lane did not reach the noise.

    With centred noise it is that on the states of mean zero, whose dimension is less by one for each column. There the
    divergence of a velocity of mean zero is that of the whole space.
    """
    latent, change = result.x[:, :-1].double(), result.x[:, -1].double()
    dimension, place = latent.shape[1], model.card.centred
    dimension -= 0 if place is None else dimension // model.event_shape[place]
    base = -0.5 * (lane_sums(latent.square()) + dimension * math.log(2 * math.pi))
    return np.where(result.status == Status.SUCCESS.value, base - change.numpy(), np.nan)


def _worst(result: JobResult, probes: int) -> JobResult:
    """Return the result of n samples from that of probes x n lanes: each sample's largest NFE, and its worst lane."""
    order = [status.value for status in Status]
    rank = np.array([order.index(status) for status in result.status.tolist()]).reshape(probes, -1)
    n = rank.shape[1]
    lane = rank.argmax(axis=0) * n + np.arange(n)
    nfe = result.nfe.reshape(probes, n).max(axis=0)
    return replace(result, x=result.x[torch.from_numpy(lane)], t=result.t[lane], nfe=nfe, status=result.status[lane])
