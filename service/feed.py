"""From the engine's thread to one coroutine: the newest progress of a job, and word that it is done."""

import asyncio
import contextlib
from concurrent.futures import Future

from service.engine.job import JobResult, Progress


class Feed:
    """Holds the newest progress only, so that a client that reads slowly costs neither memory nor the engine's time.

    Made in the event loop in which it is read.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._newest: Progress | None = None
        self._told = False

    def put(self, progress: Progress) -> None:
        """Take a newer progress, from any thread; the one before is dropped if nobody has fetched it."""
        self._newest = progress
        self._tell()

    def watch(self, future: Future[JobResult]) -> None:
        """Wake the reader when the future is done."""
        future.add_done_callback(lambda _: self._tell())

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody reads
                self._loop.call_soon_threadsafe(self._news.set)

    async def wait(self, seconds: float) -> bool:
        """Wait for news; return False where none came in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def take(self) -> Progress | None:
        """Return the newest progress, once; None where there is none since the last call."""
        self._news.clear()
        self._told = False
        newest, self._newest = self._newest, None
        return newest
