"""What a service can tell about a model beside samples: one result and one operation for each endpoint.

A new one is a result, a function that asks for it, and a line of `Operations`; both clients then have the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pathline import _plot
from pathline._calls import Calls
from pathline._decode import built
from pathline._fields import DiagnoseOptions, EncodeOptions, LogProbOptions
from pathline._results import ArrayResult
from pathline._typed import member_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

__all__ = ["DiagnoseResult", "EncodeResult", "LogProbResult"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OperationResult(ArrayResult):
    """Base of these results; numbers of samples that did not reach the end are NaN.

    Attributes:
        network_rows: Rows of all network calls.
    """

    network_rows: int

    def _facts(self) -> dict[str, str]:
        failed = f" ({len(self.failed)} of {len(self)} failed)" if self.failed else ""
        nfe = f"{self.nfe} ({self.network_rows} network rows)"
        return {"result": self._what(), "nfe": nfe, "status": self.status + failed, "latency": str(self.latency)}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EncodeResult(OperationResult):
    """The noise behind data.

    Attributes:
        x0: The noise, shape (n, *event_shape), as `sample` takes it.
        residual: For each sample, its largest difference from the decoding of its state; None without a decoder.
    """

    x0: np.ndarray
    residual: np.ndarray | None

    def _what(self) -> str:
        return f"noise of {len(self.x0)} samples"


async def encode(calls: Calls, model: str, samples: Any, **options: Unpack[EncodeOptions]) -> EncodeResult:
    """Find the noise behind data; ``sample(model, x0=result.x0)`` gives the data back.

    Args:
        model: Name of the model.
        samples: Data, shape (n, *data_shape), as `sample` returns them.
        **options: See `EncodeOptions`.

    Raises:
        PathlineError, TypeError, InvalidValue: As for `sample`.
    """
    return await calls.operate(
        "encode", model, {"samples": samples}, options, EncodeOptions, partial(built, EncodeResult)
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LogProbResult(OperationResult):
    """Log-densities of data.

    Attributes:
        log_prob: In nats, shape (n,), float64.
        standard_error: Of the mean over probes, shape (n,); None for fewer than two probes.
        residual: As in `EncodeResult`.
        divergence: How the divergence was computed: `method`, and `probes` and `seed` for an estimate.
    """

    log_prob: np.ndarray
    standard_error: np.ndarray | None
    residual: np.ndarray | None
    divergence: Mapping[str, Any]

    def _what(self) -> str:
        return f"{len(self.log_prob)} log-densities"

    def _facts(self) -> dict[str, str]:
        finite = self.log_prob[np.isfinite(self.log_prob)]
        mean = f", mean {finite.mean():.4f} nats" if len(finite) else ""
        return {**super()._facts(), "result": f"{self._what()}{mean} ({self.divergence.get('method', '?')})"}


async def log_prob(calls: Calls, model: str, samples: Any, **options: Unpack[LogProbOptions]) -> LogProbResult:
    """Compute the log-density of data under a model.

    Args:
        model: Name of the model.
        samples: Data, shape (n, *data_shape), as `sample` returns them.
        **options: See `LogProbOptions`. With two `probes` or more, the result has a standard error. The client
            draws the `seed` of the probes if it is omitted, so that a retry is the same request.

    Raises:
        PathlineError, TypeError, InvalidValue: As for `sample`.
    """
    return await calls.operate(
        "log_prob", model, {"samples": samples}, options, LogProbOptions, partial(built, LogProbResult)
    )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DiagnoseResult(OperationResult):
    """Jacobians along the paths of n samples at m times; NaN at times that a sample did not reach.

    Attributes:
        stiffness: How fast the fastest direction contracts, per unit of t, shape (n, m).
        stiffness_ratio: Largest over smallest absolute real part of the eigenvalues, shape (n, m).
        condition_number: Largest over smallest singular value, shape (n, m); infinite for a singular Jacobian.
        eigenvalues: By ascending real part, shape (n, m, numbers of a state), complex128.
        times: Times at which they were computed, shape (m,).
        seed: Seed of the starting noise.
        first_index: Index of the first sample in the seed's stream.
    """

    stiffness: np.ndarray
    stiffness_ratio: np.ndarray
    condition_number: np.ndarray
    eigenvalues: np.ndarray
    times: np.ndarray
    seed: int
    first_index: int

    def _columns(self, written: bool = False) -> dict[str, np.ndarray]:
        """Return the columns of the table, which has one row for each sample and time."""
        count, times = self.stiffness.shape
        rates = {name: getattr(self, name).ravel() for name in ("stiffness", "stiffness_ratio", "condition_number")}
        return {"sample": np.arange(count).repeat(times), "t": np.tile(self.times, count), **rates}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the stiffness of each sample over t; needs matplotlib.

        Args:
            ax: Where to draw; by default a new figure.
        """
        return _plot.curves(self.times, self.stiffness, ax, "stiffness", self._title())

    def _repr_png_(self) -> bytes | None:
        return None  # rates are neither points nor pictures

    def _what(self) -> str:
        return f"{len(self.eigenvalues)} samples at {len(self.times)} times"


async def diagnose(
    calls: Calls, model: str, num_samples: int | None = None, **options: Unpack[DiagnoseOptions]
) -> DiagnoseResult:
    """Compute the Jacobian of the velocity along paths from noise to data.

    Args:
        model: Name of the model.
        num_samples: How many samples; by default the rows of `x0`, else 16.
        **options: See `DiagnoseOptions`. By default the `times` are 0, 0.1, ..., 1 and the solver is rk4 with 20
            steps; the client draws the `seed` if it is omitted.

    Raises:
        PathlineError, TypeError, InvalidValue: As for `sample`.
    """
    x0 = options.get("x0")
    own = {"num_samples": len(x0) if num_samples is None and x0 is not None else num_samples}
    return await calls.operate("diagnose", model, own, options, DiagnoseOptions, _diagnosis)


def _diagnosis(entries: Mapping[str, np.ndarray], meta: Any) -> DiagnoseResult:
    eigenvalues = member_of(entries, "eigenvalues_real") + 1j * member_of(entries, "eigenvalues_imag")
    times = np.array(member_of(meta, "times"), np.float64)
    return built(DiagnoseResult, entries, meta, times=times, eigenvalues=eigenvalues)
