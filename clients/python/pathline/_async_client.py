"""The asyncio client: it moves the bytes and waits. `_operations` lists what it can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from pathline._calls import configured
from pathline._calls import headers as all_headers
from pathline._flow import Call, Do, Emit, Flow, FlowRun, Together, Wait
from pathline._operations import Operations
from pathline._pools import Pools
from pathline._response import Intake, Response, reading, sending
from pathline._retry import RetryPolicy
from pathline._route import Route, route_to
from pathline.errors import PathlineError, TransportError

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class AsyncClient(Operations):
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

        def http() -> httpx.AsyncClient:
            pool = self._route.async_transport() if transport is None else transport
            return httpx.AsyncClient(base_url=base, headers=every, transport=pool, trust_env=False)

        self._pools = Pools(http, own=transport is None)

    def __repr__(self) -> str:
        return f"AsyncClient({self.base_url!r})"

    @property
    def base_url(self) -> str:
        """URL of the service."""
        return self._calls.url

    @staticmethod
    def _method(operation: Callable[..., Flow[Any]]) -> Callable[..., Any]:
        async def method(self: AsyncClient, *args: Any, **kwargs: Any) -> Any:
            return await self._run(operation(self._calls, *args, **kwargs))

        return method

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pools.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _together(self, step: Together) -> None:
        """Drive flows in tasks; if one fails or this is cancelled, the others are cancelled."""
        tasks = [asyncio.ensure_future(self._run(flow)) for flow in step.flows]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, flow: Flow[T]) -> T:
        run = FlowRun(flow)
        async for _ in self._drive(run):
            pass
        return run.result

    async def _drive(self, run: FlowRun[Any]) -> AsyncGenerator[Any, None]:
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
                    elif isinstance(step, Together):
                        await self._together(step)
                    elif isinstance(step, Call):
                        if opened is not None:  # a stream that is given up for another attempt
                            await opened[0].aclose()
                        opened, response = None, await self._send(step)
                        intake = Intake(response)
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
        http = await self._pools.http()
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
