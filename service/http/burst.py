"""Requests that come all at once begin a few at a time, so that /livez need not wait until all of them have begun.

The event loop runs whatever is ready before it looks at the network again. A hundred requests that arrive in one
moment, or a hundred answers that are due in one, would hold it for tens of milliseconds.
"""

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

WIDTH = 8
"""Each takes a fraction of a millisecond to be checked and refused or submitted, or to be answered."""


class Turnstile:
    """Lets `width` tasks on in each turn of the event loop, in the order they came."""

    def __init__(self, width: int = WIDTH) -> None:
        self._width = self._left = width
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # where the next turn is due

    async def enter(self) -> None:
        """Return at once, or in a later turn where this one has let on enough."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._left = loop, self._width
            self._waiting.clear()  # if there is anybody, then of a loop that has ended
            loop.call_soon(self._turn, loop)
        if self._left:
            self._left -= 1
            return
        let_on = loop.create_future()
        self._waiting.append(let_on)
        await let_on

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._width
        while self._left and self._waiting:
            let_on = self._waiting.popleft()
            if not let_on.done():  # otherwise its request was given up
                let_on.set_result(None)
                self._left -= 1
        if self._left < self._width:
            loop.call_soon(self._turn, loop)
        else:
            self._loop = None


class InTurn:
    """ASGI middleware: whoever wants something done (POST) enters through the turnstile, whoever looks does not."""

    def __init__(self, app: ASGIApp, turnstile: Turnstile) -> None:
        self._app, self._turnstile = app, turnstile

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http" and scope["method"] == "POST":
            await self._turnstile.enter()
        await self._app(scope, receive, send)
