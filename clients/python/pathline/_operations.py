"""`encode`, `log_prob` and `diagnose` of both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar

import numpy as np

from pathline import _found
from pathline._core import Core, Flow
from pathline._found import DiagnoseResult, EncodeResult, LogProbResult
from pathline._request import CommonOptions, OperationRequest, chosen_seed, encoded, given

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class SolverOptions(CommonOptions, total=False):
    """How to solve, and for whom; left out, the service's defaults hold. See `CommonOptions` for the others.

    Attributes:
        solver: Name from `solvers`.
        steps: Number of fixed steps.
        rtol: Relative tolerance of error control.
        atol: Absolute tolerance of error control.
    """

    solver: str | None
    steps: int | None
    rtol: float | None
    atol: float | None


_ALLOWED = tuple(SolverOptions.__annotations__)


class Operations:
    """The three operations of the blocking client."""

    _core: Core

    def _run(self, flow: Flow[T]) -> T:
        raise NotImplementedError

    def encode(
        self, model: str, samples: Any, *, decode: bool | None = None, **options: Unpack[SolverOptions]
    ) -> EncodeResult:
        """Find the noise that data come from; ``sample(model, x0=result.x0)`` gives the data back.

        Args:
            model: Name of the model.
            samples: Data, shape (n, *data_shape), as `sample` returns them.
            decode: False if `samples` are states in the model's own coordinates.
            **options: See `SolverOptions`.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError: An option is unknown, or a value is none that JSON knows.
            InvalidValue: A number is not finite; also a ValueError.
        """
        return self._run(encode_flow(self._core, model, samples, decode, options))

    def log_prob(
        self,
        model: str,
        samples: Any,
        *,
        divergence: Literal["auto", "exact", "hutchinson"] | None = None,
        probes: int | None = None,
        seed: SupportsIndex | None = None,
        decode: bool | None = None,
        **options: Unpack[SolverOptions],
    ) -> LogProbResult:
        """Find the log-density that a model gives to data.

        Args:
            model: Name of the model.
            samples: Data, shape (n, *data_shape), as `sample` returns them.
            divergence: ``"exact"``, ``"hutchinson"`` (an estimate by random signs), or ``"auto"``: exact up to 16
                numbers a sample.
            probes: Estimates that are averaged; two or more tell a standard error.
            seed: Seed of the signs; drawn here where left out, so that a retry is the same request.
            decode: False if `samples` are states in the model's own coordinates.
            **options: See `SolverOptions`.

        Raises:
            PathlineError, TypeError, InvalidValue: As for `encode`.
        """
        return self._run(log_prob_flow(self._core, model, samples, divergence, probes, seed, decode, options))

    def diagnose(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        times: Sequence[float] | np.ndarray | None = None,
        seed: SupportsIndex | None = None,
        first_index: int | None = None,
        x0: Any = None,
        **options: Unpack[SolverOptions],
    ) -> DiagnoseResult:
        """Take the Jacobian of the velocity along paths from noise to data.

        Args:
            model: Name of the model.
            num_samples: How many samples; where left out, the rows of `x0`, else 16.
            times: Ascending times in [0, 1]; 0, 0.1, ..., 1 where left out.
            seed: Seed of the starting noise; drawn here where left out.
            first_index: Index of the first sample in the seed's stream.
            x0: Start states, shape (n, *event_shape), in place of noise.
            **options: See `SolverOptions`; the default is rk4 with 20 steps.

        Raises:
            PathlineError, TypeError, InvalidValue: As for `encode`.
        """
        return self._run(diagnose_flow(self._core, model, num_samples, times, seed, first_index, x0, options))


class AsyncOperations:
    """The three operations of the client for asyncio; arguments, results and errors as in `Operations`."""

    _core: Core

    async def _run(self, flow: Flow[T]) -> T:
        raise NotImplementedError

    async def encode(
        self, model: str, samples: Any, *, decode: bool | None = None, **options: Unpack[SolverOptions]
    ) -> EncodeResult:
        """Find the noise that data come from; arguments, result and errors as in `Client.encode`."""
        return await self._run(encode_flow(self._core, model, samples, decode, options))

    async def log_prob(
        self,
        model: str,
        samples: Any,
        *,
        divergence: Literal["auto", "exact", "hutchinson"] | None = None,
        probes: int | None = None,
        seed: SupportsIndex | None = None,
        decode: bool | None = None,
        **options: Unpack[SolverOptions],
    ) -> LogProbResult:
        """Find the log-density of data; arguments, result and errors as in `Client.log_prob`."""
        return await self._run(log_prob_flow(self._core, model, samples, divergence, probes, seed, decode, options))

    async def diagnose(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        times: Sequence[float] | np.ndarray | None = None,
        seed: SupportsIndex | None = None,
        first_index: int | None = None,
        x0: Any = None,
        **options: Unpack[SolverOptions],
    ) -> DiagnoseResult:
        """Take the Jacobian along paths; arguments, result and errors as in `Client.diagnose`."""
        return await self._run(diagnose_flow(self._core, model, num_samples, times, seed, first_index, x0, options))


def encode_flow(
    core: Core, model: str, samples: Any, decode: bool | None, options: Mapping[str, Any]
) -> Flow[EncodeResult]:
    """Ask for the noise behind data."""
    return core.operate(_request("encode", model, {"samples": samples, "decode": decode}, options), _found.encoded)


def log_prob_flow(
    core: Core,
    model: str,
    samples: Any,
    divergence: str | None,
    probes: int | None,
    seed: SupportsIndex | None,
    decode: bool | None,
    options: Mapping[str, Any],
) -> Flow[LogProbResult]:
    """Ask for log-densities."""
    own = {"samples": samples, "divergence": divergence, "probes": probes, "seed": chosen_seed(seed), "decode": decode}
    return core.operate(_request("log_prob", model, own, options), _found.densities)


def diagnose_flow(
    core: Core,
    model: str,
    num_samples: int | None,
    times: Sequence[float] | np.ndarray | None,
    seed: SupportsIndex | None,
    first_index: int | None,
    x0: Any,
    options: Mapping[str, Any],
) -> Flow[DiagnoseResult]:
    """Ask for Jacobians along paths."""
    if num_samples is None and x0 is not None:
        num_samples = len(x0)
    own = {"num_samples": num_samples, "times": times, "seed": chosen_seed(seed), "first_index": first_index, "x0": x0}
    return core.operate(_request("diagnose", model, own, options), _found.diagnosis)


def _request(operation: str, model: str, own: Mapping[str, Any], options: Mapping[str, Any]) -> OperationRequest:
    fields = given({**own, **given(options, _ALLOWED)}, (*own, *_ALLOWED))
    return OperationRequest(model, operation, fields.get("timeout_s"), encoded(fields))
