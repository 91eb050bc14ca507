"""From the result of a job to an answer that any encoder can write."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from service.engine.job import JobResult
from solvers.errors import Status
from solvers.plan import Adaptive, Plan
from solvers.trace import Trace

Decode = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Answer:
    """Everything an encoder needs.

    Attributes:
        head: the JSON members that are neither large arrays nor times, in the order in which they appear.
        samples: (n, *shape); rows of samples that are not finite are NaN throughout.
        nfe, t, status: (n,) evaluations, the t reached, and how each sample ended.
        trace: steps, or None.
        save_at: the m times of `saved`.
        saved: (n, m, *shape) or None.
        limits: the lowest and highest value of the samples where the model knows them, for pictures.
        timings: seconds `queue_s`, `solve_s` and `network_s`.
        elapsed: seconds since the request came.
    """

    head: dict[str, Any]
    samples: Array
    nfe: NDArray[np.int64]
    t: NDArray[np.float64]
    status: NDArray[np.str_]
    elapsed: Callable[[], float]
    trace: TraceView | None = None
    save_at: tuple[float, ...] = ()
    saved: Array | None = None
    limits: tuple[float, float] | None = None
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """How many numbers there are to encode, about."""
        steps = 0 if self.trace is None else 5 * len(self.trace.columns["t"])
        return self.samples.size + steps + (0 if self.saved is None else self.saved.size)

    def latency(self, encode_s: float) -> dict[str, float]:
        """Return the `latency` member, given the seconds spent on encoding so far."""
        return {**self.timings, "encode_s": encode_s, "total_s": self.elapsed()}


def outcome(result: JobResult) -> dict[str, Any]:
    """Return the members that say how it went: `nfe`, `nfe_per_sample`, `network_rows`, `status`, `failed`."""
    nfe, t, status = result.nfe, result.t, result.status
    good = status == Status.SUCCESS.value
    worst, bad = Status.SUCCESS.value, []
    if not good.all():
        order = [member.value for member in Status]  # from best to worst
        worst, bad = max(set(status.tolist()), key=order.index), np.flatnonzero(~good)
    return {
        "nfe": int(nfe.max(initial=0)),
        "nfe_per_sample": {"min": int(nfe.min()), "mean": float(nfe.mean()), "max": int(nfe.max())},
        "network_rows": int(result.rows),
        "status": worst,
        "failed": [{"index": int(i), "status": str(status[i]), "t": float(t[i])} for i in bad],
    }


def to_data(x: torch.Tensor, decode: Decode | None) -> Array:
    """Turn states (rows, *event) into what is answered: decoded, or as they are without `decode`.

    A row that is not finite becomes NaN throughout, as a decoder that clips would make a number of an infinity.

    Args:
        x: at least one row, on the CPU; without `decode` the answer may share its memory.
        decode: (rows, *event) -> (rows, *data_shape), each row from its own alone.

    Returns:
        (rows, *data_shape), C-contiguous, in the dtype of x or what `decode` makes of it.
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
    """Turn saved states (n, m, *event) into (n, m, *data_shape), each state like a sample."""
    flat = to_data(saved.reshape(-1, *saved.shape[2:]), decode)
    return flat.reshape(*saved.shape[:2], *flat.shape[1:])


COLUMNS = ("sample", "t", "h", "error", "accepted")
QUANTILES = {"q10": 0.1, "q50": 0.5, "q90": 0.9}
BINS = 20

Array = NDArray[np.generic]


@dataclass(frozen=True)
class TraceView:
    """Attempted steps as columns of one length, one entry a step; `quantiles` of |h| over t in a summary.

    Attributes:
        columns: `sample` int64, `t` and `h` float64 (start and size of the step), `error` float64 (NaN where the
            solver has no estimate), `accepted` bool.
        quantiles: `t` (centre of each of 20 equal parts of the span) and `q10`, `q50`, `q90` of |h| over the
            accepted steps of all samples that begin there (NaN where none does); None where it would say nothing.
    """

    columns: dict[str, Array]
    quantiles: dict[str, NDArray[np.float64]] | None = None


def view(level: str, solve: Plan | Adaptive, trace: Trace) -> TraceView | None:
    """Return what the answer shows.

    Args:
        level: `none`; `summary` (the grid of a fixed solver, which is the same for every sample; the attempts of the
            first sample and quantiles over all for an adaptive one); or `full`.
        solve: what was solved with.
        trace: every attempt; the engine leaves it empty where the level and the grid say it all.
    """
    if level == "none":
        return None
    if level == "full":
        return TraceView({name: getattr(trace, name) for name in COLUMNS})
    if isinstance(solve, Plan):
        return TraceView(_grid(solve.times))
    first = trace.sample == 0
    taken = trace.accepted
    quantiles = _quantiles(trace.t[taken], np.abs(trace.h[taken]), solve.t_span)
    return TraceView({name: getattr(trace, name)[first] for name in COLUMNS}, quantiles)


def _grid(times: NDArray[np.float64]) -> dict[str, Array]:
    """Return the columns of one sample that took every step of a grid."""
    steps = len(times) - 1
    return {
        "sample": np.zeros(steps, dtype=np.int64),
        "t": times[:-1],
        "h": np.diff(times),
        "error": np.full(steps, np.nan),
        "accepted": np.ones(steps, dtype=bool),
    }


def _quantiles(
    t: NDArray[np.float64], h: NDArray[np.float64], t_span: tuple[float, float]
) -> dict[str, NDArray[np.float64]]:
    """Quantiles of h in each bin of t, with the bits of `np.quantile`, which takes ten times as long bin by bin."""
    edges = np.linspace(min(t_span), max(t_span), BINS + 1)
    bins = np.clip(np.searchsorted(edges, t, side="right") - 1, 0, BINS - 1)
    sorted_h = h[np.lexsort((h, bins))]
    counts = np.bincount(bins, minlength=BINS)
    there = counts > 0
    first, last = (np.cumsum(counts) - counts)[there], counts[there] - 1
    table = {name: np.full(BINS, np.nan) for name in QUANTILES}
    for name, share in QUANTILES.items():
        place = share * last
        below = np.floor(place).astype(np.int64)
        low, high = sorted_h[first + below], sorted_h[first + np.minimum(below + 1, last)]
        part = place - below
        # From the nearer end, as NumPy does: so the quantile of equal numbers is that number.
        table[name][there] = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part))
    return {"t": np.round((edges[:-1] + edges[1:]) / 2, 12), **table}
