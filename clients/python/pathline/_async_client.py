"""The client for asyncio. All logic is in `_core`; it only moves bytes and waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, SupportsIndex, TypeVar

import httpx

from pathline._answer import Answer
from pathline._compare import CANDIDATES, Spec, compare
from pathline._comparison import Comparison
from pathline._core import Call, Flow, configured, resume
from pathline._core import headers as all_headers
from pathline._events import Event, Reader
from pathline._info import ModelInfo, ModelList, SolverInfo
from pathline._operations import AsyncOperations
from pathline._pools import GivenPool, OwnPools, Pools
from pathline._problems import reading, sending
from pathline._request import Pages, SampleOptions, common, sample_request
from pathline._result import SampleResult
from pathline._retry import RetryPolicy
from pathline._route import Route, route_to
from pathline.errors import PathlineError, TransportError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class AsyncClient(AsyncOperations):
    """`Client` for asyncio. Use it in an ``async with`` block, or await `aclose`.

    A cancelled call closes its connection, and the service stops computing within one network call. A client may be
    used in several event loops, as in two calls of `asyncio.run`: each has connections of its own, and they are closed
    when it ends, at the latest.

    Args:
        base_url: As for `Client`.
        api_key: As for `Client`.
        timeout: As for `Client`.
        retry: As for `Client`.
        headers: As for `Client`.
        transport: As for `Client`; ``httpx.ASGITransport(app)`` runs a service in the same process.

    Raises:
        InvalidEnvironment: As for `Client`.
        InvalidURL: The URL is no http or https URL.
        InvalidKey: The key has characters that no header can carry.
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
        self._core = configured(base_url, timeout, retry)
        self._route = route_to(self._core.url) if transport is None else Route()
        base, every = self._core.url, all_headers(api_key, headers)

        def through(transport: httpx.AsyncBaseTransport) -> httpx.AsyncClient:
            return httpx.AsyncClient(base_url=base, headers=every, transport=transport, trust_env=False)

        route = self._route
        self._pools: Pools = (
            OwnPools(lambda: through(route.async_transport())) if transport is None else GivenPool(through(transport))
        )

    @property
    def base_url(self) -> str:
        """URL of the service."""
        return self._core.url

    async def sample(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        solver: str | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        seed: SupportsIndex | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleResult:
        """Draw samples; arguments, result and errors as in `Client.sample`."""
        given = common(solver, steps, rtol, atol, options)
        return await self._run(self._core.sample(sample_request(model, num_samples, seed, given)))

    def iter_samples(
        self,
        model: str,
        total: int,
        batch: int = 10_000,
        *,
        solver: str | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        seed: SupportsIndex | None = None,
        **options: Unpack[SampleOptions],
    ) -> AsyncIterator[SampleResult]:
        """Draw samples page by page (``async for``); arguments and errors as in `Client.iter_samples`."""
        plan = Pages(model, total, batch, seed, common(solver, steps, rtol, atol, options))

        async def drawn() -> AsyncIterator[SampleResult]:
            for page in plan:
                result = await self._run(self._core.sample(page))
                plan.pin(result.version)
                yield result

        return drawn()

    def stream(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        solver: str | None = None,
        steps: int | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        seed: SupportsIndex | None = None,
        **options: Unpack[SampleOptions],
    ) -> AsyncGenerator[Event, None]:
        """Draw samples and follow them (``async for``); arguments, events and errors as in `Client.stream`."""
        request = sample_request(model, num_samples, seed, common(solver, steps, rtol, atol, options))

        async def events() -> AsyncGenerator[Event, None]:
            answer = await self._run(self._core.stream(request))
            assert answer.open is not None  # noqa: S101 - what a driver gives for an open stream
            reader = Reader(answer, request)
            try:
                with reading(self.base_url):
                    async for part in answer.open.aiter_bytes():
                        for event in reader.feed(part):
                            yield event
                reader.close()
            finally:
                await answer.open.aclose()

        return events()

    async def models(self) -> ModelList:
        """Return the models that the service offers, and what it passes over in its repository."""
        return await self._run(self._core.models())

    async def model(self, name: str) -> ModelInfo:
        """Return what the service says about one model."""
        return await self._run(self._core.model(name))

    async def solvers(self) -> list[SolverInfo]:
        """Return the solvers that the service offers."""
        return await self._run(self._core.solvers())

    async def compare(
        self,
        model: str,
        solvers: Sequence[Spec] = CANDIDATES,
        num_samples: int = 256,
        *,
        seed: SupportsIndex | None = None,
        steps: int = 20,
        reference: Spec | None = None,
        progress: Callable[[int, int], None] | None = None,
        **options: Unpack[SampleOptions],
    ) -> Comparison:
        """Run several solvers on the same noise; arguments, result and errors as in `Client.compare`."""
        flow = compare(self._core, model, solvers, num_samples, seed, steps, options, reference, progress)
        return await self._run(flow)

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
        outcome: Answer | PathlineError | None = None
        try:
            while True:
                step = resume(flow, outcome)
                try:
                    outcome = await (self._send(step) if isinstance(step, Call) else asyncio.sleep(step.seconds))
                except PathlineError as error:
                    outcome = error
        except StopIteration as stop:
            return stop.value

    async def _send(self, call: Call) -> Answer:
        http = await self._pools.here()
        request = http.build_request(
            call.method, call.path, headers=call.headers, content=call.content, timeout=call.timeout
        )
        try:
            with sending(self.base_url, self._route):
                response = await http.send(request, stream=True)
        except RuntimeError as error:
            if self._pools.is_foreign():
                raise TransportError(
                    f"the transport of this client was used in another event loop and cannot be in this one ({error}); "
                    "make one for each loop, or leave it out"
                ) from error
            raise
        if call.stream and response.is_success:
            return Answer.opened(response, self._route)
        try:
            with reading(self.base_url):
                content = b"".join([part async for part in response.aiter_bytes()])
                return Answer.of(response, content, self._route)
        finally:
            await response.aclose()
