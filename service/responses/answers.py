"""From the result of a job to an answer that any encoder can write."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from service.engine.job import JobResult
from service.responses.traces import Array, TraceView
from solvers.errors import Status

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
