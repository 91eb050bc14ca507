"""Connections of an asynchronous client: a pool for each event loop, closed when its loop ends.

Connections belong to the loop that opened them. A client that outlives a loop, such as one that is used in two calls of
`asyncio.run`, gets new connections in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Protocol

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


class Pools(Protocol):
    """Provides the httpx client to use."""

    async def here(self) -> httpx.AsyncClient:
        """Return the client of the running event loop."""
        ...

    def is_foreign(self) -> bool:
        """Whether the client may have connections of another loop."""
        ...

    async def aclose(self) -> None:
        """Close the connections; they cannot be used after that."""
        ...


class OwnPools:
    """A pool for each event loop.

    Args:
        make: Makes an httpx client with its own pool.
    """

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        self._closed = False

    async def here(self) -> httpx.AsyncClient:
        """Return the httpx client of the running loop.

        Raises:
            RuntimeError: The client was closed.
        """
        if self._closed:
            raise RuntimeError("this AsyncClient is closed; create another")
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None or pool.http.is_closed:
            for ended in [each for each in self._pools if each.is_closed()]:
                del self._pools[ended]
            pool = self._pools[loop] = _Pool(loop, self._make())
            await pool.hold()
        return pool.http

    def is_foreign(self) -> bool:
        """Return False, because each loop has its own client."""
        return False

    async def aclose(self) -> None:
        """Close the connections of this loop; those of other loops are closed when the loops end."""
        self._closed = True
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        self._pools.clear()
        if pool is not None:
            await pool.aclose()


class TransportPool:
    """A client on a transport of the user, which may or may not work in a second loop.

    Args:
        http: The client.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._loop: asyncio.AbstractEventLoop | None = None  # the first that used it

    async def here(self) -> httpx.AsyncClient:
        """Return the httpx client."""
        self._loop = self._loop or asyncio.get_running_loop()
        return self._http

    def is_foreign(self) -> bool:
        """Whether another loop used it first."""
        return self._loop not in (None, asyncio.get_running_loop())

    async def aclose(self) -> None:
        """Close the client."""
        # Connections of a loop that has ended cannot be closed in another one.
        with suppress(*([RuntimeError] if self.is_foreign() else [])):
            await self._http.aclose()
