"""Connections of an asynchronous client: a pool for each event loop, closed when its loop ends.

Connections belong to the loop that opened them. A client that outlives a loop, such as one that is used in two calls of
`asyncio.run`, gets new connections in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import httpx

_open: dict[asyncio.AbstractEventLoop, set[_Pool]] = {}
"""The pools of each loop, kept alive until the loop ends, because a client may be gone by then."""


class _Pool:
    """An httpx client that is closed when its loop ends: the loop's asynchronous generators are closed then.

    Args:
        loop: The running loop.
        http: The client, not used yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, http: httpx.AsyncClient) -> None:
        self._loop, self.http = loop, http
        self._closer = self._close_at_the_end()
        self._ending = False

    async def hold(self) -> None:
        """Stay open until the loop ends."""
        for ended in [loop for loop in _open if loop.is_closed()]:
            del _open[ended]
        _open.setdefault(self._loop, set()).add(self)
        await self._closer.__anext__()

    async def aclose(self) -> None:
        """Close the client, unless it is being closed already."""
        if not self._ending:
            await self._closer.aclose()

    async def _close_at_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._ending = True
            _open[self._loop].discard(self)
            await self.http.aclose()


class Pools:
    """Provides the httpx client to use in an event loop.

    Args:
        make: Makes an httpx client with its own pool.
        own: Whether each loop gets one; else all share one on a transport of the user, which may or may not work in a
            second loop.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient], own: bool) -> None:
        self._make, self._shared = make, None if own else make()
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        self._first: asyncio.AbstractEventLoop | None = None  # the first loop that used the shared one
        self._closed = False

    async def http(self) -> httpx.AsyncClient:
        """Return the httpx client of the running loop.

        Raises:
            RuntimeError: The client was closed.
        """
        loop = asyncio.get_running_loop()
        if self._shared is not None:
            self._first = self._first or loop
            return self._shared
        if self._closed:
            raise RuntimeError("this AsyncClient is closed; create another")
        pool = self._pools.get(loop)
        if pool is None or pool.http.is_closed:
            for ended in [other for other in self._pools if other.is_closed()]:
                del self._pools[ended]
            pool = self._pools[loop] = _Pool(loop, self._make())
            await pool.hold()
        return pool.http

    def is_foreign(self) -> bool:
        """Whether the client may have connections of another loop."""
        return self._shared is not None and self._first not in (None, asyncio.get_running_loop())

    async def aclose(self) -> None:
        """Close the connections of this loop; those of other loops are closed when the loops end."""
        self._closed = True
        if self._shared is not None:
            # Connections of a loop that has ended cannot be closed in another one.
            with suppress(*([RuntimeError] if self.is_foreign() else [])):
                await self._shared.aclose()
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        self._pools.clear()
        if pool is not None:
            await pool.aclose()
