"""How a client moves bytes and waits: by blocking, or on an event loop.

Both classes have the same coroutines, so that `_calls` describes each operation once. Those of `Blocking` never
suspend, and `run` completes what consists of them at once.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import httpx

from pathline.errors import TransportError

T = TypeVar("T")
Job = Coroutine[Any, Any, T]


class Blocking:
    """Blocks the thread."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    async def open(self, **request: Any) -> httpx.Response:
        """Send a request, given as httpx builds it; the body of the response is still to be read."""
        return self.http.send(self.http.build_request(**request), stream=True)

    async def parts(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yield the body of a response."""
        for part in response.iter_bytes():
            yield part

    async def close(self, response: httpx.Response) -> None:
        """Close a response, and its connection unless it was read to its end."""
        response.close()

    async def sleep(self, seconds: float) -> None:
        """Pause."""
        time.sleep(seconds)

    async def do(self, call: Callable[[], T]) -> T:
        """Call a function that reads or writes files."""
        return call()

    async def together(self, jobs: Sequence[Callable[[], Job[None]]], stop: Callable[[], None]) -> None:
        """Run jobs as `in_threads` does."""
        in_threads([lambda job=job: run(job()) for job in jobs], stop)


def in_threads(jobs: Sequence[Callable[[], object]], stop: Callable[[], None]) -> None:
    """Run jobs in threads; if one fails or waiting for them is interrupted, `stop` makes the others end soon."""
    errors: list[BaseException] = []  # the first is the cause; stopped jobs may fail, too
    ended: SimpleQueue[None] = SimpleQueue()

    def work(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)
            stop()
        finally:
            ended.put(None)

    try:
        for job in jobs:
            threading.Thread(target=work, args=(job,), name="pathline-bulk", daemon=True).start()
        for _ in jobs:
            ended.get()
    except BaseException:  # Ctrl-C, or no more threads; those that run are not waited for
        stop()
        raise
    if errors:
        raise errors[0]


def run(job: Job[T]) -> T:
    """Complete a coroutine whose only waiting is that of `Blocking`."""
    hooks = sys.get_asyncgen_hooks()
    try:
        sys.set_asyncgen_hooks(None, None)  # or a loop that runs in this thread would close generators as its own
        job.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        sys.set_asyncgen_hooks(*hooks)
    raise AssertionError("it was suspended")


def values(stream: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Yield what an asynchronous generator whose only waiting is that of `Blocking` yields."""

    async def following() -> T:
        return await stream.__anext__()

    try:
        while True:
            value = run(following())
            yield value
            del value  # a page of samples is freed before the next one arrives
    except StopAsyncIteration:
        return
    finally:
        run(stream.aclose())


_open: dict[asyncio.AbstractEventLoop, dict[httpx.AsyncClient, AsyncGenerator[None, None]]] = {}
"""The httpx clients of each loop and what closes them, kept alive until the loop ends: a client may be gone by then."""


async def _closer(loop: asyncio.AbstractEventLoop, http: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    """Wait to be closed, and close an httpx client then; a loop closes its asynchronous generators when it ends."""
    try:
        yield
    finally:
        del _open[loop][http]
        await http.aclose()


class Asynchronous:
    """Awaits, in any number of event loops.

    Connections belong to the loop that opened them, so each loop gets its own httpx client, closed when the loop ends.

    Args:
        make: Makes an httpx client with its own pool of connections.
        own: Whether each loop gets one; else all share one on a transport of the user, which may or may not work in a
            second loop.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient], own: bool) -> None:
        self._make, self._shared = make, None if own else make()
        self._of_loops: dict[asyncio.AbstractEventLoop, httpx.AsyncClient] = {}
        self._first: asyncio.AbstractEventLoop | None = None  # the first loop that used the shared one
        self._closed = False

    async def _http(self) -> httpx.AsyncClient:
        """Return the httpx client of the running loop; raise a RuntimeError if this was closed."""
        loop = asyncio.get_running_loop()
        if self._shared is not None:
            self._first = self._first or loop
            return self._shared
        if self._closed:
            raise RuntimeError("this AsyncClient is closed; create another")
        http = self._of_loops.get(loop)
        if http is None or http.is_closed:
            for loops in (self._of_loops, _open):
                for ended in [other for other in loops if other.is_closed()]:
                    del loops[ended]
            http = self._of_loops[loop] = self._make()
            closer = _open.setdefault(loop, {})[http] = _closer(loop, http)
            await closer.__anext__()
        return http

    def _is_foreign(self) -> bool:
        """Return whether the shared client may have connections of another loop."""
        return self._first not in (None, asyncio.get_running_loop())

    async def aclose(self) -> None:
        """Close the connections of this loop; those of other loops are closed when the loops end."""
        self._closed = True
        if self._shared is not None:
            # Connections of a loop that has ended cannot be closed in another one.
            with suppress(*([RuntimeError] if self._is_foreign() else [])):
                await self._shared.aclose()
        loop = asyncio.get_running_loop()
        http = self._of_loops.pop(loop, None)
        self._of_loops.clear()
        if http is not None and http in _open[loop]:  # else it is being closed already
            await _open[loop][http].aclose()

    async def open(self, **request: Any) -> httpx.Response:
        """Send a request, given as httpx builds it; the body of the response is still to be read."""
        http = await self._http()
        try:
            return await http.send(http.build_request(**request), stream=True)
        except RuntimeError as error:
            if self._is_foreign():
                raise TransportError(
                    f"the transport of this client was used in another event loop and cannot be used in this one "
                    f"({error}); make one for each loop, or leave it out"
                ) from error
            raise

    def parts(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield the body of a response."""
        return response.aiter_bytes()

    async def close(self, response: httpx.Response) -> None:
        """Close a response, and its connection unless it was read to its end."""
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        """Pause."""
        await asyncio.sleep(seconds)

    async def do(self, call: Callable[[], T]) -> T:
        """Call a function that reads or writes files, in a thread."""
        return await asyncio.to_thread(call)

    async def together(self, jobs: Sequence[Callable[[], Job[None]]], stop: Callable[[], None]) -> None:
        """Run jobs in tasks; if one fails or this is cancelled, the others are cancelled."""
        tasks = [asyncio.ensure_future(job()) for job in jobs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
