"""Connections of an asynchronous client: a pool for each event loop, closed when its loop ends.

Connections belong to the loop that opened them. A client that outlives a loop, as one that a script makes once and uses
in two calls of `asyncio.run`, gets new ones in the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Protocol

import httpx

_open: dict[asyncio.AbstractEventLoop, set[_Pool]] = {}
"""The pools of each loop; held here too: what closes them must live until the loop ends, a client need not."""


class _Pool:
    """An httpx client that is closed when its loop ends: whoever ends one lets its asynchronous generators finish.

    Args:
        loop: The loop, which runs.
        http: The client, not used yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, http: httpx.AsyncClient) -> None:
        self._loop, self.http = loop, http
        self._closer = self._close_at_the_end()
        self._ending = False

    async def hold(self) -> None:
        """Stay open until the loop ends."""
        for ended in [known for known in _open if known.is_closed()]:
            del _open[ended]
        _open.setdefault(self._loop, set()).add(self)
        await self._closer.__anext__()

    async def aclose(self) -> None:
        """Close it, unless it is being closed already."""
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
    """Gives the httpx client to use."""

    async def here(self) -> httpx.AsyncClient:
        """Return that of the running event loop."""
        ...

    def is_foreign(self) -> bool:
        """Whether what `here` gives may have connections of another loop."""
        ...

    async def aclose(self) -> None:
        """Close the connections; `here` gives nothing after that."""
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
            raise RuntimeError("this AsyncClient is closed; make another")
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None or pool.http.is_closed:
            for ended in [known for known in self._pools if known.is_closed()]:
                del self._pools[ended]
            pool = self._pools[loop] = _Pool(loop, self._make())
            await pool.hold()
        return pool.http

    def is_foreign(self) -> bool:
        """Return False: each loop has its own."""
        return False

    async def aclose(self) -> None:
        """Close the connections of this loop; those of others are closed when these end."""
        self._closed = True
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        self._pools.clear()
        if pool is not None:
            await pool.aclose()


class GivenPool:
    """The transport that the user gave; whether it can serve a second loop is up to it.

    Args:
        http: The client that uses it.
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
        """Close it."""
        # Connections of a loop that has ended cannot be closed in another one.
        with suppress(*([RuntimeError] if self.is_foreign() else [])):
            await self._http.aclose()
