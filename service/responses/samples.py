"""Samples: the result of a job as the response of ``/v1/sample`` or ``/v1/replay``, with its trace of steps."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NotRequired, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from engine.job import Job, JobResult
from models.condition_values import class_names
from selection.choice import Choice
from service.environment import environment_of
from service.http.context import Context
from service.registry.version import ModelVersion
from service.responses.arrays import Array, ArrayResponse, digest_of
from service.responses.solved import Floats, Rows, Solved, closed, described, latency, outcome, written_as
from solvers.draws import SCHEME as STEP_NOISE
from solvers.plan import Plan
from solvers.stochastic import Diffusion, transition_log_prob
from solvers.trace import StepTrace, quantiles_by_bin, steps_of

Decode = Callable[[torch.Tensor], torch.Tensor]

COLUMNS = ("sample", "t", "h", "error", "accepted")
QUANTILES = {"q10": 0.1, "q50": 0.5, "q90": 0.9}
BINS = 20
_GRIDS: "WeakKeyDictionary[Plan, TraceBody]" = WeakKeyDictionary()
"""The columns of plans in use, as most requests repeat one."""
_NONE = np.zeros(0)
_SHARES = np.array(list(QUANTILES.values()))


class Saved(TypedDict):
    """States on the way: `states[i][j]` is sample i at time `t[j]`; null where it was not reached."""

    t: list[float]
    states: Rows


class TraceBody(TypedDict):
    """Attempted steps, one entry each; `quantiles` (of h over t) only in an adaptive summary.

    `t` and `h` are start and size of the step; `error` is null where the solver has no estimate. The quantiles are
    those of |h| over the accepted steps of all samples that begin in each of 20 equal parts of the span, with centre
    `t`.
    """

    sample: Annotated[Array, written_as(list[int])]
    t: Floats
    h: Floats
    error: Floats
    accepted: Annotated[Array, written_as(list[bool])]
    quantiles: NotRequired[Annotated[dict[str, list[float]], written_as(dict[str, list[float | None]])]]


@described
@closed
class ChosenSolver(TypedDict):
    """The service's choice of a solver: the budget, the solver, its promise, and the reason."""

    max_error: NotRequired[float]
    max_nfe: NotRequired[int]
    max_ms: NotRequired[float]
    solver: str
    nfe: int
    """velocity evaluations of the slowest sample of those measured"""
    measured_nfe: float
    """mean velocity evaluations of a sample of those measured"""
    promised_error: float
    """upper end of the interval of p95: 95 % of samples end within it, as a share of the spread"""
    promised_distance: float
    """the same in units of the model's own coordinates"""
    p95: float
    """p95 of the endpoint error as measured"""
    p95_low: float
    """lower end of its interval"""
    samples: int
    """number of samples that this rests on"""
    stored: bool
    """whether it was measured beforehand, rather than now"""
    own_conditions: bool
    """whether it was measured with the conditions of this request"""
    predicted_ms: NotRequired[float]
    """milliseconds of solving at the current pace, without queueing"""
    reason: str


_CLASS = (
    "only of a model with classes: the name of the class, or a list with that of each sample; null is no class; by "
    "name if the model has several conditions"
)
_Class = TypedDict("_Class", {"class": NotRequired[Annotated[Any, Field(description=_CLASS)]]})


@described
@closed
class KnownBody(TypedDict):
    """How known values were taken."""

    mode: Literal["replace", "guided"]
    values: Literal["data", "states"]
    """`states` without decode, or with a decoder each of whose numbers depends on several"""


@described
@closed
class NamedColumn(TypedDict):
    """One column of samples that are rows."""

    name: str
    kind: Literal["number", "whole", "yes-no"]
    """`yes-no` is 0 or 1; `whole` has no fractions"""
    unit: NotRequired[str]
    decimals: NotRequired[int]
    """decimal places of the data; samples have more"""


@described
@closed
class SampleResponse(Solved, _Class):
    """Response of ``POST /v1/sample``. A sample that is not finite is a null row."""

    saved: NotRequired[Saved]
    log_prob: NotRequired[Rows]
    """log-density in nats of each step of each sample; null if not made"""
    trace: NotRequired[TraceBody]
    columns: NotRequired[list[NamedColumn]]
    """only for rows with named columns: what is known of each number of a sample"""
    seed: int
    first_index: int
    noise_scale: NotRequired[float]
    """factor of the starting noise, if it is not 1"""
    known_values: NotRequired[KnownBody]
    """only if the request had known values"""
    noise: str
    step_noise: NotRequired[str]
    """only of a stochastic solver: the scheme of its noise"""
    path: Annotated[str, written_as(Literal["fused", "onnx", "eager"])]
    """how the network was evaluated, as in /v1/models"""
    budget: NotRequired[Annotated[Mapping[str, Any], written_as(ChosenSolver)]]
    """only if the request had a budget"""
    digest: str
    """SHA-256 of the samples' bytes, as in npz"""
    request: Annotated[
        dict[str, Any],
        Field(
            description="what else POST /v1/replay needs of the request, where it is not the default; long arrays and "
            "conditions by name as hashes"
        ),
    ]
    environment: Mapping[str, str]
    """versions, device and machine that the bits depend on"""
    samples: Rows


def sample_response(
    http: Context,
    model: ModelVersion,
    job: Job,
    result: JobResult,
    decode: bool,
    constant: dict[str, Any],
    choice: Choice | None,
    asked_of: Callable[[ModelVersion, Job, bool], dict[str, Any]],
) -> ArrayResponse:
    """Return the response to a request for samples.

    Args:
        http: the HTTP request.
        model: the model that drew them.
        job: the job given to the engine.
        result: its result.
        decode: whether samples are data, not states.
        constant: members of an earlier response to a request alike; if empty, they are filled in.
        choice: the service's choice of a solver, if it made one.
        asked_of: returns the member `request`, given model, job and `decode`.
    """
    samples = samples_of(model, result, decode)
    arrays: dict[str, Array] = {"samples": samples, "nfe": result.nfe, "t": result.t, "status": result.status}
    if not constant:
        asked = {"request": asked_of(model, job, decode)}
        constant.update(_constant(http, model, job, decode, choice) | asked)  # at once: others alike may be answered
    shared: Any = constant.copy()
    document: SampleResponse = shared
    document["seed"], document["first_index"] = job.seed, job.first_index
    document["shape"], document["digest"], document["samples"] = list(samples.shape), digest_of(samples), samples
    shared |= outcome(result)
    if http.fallback_from is None:
        del document["fallback_from"]
    else:
        document["fallback_from"] = http.fallback_from
    if result.saved is not None and job.save_at is not None:
        if result.saved_data is None:
            saved = saved_to_data(result.saved, decoder_of(model, decode))
        else:
            saved = result.saved_data.numpy()
        arrays["saved"] = saved
        document["saved"] = {"t": job.save_at.tolist(), "states": saved}
    if job.log_prob:
        times, diffusion, width = job.plan.times, job.plan.spec.diffusion, result.x[0].numel()
        assert times is not None and isinstance(diffusion, Diffusion)  # noqa: S101, PT018  (the validation has checked)
        density = transition_log_prob(times, diffusion, job.seed, job.first_index, result.t, width)  # (n, steps)
        arrays["log_prob"] = document["log_prob"] = density
    trace = view(job.trace, job.plan, result.trace)
    if trace is not None:
        for name in COLUMNS:
            arrays[f"trace_{name}"] = trace[name]
        document["trace"] = trace
    document["latency"] = latency(result)
    return ArrayResponse(document, arrays, http.elapsed, model.card.decoder.clip if decode else None)


def _constant(http: Context, model: ModelVersion, job: Job, decode: bool, choice: Choice | None) -> SampleResponse:
    """Return a response in which all members that differ among requests alike are only in their places."""
    columns = model.card.decoder.columns if decode else None
    known: KnownBody = {
        "mode": "replace" if job.constants is None else "guided",
        "values": "data" if decode and model.numberwise else "states",
    }
    return {
        "model": model.name,
        "version": model.version,
        "checkpoint": model.digest,
        "fallback_from": 0,
        "seed": 0,
        "first_index": 0,
        **({} if job.noise_scale == 1 else {"noise_scale": job.noise_scale}),
        "deterministic": model.deterministic,
        **({} if job.known is None else {"known_values": known}),
        "noise": model.card.noise_scheme,
        **({"step_noise": STEP_NOISE} if job.plan.spec.method.stochastic else {}),
        "path": model.path,
        "solver": job.plan.settings,
        **({} if choice is None else {"budget": choice.document()}),
        **_class_of(model, job),
        **({"columns": [cast("NamedColumn", column.described()) for column in columns]} if columns else {}),
        "shape": [],
        "nfe": 0,
        "nfe_per_sample": {"min": 0, "mean": 0.0, "max": 0},
        "network_rows": 0,
        "status": "",
        "failed": [],
        "digest": "",
        "request": {},
        "environment": environment_of(http.service.environment, model),
        "samples": _NONE,
        "latency": {"queue_s": 0.0, "solve_s": 0.0, "network_s": 0.0, "encode_s": 0.0, "total_s": 0.0},
    }


def _class_of(model: ModelVersion, job: Job) -> _Class:
    """Return the member `class`: the name of the class that was drawn, or a list with that of each sample.

    Null is no class. A model with several conditions has an object instead, with these for each condition.
    """
    if model.request_conditions is None or job.conditions is None:
        return {}
    classes = class_names(model.request_conditions, job.conditions)
    if not classes:
        return {}
    return {"class": classes if len(model.request_conditions.entries) > 1 else next(iter(classes.values()))}


def decoder_of(model: ModelVersion, decode: bool) -> Decode | None:
    """Return the function that turns states into data; None to leave them as they are, or if the engine decodes."""
    return model.decode if decode and not model.plain and not model.decodes_in_engine else None


def samples_of(model: ModelVersion, result: JobResult, decode: bool) -> Array:
    """Return the samples of a result (n, *shape), as data or as states."""
    return to_data(result.x, decoder_of(model, decode)) if result.data is None else result.data.numpy()


def to_data(x: torch.Tensor, decode: Decode | None) -> Array:
    """Return states (rows, *event) as the data of a response: decoded, or unchanged without `decode`.

    A row that is not finite becomes NaN throughout, as a clipping decoder would turn an infinity into a number.

    Args:
        x: at least one row, on the CPU; without `decode` the result may share its memory.
        decode: (rows, *event) -> (rows, *data_shape), each row from its own state alone.

    Returns:
        (rows, *data_shape), C-contiguous, in the dtype of x or that of `decode`.
    """
    states = x.numpy()
    data = states
    if decode is not None:
        with torch.inference_mode():
            data = decode(x).numpy()
    finite = np.isfinite(states)
    if not np.logical_and.reduce(finite, axis=None):
        data = data.copy()
        data[~finite.reshape(len(states), -1).all(1)] = np.nan
    return np.ascontiguousarray(data)


def saved_to_data(saved: torch.Tensor, decode: Decode | None) -> Array:
    """Return saved states (n, m, *event) as (n, m, *data_shape), each state like a sample."""
    flat = to_data(saved.reshape(-1, *saved.shape[2:]), decode)
    return flat.reshape(*saved.shape[:2], *flat.shape[1:])


def view(level: str, plan: Plan, trace: StepTrace) -> TraceBody | None:
    """Return the steps that the response shows.

    Args:
        level: `none`; `summary` (the grid of a fixed solver, which is the same for every sample; the attempts of the
            first sample and quantiles over all for an adaptive one); or `full`.
        plan: the compiled solver.
        trace: every attempted step; empty if the level and the grid determine it.
    """
    if level == "none":
        return None
    if level == "full":
        return _columns(trace)
    if plan.times is not None:
        return _grid(plan)
    taken, (edges, centres) = trace.accepted, _bins(plan.t_span)
    bands = zip(QUANTILES, quantiles_by_bin(trace.t[taken], np.abs(trace.h[taken]), edges, _SHARES), strict=True)
    quantiles = {"t": centres.tolist(), **{name: values.tolist() for name, values in bands}}
    return {**_columns(trace, trace.sample == 0), "quantiles": quantiles}


def _columns(trace: StepTrace, rows: Any = slice(None)) -> TraceBody:
    columns: Any = {name: getattr(trace, name)[rows] for name in COLUMNS}
    return columns


def _grid(plan: Plan) -> TraceBody:
    """Return the columns of one sample that took every step of a plan's grid; they must not be changed."""
    columns = _GRIDS.get(plan)
    if columns is not None:
        return columns
    times = plan.times
    assert times is not None  # noqa: S101  (the caller has seen them)
    steps, (starts, lengths) = len(times) - 1, steps_of(times)
    grid: TraceBody = {
        "sample": np.zeros(steps, dtype=np.int64),
        "t": starts,
        "h": lengths,
        "error": np.full(steps, np.nan),
        "accepted": np.ones(steps, dtype=bool),
    }
    return _GRIDS.setdefault(plan, grid)


@lru_cache(maxsize=64)
def _bins(t_span: tuple[float, float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the edges (BINS + 1,) and centres (BINS,) of the parts of a span; they must not be changed."""
    edges = np.linspace(min(t_span), max(t_span), BINS + 1)
    return edges, np.round((edges[:-1] + edges[1:]) / 2, 12)
