"""What an answer says about the steps: nothing, a summary, or every attempt."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.plan import Plan
from solvers.trace import Trace

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


def view(level: str, solve: Plan, trace: Trace) -> TraceView | None:
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
    if solve.times is not None:
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
