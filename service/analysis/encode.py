"""``POST /v1/models/{name}/encode``: the noise that data come from.

It is what ``POST /v1/sample`` does with `x0` and a reverse `t_span`, in the same arena and the same network calls.
"""

import asyncio
import math
from dataclasses import replace
from typing import Annotated, NotRequired

import numpy as np
from fastapi import Response

from engine.job import JobResult
from service import examples
from service.analysis.data import BACK, DataRequest, Residual, ValidatedData, data_bytes, sized_data, states_of
from service.http.context import Context
from service.openapi import ANALYSIS, ModelName, Router, requested, solved
from service.registry.version import ModelVersion
from service.requests import pipeline
from service.requests.sizes import check_arrays_size, lanes_bytes
from service.requests.solver import refuse_average, request_plan
from service.requests.validation import job_of
from service.responses.arrays import ARRAY_FORMATS, ArrayResponse, Encoder
from service.responses.samples import to_data
from service.responses.solved import SUCCESS, Rows, Solved, closed, described, head, latency
from service.settings import Settings

router = Router(tags=[ANALYSIS], route_class=pipeline.BodyRoute)


class EncodeRequest(DataRequest):
    """Body of ``encode``: data, and how to solve back from t = 1 to 0."""


@described
@closed
class EncodeResponse(Solved):
    """Response of ``encode``. A sample that did not reach the noise is a null row."""

    residual: NotRequired[Residual]
    x0: Rows
    """the noise that the samples come from, as POST /v1/sample takes it"""


_PATH = "/v1/models/{name}/encode"
_REQUESTS = {"encode": {"samples": examples.DATA, "rtol": 1e-5, "atol": 1e-5}}


@router.post(_PATH, summary="Map data to noise", responses=solved(_PATH, EncodeResponse, "The results", ARRAY_FORMATS))
async def encode(http: Context, name: ModelName, request: Annotated[EncodeRequest, requested(_REQUESTS)]) -> Response:
    """Find the noise that data come from: solve dx/dt = v(x, t) from data back to noise."""
    valid = await pipeline.make_job(http, request, validate_encode, name)
    result = await pipeline.solve(http, valid.job)
    pipeline.count(http, valid.job, result)
    return await pipeline.respond(http, valid, await asyncio.to_thread(_response, http, valid, result))


def validate_encode(
    request: EncodeRequest, model: ModelVersion, settings: Settings, encoder: Encoder, http: Context
) -> ValidatedData:
    """Check a request, reserve its memory and make its job; errors as in `validate_sample`."""
    refuse_average(model, "encode follows")
    n, checked, model = sized_data(request, model, settings)
    plan = request_plan(request, model, BACK, settings)
    shapes = [(n, *model.event_shape), (n,)]
    response_bytes = check_arrays_size("samples", shapes, model.card.dtype, plan, encoder, settings)
    memory = lanes_bytes(model, n, math.prod(model.event_shape), checked, start=True, plan=plan)
    memory += data_bytes(n, model) + response_bytes
    job = job_of(http, request, model, plan, checked, memory, num_samples=n, seed=0)
    model, x, decoded = states_of(request, model)
    return ValidatedData(model=model, job=replace(job, x0=x), encoder=encoder, **decoded)


def _response(http: Context, valid: ValidatedData, result: JobResult) -> ArrayResponse:
    """Return the response with the noise of each sample, NaN where it was not reached."""
    x0 = to_data(result.x, None)
    failed = result.status != SUCCESS
    if failed.any():
        x0 = x0.copy()
        x0[failed] = np.nan
    document: EncodeResponse = {
        **head(http, valid.model, valid.job, result),
        "shape": list(x0.shape),
        **({} if valid.residual is None else {"residual": valid.residual}),
        "x0": x0,
        "latency": latency(result),
    }
    return ArrayResponse.of(document, http.elapsed)
