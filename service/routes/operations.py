"""``POST /v1/models/{name}/encode``, ``log_prob`` and ``diagnose``: operations on a model other than sampling."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from engine.job import DeadlineExceeded, Job, Operation
from service.errors import ClientGoneError, problem_of
from service.examples import CHECKPOINT, DOPRI5, LATENCY, RK4
from service.http.context import context_of
from service.http.negotiation import choose, joined
from service.openapi import ANALYSIS, ModelName, solving
from service.requests import pipeline
from service.requests.densities import EncodeRequest, LogProbRequest, validate_encode, validate_log_prob
from service.requests.diagnosis import DiagnoseRequest, validate_diagnose
from service.requests.parsing import parse
from service.requests.schemas import Solving
from service.requests.validation import Validated
from service.responses.arrays import ARRAY_FORMATS, ENCODERS, ArrayResponse
from service.responses.densities import (
    EncodeResponse,
    LogProbResponse,
    encode_response,
    log_prob_response,
    worst,
)
from service.responses.diagnosis import JACOBIAN, DiagnoseResponse, Paths, Spectra, diagnose_response, together
from service.state import service_of

router = APIRouter()

R = TypeVar("R", bound=Solving)
V = TypeVar("V", bound=Validated)


_DATA = [[-0.84, 0.52], [1.91, 0.13]]
_HEAD = {"model": "moons", "version": 1, "checkpoint": CHECKPOINT, "deterministic": True}
_COST = {
    "nfe": 50,
    "nfe_per_sample": {"min": 44, "mean": 47.0, "max": 50},
    "network_rows": 94,
    "status": "success",
    "failed": [],
}

_ENCODE: dict[str, dict[str, Any]] = {"encode": {"samples": _DATA, "rtol": 1e-5, "atol": 1e-5}}
_ENCODED: dict[str, dict[str, Any]] = {
    "encode": _HEAD
    | {"solver": DOPRI5 | {"rtol": 1e-5, "text": "dopri5@1e-5"}}
    | _COST
    | {"shape": [2, 2], "x0": [[-0.41, 0.77], [1.02, -0.36]], "latency": LATENCY}
}
_LOG_PROB: dict[str, dict[str, Any]] = {
    "exact": {"samples": _DATA},
    "estimate": {"samples": _DATA, "divergence": "hutchinson", "probes": 4, "seed": 0},
}
_DENSITY = (
    _HEAD | {"solver": DOPRI5 | {"rtol": 1e-5, "text": "dopri5@1e-5"}} | _COST | {"shape": [2], "latency": LATENCY}
)
_LOG_PROBS: dict[str, dict[str, Any]] = {
    "exact": _DENSITY
    | {
        "divergence": {"method": "exact"},
        "log_prob": [-0.93, -1.21],
    },
    "estimate": _DENSITY
    | {
        "divergence": {"method": "hutchinson", "probes": 4, "seed": 0},
        "log_prob": [-0.9, -1.3],
        "standard_error": [0.21, 0.17],
    },
}
_DIAGNOSE: dict[str, dict[str, Any]] = {"diagnose": {"num_samples": 1, "seed": 0, "times": [0.0, 1.0]}}
_DIAGNOSED: dict[str, dict[str, Any]] = {
    "diagnose": _HEAD
    | {"solver": RK4 | {"steps": 20, "text": "rk4-20"}}
    | {"nfe": 80, "nfe_per_sample": {"min": 80, "mean": 80.0, "max": 80}, "network_rows": 84}
    | {"status": "success", "failed": [], "seed": 0, "first_index": 0, "noise": "philox-ndtri-v1"}
    | {
        "times": [0.0, 1.0],
        "shape": [1, 2, 2],
        "eigenvalues_real": [[[-1.02, -0.53], [-6.4, 0.8]]],
        "eigenvalues_imag": [[[0.0, 0.0], [0.0, 0.0]]],
        "condition_number": [[1.93, 8.1]],
        "stiffness": [[1.02, 6.4]],
        "stiffness_ratio": [[1.92, 8.0]],
        "latency": LATENCY,
    }
}


def _described(
    summary: str,
    body: type[BaseModel],
    response: type[BaseModel],
    requests: Mapping[str, Any],
    responses: Mapping[str, Any],
) -> dict[str, Any]:
    return solving(
        ANALYSIS,
        summary,
        body,
        response,
        requests=requests,
        responses=responses,
        media=ARRAY_FORMATS,
        what="The results",
    )


@router.post(
    "/v1/models/{name}/encode", **_described("Map data to noise", EncodeRequest, EncodeResponse, _ENCODE, _ENCODED)
)
async def encode(request: Request, name: ModelName) -> Response:
    """Find the noise that data come from: solve dx/dt = v(x, t) from data back to noise."""
    valid = await _receive(request, name, EncodeRequest, validate_encode)
    model, job, states, context = valid.model, valid.job, valid.states, context_of(request.scope)
    result = await pipeline.solve(request, job)
    pipeline.count(request, job, result)
    response = await asyncio.to_thread(encode_response, model, job, result, context, states)
    return await _respond(request, valid, response)


@router.post(
    "/v1/models/{name}/log_prob",
    **_described("Compute log-densities", LogProbRequest, LogProbResponse, _LOG_PROB, _LOG_PROBS),
)
async def log_prob(request: Request, name: ModelName) -> Response:
    """Find the log-density of data: solve for x and log p together, from data back to noise."""
    valid = await _receive(request, name, LogProbRequest, validate_log_prob)
    model, job, states, context = valid.model, valid.job, valid.states, context_of(request.scope)
    deterministic = await _ready(request, valid, job.operation)
    result = await pipeline.solve(request, job)
    pipeline.count(request, job, await asyncio.to_thread(worst, result, len(states.x)))
    arguments = (model, job, result, context, states, deterministic)
    return await _respond(request, valid, await asyncio.to_thread(log_prob_response, *arguments))


@router.post(
    "/v1/models/{name}/diagnose",
    **_described("Diagnose the velocity field", DiagnoseRequest, DiagnoseResponse, _DIAGNOSE, _DIAGNOSED),
)
async def diagnose(request: Request, name: ModelName) -> Response:
    """Take the Jacobian of the velocity along paths from noise to data: its eigenvalues, condition and stiffness."""
    valid = await _receive(request, name, DiagnoseRequest, validate_diagnose)
    model, job, context = valid.model, valid.job, context_of(request.scope)
    deterministic = await _ready(request, valid, JACOBIAN)
    result = await pipeline.solve(request, job)
    paths = await asyncio.to_thread(Paths, job, result)
    second = await asyncio.to_thread(paths.jacobian_job)
    rows = None if second is None else await pipeline.solve(request, second)
    spectra = await asyncio.to_thread(Spectra, paths, rows)
    await _take(spectra, job, request)
    result = together(result, rows)
    pipeline.count(request, job, result)
    return await _respond(request, valid, diagnose_response(model, job, result, context, spectra, deterministic))


async def _receive(request: Request, name: str, body: type[R], validate: pipeline.Validate[R, V]) -> V:
    """Receive a request to the model in the address."""
    encoder = ENCODERS[choose(joined(request.headers, "accept"), ARRAY_FORMATS)]
    return await pipeline.receive(request, lambda text: (parse(body, text), encoder), validate, name, in_thread=True)


async def _ready(request: Request, valid: Validated, operation: Operation) -> bool:
    """Prepare an operation; return whether its responses are deterministic."""
    return await service_of(request).registry.ready(
        valid.model, operation, valid.job.deadline or time.monotonic(), valid.job.sizes
    )


async def _take(spectra: Spectra, job: Job, request: Request) -> None:
    """Decompose the Jacobians in a worker thread, until done, past the deadline, or the client disconnects."""
    gone = asyncio.ensure_future(pipeline.until_disconnect(request.receive))
    try:
        for part in spectra.slices():
            await asyncio.to_thread(spectra.take, part)
            if gone.done():
                raise ClientGoneError
            if job.deadline is not None and time.monotonic() > job.deadline:
                raise problem_of(DeadlineExceeded())
    finally:
        gone.cancel()


async def _respond(request: Request, valid: Validated, response: ArrayResponse) -> Response:
    return await pipeline.respond(request, response, valid.encoder, {"Vary": "Accept"})
