"""The asyncio client. `_calls` defines what each call sends and reads; this module moves the bytes and waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar

import httpx
import numpy as np

from pathline._answers import Replayable
from pathline._bar import Follow
from pathline._bulk import BulkArguments, BulkResult, Counts, begin, shown
from pathline._calls import Call, Do, Emit, Flow, Run, Wait, configured
from pathline._calls import headers as all_headers
from pathline._compare import CANDIDATES, Comparison, SolverLike, compare
from pathline._events import Event
from pathline._frontier import Frontier
from pathline._info import ModelInfo, ModelList, ServiceLoad, SolverInfo
from pathline._pools import GivenPool, OwnPools, Pools
from pathline._request import SampleOptions, SolverOptions, spelled_out
from pathline._response import Intake, Response, reading, sending
from pathline._results import DiagnoseResult, EncodeResult, LogProbResult, SampleResult
from pathline._retry import RetryPolicy
from pathline._route import Route, route_to
from pathline.errors import PathlineError, TransportError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class AsyncClient:
    """`Client` for asyncio. Use it in an ``async with`` block, or await `aclose`.

    A cancelled call closes its connection, and the service stops computing within one network call. A client may be
    used in several event loops, as in two calls of `asyncio.run`: each loop has its own connections, which are closed
    when the loop ends, at the latest.

    Args:
        base_url: As for `Client`.
        api_key: As for `Client`.
        timeout: As for `Client`.
        retry: As for `Client`.
        headers: As for `Client`.
        transport: As for `Client`; ``httpx.ASGITransport(app)`` runs a service in the same process.

    Raises:
        InvalidValue: As for `Client`.
        InvalidValue: The URL is not an http or https URL.
        InvalidValue: The key has characters that are not allowed in a header.
        TypeError: The URL or the key is not a string.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 10.0,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._calls = configured(base_url, timeout, retry)
        self._route = route_to(self._calls.url) if transport is None else Route()
        base, every = self._calls.url, all_headers(api_key, headers, self._calls.login)

        def through(transport: httpx.AsyncBaseTransport) -> httpx.AsyncClient:
            return httpx.AsyncClient(base_url=base, headers=every, transport=transport, trust_env=False)

        route = self._route
        self._pools: Pools = (
            OwnPools(lambda: through(route.async_transport())) if transport is None else GivenPool(through(transport))
        )

    def __repr__(self) -> str:
        return f"AsyncClient({self.base_url!r})"

    @property
    def base_url(self) -> str:
        """URL of the service."""
        return self._calls.url

    @spelled_out(SampleOptions)
    async def sample(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        progress: bool | Follow | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleResult:
        """Draw samples; arguments, result and errors as for `Client.sample`."""
        return await self._run(self._calls.sample(model, num_samples, options, progress))

    async def replay(
        self,
        answer: Replayable,
        *,
        force: bool = False,
        condition: Any = None,
        conditions: Mapping[str, Any] | None = None,
        negative: Mapping[str, Any] | None = None,
        x0: Any = None,
        timeout_s: float | None = None,
        priority: Literal["interactive", "bulk"] | None = None,
    ) -> SampleResult:
        """Reproduce the samples of an earlier response; arguments, result and errors as for `Client.replay`."""
        given = {
            "force": force or None,
            "condition": condition,
            "conditions": conditions,
            "negative": negative,
            "x0": x0,
        }
        return await self._run(self._calls.replay(answer, {**given, "timeout_s": timeout_s, "priority": priority}))

    @spelled_out(SampleOptions)
    def iter_samples(
        self,
        model: str,
        total: int,
        batch: int = 10_000,
        *,
        progress: bool | Follow | None = None,
        **options: Unpack[SampleOptions],
    ) -> AsyncIterator[SampleResult]:
        """Draw samples page by page (``async for``); arguments and errors as for `Client.iter_samples`."""
        return self._drive(Run(self._calls.pages(model, total, batch, options, progress)))

    async def bulk(
        self,
        model: str,
        total: int | None = None,
        *,
        to: str | PathLike[str],
        counts: Counts | None = None,
        format: Literal["npy", "parquet"] | None = None,  # noqa: A002 - as NumPy and pandas call it
        workers: int = 2,
        tries: int = 3,
        shard_rows: int | None = None,
        progress: bool | Follow | None = None,
        **options: Any,
    ) -> BulkResult:
        """Draw any number of samples into a folder; arguments, result and errors as for `Client.bulk`."""
        arguments = BulkArguments.of(model, total, counts, format, shard_rows, workers, tries, options)
        job = await self._run(begin(self._calls, to, arguments))
        with shown(progress) as tell:
            job.follow(tell)
            tasks = [asyncio.ensure_future(self._run(job.worker(tries))) for _ in range(workers)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return await self._run(job.result())

    @spelled_out(SampleOptions)
    def stream(
        self, model: str, num_samples: int | None = None, **options: Unpack[SampleOptions]
    ) -> AsyncGenerator[Event, None]:
        """Draw samples as a stream of events (``async for``); arguments, events and errors as for `Client.stream`."""
        return self._drive(Run(self._calls.stream(model, num_samples, options)))

    @spelled_out(SolverOptions)
    async def encode(
        self, model: str, samples: Any, *, decode: bool | None = None, **options: Unpack[SolverOptions]
    ) -> EncodeResult:
        """Find the noise behind data; arguments, result and errors as for `Client.encode`."""
        return await self._run(self._calls.encode(model, samples, decode, options))

    @spelled_out(SolverOptions)
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
        """Compute the log-density of data; arguments, result and errors as for `Client.log_prob`."""
        own = {"samples": samples, "divergence": divergence, "probes": probes, "seed": seed, "decode": decode}
        return await self._run(self._calls.log_prob(model, own, options))

    @spelled_out(SolverOptions)
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
        """Compute the Jacobian along paths; arguments, result and errors as for `Client.diagnose`."""
        own = {"num_samples": num_samples, "times": times, "seed": seed, "first_index": first_index, "x0": x0}
        return await self._run(self._calls.diagnose(model, own, options))

    async def models(self) -> ModelList:
        """Return the models that the service offers, and the entries of its repository that are not models."""
        return await self._run(self._calls.models())

    async def model(self, name: str) -> ModelInfo:
        """Return the service's description of one model."""
        return await self._run(self._calls.model(name))

    async def frontier(self, name: str, version: int | None = None) -> Frontier:
        """Return the cost and error of each solver on a model; arguments and errors as for `Client.frontier`."""
        return await self._run(self._calls.frontier(name, version))

    async def load(self) -> ServiceLoad:
        """Return how much work the service still has to do."""
        return await self._run(self._calls.load())

    async def solvers(self) -> list[SolverInfo]:
        """Return the solvers that the service offers."""
        return await self._run(self._calls.solvers())

    @spelled_out(SampleOptions)
    async def compare(
        self,
        model: str,
        solvers: Sequence[SolverLike] = CANDIDATES,
        num_samples: int = 256,
        *,
        reference: SolverLike | None = None,
        progress: bool | Callable[[int, int], None] | None = None,
        **options: Unpack[SampleOptions],
    ) -> Comparison:
        """Run several solvers on the same noise; arguments, result and errors as for `Client.compare`."""
        return await self._run(compare(self._calls, model, solvers, num_samples, options, reference, progress))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pools.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, flow: Flow[T]) -> T:
        run = Run(flow)
        async for _ in self._drive(run):
            pass
        return run.result

    async def _drive(self, run: Run[Any]) -> AsyncGenerator[Any, None]:
        """Perform the steps of a flow and yield the values that it emits."""
        outcome: Any = None
        opened: tuple[httpx.Response, AsyncIterator[bytes]] | None = None
        try:
            while (step := run.advance(outcome)) is not None:
                outcome = None
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    if isinstance(step, Wait):
                        await asyncio.sleep(step.seconds)
                    elif isinstance(step, Do):
                        outcome = await asyncio.to_thread(step.call)
                    elif isinstance(step, Call):
                        if opened is not None:  # a stream that is given up for another attempt
                            await opened[0].aclose()
                        opened, response = None, await self._send(step)
                        intake = Intake.of(response, step.timeout.read)
                        if step.stream and response.is_success:
                            opened = response, (intake.add(part) async for part in response.aiter_bytes())
                            outcome = Response.of(response, b"", self._route)
                        else:
                            outcome = await self._read(response, intake)
                    elif opened is not None:
                        with reading(self.base_url):
                            outcome = await anext(opened[1], None)
                except PathlineError as error:
                    outcome = error
        finally:
            if opened is not None:
                await opened[0].aclose()
            run.close()

    async def _send(self, call: Call) -> httpx.Response:
        http = await self._pools.here()
        request = http.build_request(
            call.method, call.path, headers=call.headers, content=call.content, timeout=call.timeout
        )
        try:
            with sending(self.base_url, self._route):
                return await http.send(request, stream=True)
        except RuntimeError as error:
            if self._pools.is_foreign():
                raise TransportError(
                    f"the transport of this client was used in another event loop and cannot be used in this one "
                    f"({error}); make one for each loop, or leave it out"
                ) from error
            raise

    async def _read(self, response: httpx.Response, intake: Intake) -> Response:
        try:
            with reading(self.base_url):
                content = b"".join([intake.add(part) async for part in response.aiter_bytes()])
                return Response.of(response, content, self._route)
        finally:
            await response.aclose()
