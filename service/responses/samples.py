"""Samples: the result of a job as the response of ``/v1/sample`` or ``/v1/replay``, with its trace of steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from engine.job import Job, JobResult
from service.http.context import Context
from service.registry.version import ModelVersion
from service.replay import Difference, asked_of, digest_of, environment_of
from service.responses.arrays import Array, ArrayResponse
from solvers.errors import Status
from solvers.plan import Plan
from solvers.trace import Trace, quantiles_by_bin

Decode = Callable[[torch.Tensor], torch.Tensor]

COLUMNS = ("sample", "t", "h", "error", "accepted")
QUANTILES = {"q10": 0.1, "q50": 0.5, "q90": 0.9}
BINS = 20
_GRIDS: "WeakKeyDictionary[Plan, dict[str, Array]]" = WeakKeyDictionary()
"""The columns of plans in use, as most requests repeat one."""
_SHARES = np.array(list(QUANTILES.values()))


def sample_response(
    model: ModelVersion,
    job: Job,
    result: JobResult,
    context: Context,
    decode: bool,
    environment: Mapping[str, str],
    budget: Mapping[str, Any] | None = None,
) -> ArrayResponse:
    """Return the response to a request for samples.

    Args:
        model: the model that drew them.
        job: the job given to the engine.
        result: its result.
        context: the context of the request.
        decode: whether samples are data, not states.
        environment: the environment of this process.
        budget: the service's choice of a solver, if it made one.
    """
    samples = samples_of(model, result, decode)
    document = {
        **origin(model, context),
        "seed": job.seed,
        "first_index": job.first_index,
        **({} if job.noise_scale == 1 else {"noise_scale": job.noise_scale}),
        "deterministic": model.deterministic,
        "noise": model.card.noise,
        "path": model.path,
        "solver": job.solve.settings,
        **({} if budget is None else {"budget": budget}),
        **_class_of(model, job),
        **_columns_of(model, decode),
        "shape": list(samples.shape),
        **outcome(result),
        "digest": digest_of(samples),
        "request": asked_of(model, job, decode),
        "environment": environment_of(environment, model),
        "samples": samples,
    }
    arrays: dict[str, Array] = {"samples": samples, "nfe": result.nfe, "t": result.t, "status": result.status}
    if result.saved is not None and job.save_at is not None:
        arrays["saved"] = saved = saved_of(model, result, decode)
        document["saved"] = {"t": job.save_at.tolist(), "states": saved}
    trace = view(job.trace, job.solve, result.trace)
    if trace is not None:
        arrays |= {f"trace_{name}": column for name, column in trace.columns.items()}
        document["trace"] = trace.document
    limits = model.card.decoder.clip if decode else None
    return ArrayResponse(document, arrays, context.elapsed, timings(result), limits)


def _columns_of(model: ModelVersion, decode: bool) -> dict[str, Any]:
    """Return the member `columns`, for decoded rows whose columns the card describes."""
    columns = model.card.decoder.columns if decode else None
    return {"columns": [{"name": column.name, "kind": column.kind} for column in columns]} if columns else {}


def _class_of(model: ModelVersion, job: Job) -> dict[str, Any]:
    """Return the member `class`: the name of the class that was drawn, or a list with that of each sample.

    Null is no class. A model with several conditions has an object instead, with these for each condition.
    """
    if model.conditioning is None or job.conditions is None:
        return {}
    found = model.conditioning.class_names(job.conditions)
    if not found:
        return {}
    return {"class": found if len(model.conditioning.inputs) > 1 else next(iter(found.values()))}


def replay_response(response: ArrayResponse, matches: bool, differences: Sequence[Difference]) -> ArrayResponse:
    """Return the response to a replay.

    Args:
        response: the samples.
        matches: whether their digest is that of the first answer.
        differences: why that could not be promised.
    """
    found = {"digest_matches": matches, "differences": [each.document() for each in differences]}
    return replace(response, document=found | response.document)


def origin(model: ModelVersion, context: Context) -> dict[str, Any]:
    """Return the members that every response begins with: the weights it came from."""
    return {"model": model.name, "version": model.version, "checkpoint": model.digest, **context.fallback()}


def timings(result: JobResult) -> dict[str, float]:
    """Return the seconds of a job, as members of `latency`."""
    stages = {"prelude_s": result.prelude_s, "decoder_s": result.decoder_s}
    found = {"queue_s": result.queue_s, "solve_s": result.solve_s, "network_s": result.network_s}
    return found | {name: seconds for name, seconds in stages.items() if seconds is not None}


def decoder_of(model: ModelVersion, decode: bool) -> Decode | None:
    """Return the function that turns states into data; None to leave them as they are, or if the engine decodes."""
    return model.decode if decode and not model.plain and not model.decodes_in_engine else None


def samples_of(model: ModelVersion, result: JobResult, decode: bool) -> Array:
    """Return the samples of a result (n, *shape), as data or as states."""
    return to_data(result.x, decoder_of(model, decode)) if result.data is None else result.data.numpy()


def saved_of(model: ModelVersion, result: JobResult, decode: bool) -> Array:
    """Return the saved states of a result (n, m, *shape), as data or as states."""
    if result.saved_data is not None:
        return result.saved_data.numpy()
    assert result.saved is not None  # noqa: S101  (the caller has checked)
    return saved_to_data(result.saved, decoder_of(model, decode))


def outcome(result: JobResult) -> dict[str, Any]:
    """Return the members about cost and outcome: `nfe`, `nfe_per_sample`, `network_rows`, `status`, `failed`."""
    nfe, t, status = result.nfe, result.t, result.status
    least, most, total = (int(ufunc.reduce(nfe)) for ufunc in (np.minimum, np.maximum, np.add))
    good = status == Status.SUCCESS.value
    worst, bad = Status.SUCCESS.value, []
    if not good.all():
        order = [member.value for member in Status]  # from best to worst
        worst, bad = max(set(status.tolist()), key=order.index), np.flatnonzero(~good)
    return {
        "nfe": most,
        "nfe_per_sample": {"min": least, "mean": total / len(nfe), "max": most},
        "network_rows": int(result.rows),
        "status": worst,
        "failed": [{"index": int(i), "status": str(status[i]), "t": float(t[i])} for i in bad],
    }


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
    if not finite.all():
        data = data.copy()
        data[~finite.reshape(len(states), -1).all(1)] = np.nan
    return np.ascontiguousarray(data)


def saved_to_data(saved: torch.Tensor, decode: Decode | None) -> Array:
    """Return saved states (n, m, *event) as (n, m, *data_shape), each state like a sample."""
    flat = to_data(saved.reshape(-1, *saved.shape[2:]), decode)
    return flat.reshape(*saved.shape[:2], *flat.shape[1:])


@dataclass(frozen=True)
class TraceView:
    """Attempted steps as columns of one length, one entry per step; `quantiles` of |h| over t in a summary.

    Attributes:
        columns: `sample` int64, `t` and `h` float64 (start and size of the step), `error` float64 (NaN where the
            solver has no estimate), `accepted` bool.
        quantiles: `t` (centre of each of 20 equal parts of the span) and `q10`, `q50`, `q90` of |h| over the
            accepted steps of all samples that begin there (NaN where none does); None for fixed grids and full traces.
    """

    columns: dict[str, Array]
    quantiles: dict[str, NDArray[np.float64]] | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The `trace` member of the JSON document."""
        if self.quantiles is None:
            return dict(self.columns)
        return self.columns | {"quantiles": {name: values.tolist() for name, values in self.quantiles.items()}}


def view(level: str, solve: Plan, trace: Trace) -> TraceView | None:
    """Return the steps that the response shows.

    Args:
        level: `none`; `summary` (the grid of a fixed solver, which is the same for every sample; the attempts of the
            first sample and quantiles over all for an adaptive one); or `full`.
        solve: the compiled solver.
        trace: every attempted step; empty if the level and the grid determine it.
    """
    if level == "none":
        return None
    if level == "full":
        return TraceView({name: getattr(trace, name) for name in COLUMNS})
    if solve.times is not None:
        return TraceView(_grid(solve))
    first = trace.sample == 0
    taken = trace.accepted
    quantiles = _quantiles(trace.t[taken], np.abs(trace.h[taken]), solve.t_span)
    return TraceView({name: getattr(trace, name)[first] for name in COLUMNS}, quantiles)


def _grid(solve: Plan) -> dict[str, Array]:
    """Return the columns of one sample that took every step of a plan's grid; they must not be changed."""
    if solve in _GRIDS:
        return _GRIDS[solve]
    times = solve.times
    assert times is not None  # noqa: S101  (the caller has seen them)
    steps = len(times) - 1
    _GRIDS[solve] = columns = {
        "sample": np.zeros(steps, dtype=np.int64),
        "t": times[:-1],
        "h": np.diff(times),
        "error": np.full(steps, np.nan),
        "accepted": np.ones(steps, dtype=bool),
    }
    return columns


def _quantiles(
    t: NDArray[np.float64], h: NDArray[np.float64], t_span: tuple[float, float]
) -> dict[str, NDArray[np.float64]]:
    """Quantiles of h in each bin of t."""
    edges, centres = _bins(t_span)
    return {"t": centres, **dict(zip(QUANTILES, quantiles_by_bin(t, h, edges, _SHARES), strict=True))}


@lru_cache(maxsize=64)
def _bins(t_span: tuple[float, float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the edges (BINS + 1,) and centres (BINS,) of the parts of a span; they must not be changed."""
    edges = np.linspace(min(t_span), max(t_span), BINS + 1)
    return edges, np.round((edges[:-1] + edges[1:]) / 2, 12)
