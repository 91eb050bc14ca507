"""``POST /v1/models/{name}/diagnose``: the Jacobian of the velocity along the paths of samples, and its spectra.

Two jobs one after the other: the paths, in the arena for samples with their states saved; then the rows of all
Jacobians, each a lane of one step (`solvers.derived.jacobian_field`), in their own arena. Their eigenvalues are
computed in a worker thread, in slices, so that a time limit or a disconnect ends them soon.
"""

import asyncio
import math
import time
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from fastapi import Response
from numpy.typing import NDArray
from pydantic import Field, WrapValidator

from engine.job import Job, JobResult, Operation, TooLate
from models.condition_values import repeated
from service.errors import ClientGoneError, check_limit, invalid
from service.http.context import Context
from service.http.events import until_disconnect
from service.openapi import ANALYSIS, ModelName, Router, requested, solved
from service.registry.version import ModelVersion
from service.requests import pipeline
from service.requests.conditions import CheckedConditions, refuse_corrections, sized
from service.requests.schemas import SOLVER, SOLVER_SCHEMA, WHOLE, Background, Count, Paths, Times
from service.requests.sizes import check_arrays_size, doubles_bytes, lanes_bytes
from service.requests.solver import refuse_average, request_plan, times_of
from service.requests.tensors import Tensor, array_too
from service.requests.validation import Validated, job_of
from service.responses.arrays import ARRAY_FORMATS, Array, ArrayResponse, Encoder
from service.responses.solved import Solved, closed, described, head, latency, written_as
from service.settings import Settings
from solvers import resolve
from solvers.derived import jacobian_field
from solvers.diagnose import MAX_WIDTH, decompose, stiffness, stiffness_ratio
from solvers.plan import Plan

router = Router(tags=[ANALYSIS], route_class=pipeline.BodyRoute)

JACOBIAN = Operation("jacobian", jacobian_field)

_WORK_PER_SLICE = 2_000_000  # of n matrices of width w, counted as n w^3: well under 0.1 s

TIMES = tuple(k / 10 for k in range(11))
_USUAL = "rk4-20"
"""The solver if the request names neither solver nor steps."""


class DiagnoseRequest(Paths):
    """Body of ``diagnose``: which samples to follow from t = 0 to 1, how, and at which times to take the Jacobian."""

    num_samples: Count = 16
    """number of samples"""
    solver: str = Field(
        default="rk4",
        description=f"{SOLVER}; {_USUAL} if neither solver nor steps are given",
        json_schema_extra=SOLVER_SCHEMA,
    )
    priority: Background = "bulk"
    times: Annotated[Times, WrapValidator(array_too), Tensor(axes=1)] = TIMES
    """ascending times from 0 to 1; with fixed steps, points of the grid"""


_Rates = Annotated[Array, written_as(list[list[float | None]])]
_Values = Annotated[Array, written_as(list[list[list[float | None]]])]


@described
@closed
class DiagnoseResponse(Solved):
    """Response of ``diagnose``: a list for each sample, with an entry for each time; null if it was not reached."""

    seed: int
    first_index: int
    noise: str
    times: list[float]
    eigenvalues_real: _Values
    """by ascending real part"""
    eigenvalues_imag: _Values
    condition_number: _Rates
    """largest over smallest singular value; null where the Jacobian is singular"""
    stiffness: _Rates
    """contraction rate of the fastest direction, per unit of t: -min Re(eigenvalue), at least 0"""
    stiffness_ratio: _Rates
    """largest over smallest |Re(eigenvalue)|; null where the smallest is 0"""


_PATH = "/v1/models/{name}/diagnose"
_REQUESTS = {"diagnose": {"num_samples": 1, "seed": 0, "times": [0.0, 1.0]}}


@router.post(
    _PATH,
    summary="Diagnose the velocity field",
    responses=solved(_PATH, DiagnoseResponse, "The results", ARRAY_FORMATS),
)
async def diagnose(
    http: Context, name: ModelName, request: Annotated[DiagnoseRequest, requested(_REQUESTS)]
) -> Response:
    """Take the Jacobian of the velocity along paths from noise to data: its eigenvalues, condition and stiffness."""
    valid = await pipeline.make_job(http, request, validate_diagnose, name)
    model, job = valid.model, valid.job
    deterministic = await http.service.registry.prepare(model, JACOBIAN, http.deadline, job.sizes)
    result = await pipeline.solve(http, job)
    reached, second = await asyncio.to_thread(_jacobians_of, job, result)
    rows = None if second is None else await pipeline.solve(http, second)
    real, imag, condition = await _spectra(http, reached, rows, math.prod(model.event_shape))
    result = _together(result, rows)
    pipeline.count(http, job, result)
    document: DiagnoseResponse = {
        **head(http, replace(model, deterministic=deterministic), job, result),
        "seed": job.seed,
        "first_index": job.first_index,
        "noise": model.card.noise_scheme,
        "times": [] if job.save_at is None else job.save_at.tolist(),
        "shape": list(real.shape),
        "eigenvalues_real": real,
        "eigenvalues_imag": imag,
        "condition_number": condition,
        "stiffness": stiffness(real),
        "stiffness_ratio": stiffness_ratio(real),
        "latency": latency(result),
    }
    return await pipeline.respond(http, valid, ArrayResponse.of(document, http.elapsed))


def validate_diagnose(
    request: DiagnoseRequest, model: ModelVersion, settings: Settings, encoder: Encoder, http: Context
) -> Validated:
    """Check a request, reserve the memory of its two jobs, and make the first; errors as in `validate_sample`."""
    refuse_average(model, "diagnose takes Jacobians of")
    n, times = request.num_samples, len(request.times)
    check_limit("num_samples", n, settings.max_samples)
    check_limit("times", times, settings.max_saved, " times")
    checked, model = sized(request, model, n, "x0", request.x0, model.card.event_shape)
    refuse_corrections(checked)
    width = math.prod(model.event_shape)
    _check_cost(n, times, width, model, settings)
    named = (
        "solver" in request.model_fields_set or request.steps is not None or not isinstance(request.grid, str | dict)
    )
    plan = request_plan(request, model, WHOLE, settings, usual=None if named else _USUAL)
    if plan.spec.noisy:
        raise invalid(
            "solver",
            f"solver is {plan.spec}, which is stochastic; diagnose follows the ODE: use a solver without noise",
        )
    at = times_of(request, "times", plan)
    shapes = [(n, times, width)] * 2 + [(n, times)] * 3
    response_bytes = check_arrays_size("num_samples", shapes, "float64", plan, encoder, settings)
    job = job_of(
        http,
        request,
        model,
        plan,
        checked,
        _memory(n, times, width, model, plan, checked) + response_bytes,
        num_samples=n,
        seed=request.seed,
        first_index=request.first_index,
        x0=request.x0,
        save_at=at,
    )
    return Validated(model, job, encoder)


def _memory(n: int, times: int, width: int, model: ModelVersion, plan: Plan, checked: CheckedConditions) -> int:
    """Return the bytes of memory for the paths, the rows of all Jacobians, and the results."""
    paths = lanes_bytes(model, n, width, checked, saved=times, start=True, plan=plan)
    rows = n * times * width
    jacobians = lanes_bytes(model, rows, width, checked, start=True, constants=width + 2)
    return paths + jacobians + 8 * rows * (width + 3) + doubles_bytes(n, model.event_shape)


def _check_cost(n: int, times: int, width: int, model: ModelVersion, settings: Settings) -> None:
    if width > MAX_WIDTH:
        raise invalid(
            "name",
            f"a state of model {model.name!r} has {width} numbers; Jacobians are supported for up to {MAX_WIDTH} "
            "(the cost of their eigenvalues grows with the third power)",
        )
    if n > settings.max_diagnosed:
        raise invalid(
            "num_samples",
            f"num_samples = {n} is over the limit of {settings.max_diagnosed} samples in one diagnosis of this "
            "service; ask for less, and page with first_index",
        )
    if n * times * width**2 > settings.max_derivatives:
        raise invalid(
            "num_samples",
            f"num_samples = {n} at {times} times with {width} x {width} Jacobians are {n * times * width**2} numbers, "
            f"over the limit of {settings.max_derivatives} of this service; ask for at most "
            f"{settings.max_derivatives // (times * width**2)} samples, or for fewer times",
        )


def _jacobians_of(job: Job, result: JobResult) -> tuple[NDArray[np.bool_], Job | None]:
    """Return (n, M) whether a state is finite, and the job with the rows of the Jacobians there; None without any."""
    assert result.saved is not None and job.save_at is not None  # noqa: S101, PT018  (the job saves)
    saved = result.saved.flatten(2)
    reached = saved.isfinite().all(dim=2).numpy()
    sample, place = np.nonzero(reached)
    if not len(sample):
        return reached, None
    states, width = saved[torch.from_numpy(reached)], saved.shape[2]
    t = torch.from_numpy(job.save_at[place]).to(states.dtype)
    at = torch.cat((states, t[:, None]), dim=1).repeat_interleave(width, dim=0)
    row = torch.arange(width, dtype=states.dtype).repeat(len(states))
    of = np.repeat(sample, width)
    return reached, replace(
        job,
        plan=resolve(solver="euler", steps=1, dtype=states.dtype),
        follows=True,
        num_samples=len(at),
        x0=states.new_zeros(len(at), width),
        save_at=None,
        conditions=repeated(job.conditions, of),
        negative=repeated(job.negative, of),
        operation=JACOBIAN,
        constants=torch.cat((at, row[:, None]), dim=1),
    )


def _matrices(rows: JobResult, width: int) -> NDArray[np.float64]:
    """Return the Jacobians (finite states, width, width); one with a row that was not reached is NaN throughout."""
    matrices = rows.x.double().numpy().reshape(-1, width, width)
    matrices[(rows.status != "success").reshape(-1, width).any(axis=1)] = np.nan
    return matrices


async def _spectra(
    http: Context, reached: NDArray[np.bool_], rows: JobResult | None, width: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the eigenvalues (n, M, width), as real and imaginary parts, and the condition numbers (n, M).

    They are NaN where there is no Jacobian. Each slice is decomposed in a worker thread.

    Raises:
        ClientGoneError, TooLate: The client disconnected, or the deadline passed, while slices were left.
    """
    real, imag = (np.full((*reached.shape, width), np.nan) for _ in range(2))
    condition = np.full(reached.shape, np.nan)
    if rows is None:
        return real, imag, condition
    matrices = await asyncio.to_thread(_matrices, rows, width)
    where = np.argwhere(reached)

    def take(part: slice) -> None:
        good = np.isfinite(matrices[part]).all(axis=(1, 2))
        at = tuple(where[part][good].T)
        real[at], imag[at], condition[at] = decompose(matrices[part][good])

    count = max(1, _WORK_PER_SLICE // width**3)
    gone = asyncio.ensure_future(until_disconnect(http.receive))
    try:
        for begin in range(0, len(matrices), count):
            await asyncio.to_thread(take, slice(begin, begin + count))
            if gone.done():
                raise ClientGoneError
            if time.monotonic() > http.deadline:
                raise TooLate
    finally:
        gone.cancel()
    return real, imag, condition


def _together(first: JobResult, second: JobResult | None) -> JobResult:
    """Return the result of the paths with the rows and seconds of the Jacobians added, but not their NFE."""
    if second is None:
        return first
    return replace(
        first,
        rows=first.rows + second.rows,
        queue_s=first.queue_s + second.queue_s,
        solve_s=first.solve_s + second.solve_s,
        network_s=first.network_s + second.network_s,
        prelude_s=None if first.prelude_s is None else first.prelude_s + (second.prelude_s or 0.0),
    )
