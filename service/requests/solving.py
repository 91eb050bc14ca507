"""Waiting for a job without holding the event loop, and turning the engine's exceptions into problems."""

import asyncio
import contextlib
import math
import time
from concurrent.futures import Future

from starlette.types import Receive

from service.engine.job import DeadlineExceeded, Draining, EngineFailed, Job, JobResult, Overloaded, Progress, TooSlow
from service.errors import ClientGoneError, Kind, ProblemError, invalid
from service.ledger import Hold
from service.ports import Engine

LATE_S = 5.0
"""The engine sees a deadline after the network call that runs; a partial answer is waited for that much longer."""

REFUSALS = (Overloaded, TooSlow, Draining, DeadlineExceeded, EngineFailed)


async def solve(engine: Engine, job: Job, receive: Receive, hold: Hold | None = None) -> JobResult:
    """Submit a job and wait for its result, or for the client to leave; the body must have been read.

    The memory of the `hold` is kept until the engine has let go of the job.

    Raises:
        ProblemError: 422, 429, 503, 504 or 500, as the engine says.
        ClientGoneError: The client closed its connection; the job is given up.
    """
    try:
        return await _solve(engine, job, receive, hold)
    except REFUSALS as error:
        raise problem_of(error) from None


def submit(engine: Engine, job: Job, hold: Hold | None = None) -> Future[JobResult]:
    """Submit a job; whoever waits for it must cancel it if the client leaves. For the `hold` see `solve`.

    Raises:
        ProblemError: 422, 429, 503 or 500, as the engine says.
    """
    try:
        future = engine.submit(job)
    except REFUSALS as error:
        raise problem_of(error) from None
    if hold is not None:
        hold.until(future)
    return future


def problem_of(error: Exception) -> ProblemError:
    """Return one of the engine's exceptions (`REFUSALS`) as a problem."""
    if isinstance(error, Overloaded):
        return _overloaded(error)
    if isinstance(error, TooSlow):
        detail = (
            f"timeout_s is too short: {error}; raise it, ask for fewer samples or steps, or set on_timeout to 'partial'"
        )
        return invalid("timeout_s", detail, needed_s=error.needed_s)
    if isinstance(error, Draining):
        detail = "the service is shutting down; send the request to another instance"
        return ProblemError(Kind.DRAINING, detail, headers={"Retry-After": "5"}, retry_after_s=5)
    if isinstance(error, DeadlineExceeded):
        detail = (
            "the samples could not be finished within timeout_s; raise it, ask for less, or set on_timeout to 'partial'"
        )
        return ProblemError(Kind.DEADLINE, detail)
    return ProblemError(Kind.ENGINE, f"the engine failed on this request: {error}")


async def _solve(engine: Engine, job: Job, receive: Receive, hold: Hold | None) -> JobResult:
    future = engine.submit(job)
    if hold is not None:
        hold.until(future)
    result = asyncio.wrap_future(future)
    result.add_done_callback(look_at)
    gone = asyncio.ensure_future(until_disconnect(receive))
    try:
        await asyncio.wait((result, gone), timeout=patience(job), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left = gone.done()
        gone.cancel()
        if not result.done():  # the client left, it is too late, or this request is being cancelled
            engine.cancel(future)
    if not result.done():
        raise ClientGoneError if left else DeadlineExceeded
    if result.cancelled():  # by the engine: its CancelledError must not look like ours
        raise EngineFailed("the job was given up")
    return result.result()


def patience(job: Job) -> float | None:
    """Return for how many seconds a job is waited for at most, whatever the engine does; None for any."""
    if job.deadline is None:
        return None
    return max(0.0, job.deadline + (LATE_S if job.partial else 0.0) - time.monotonic())


async def until_disconnect(receive: Receive) -> None:
    """Wait until the client has closed its connection."""
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


def look_at(future: "asyncio.Future[JobResult] | Future[JobResult]") -> None:
    """Retrieve the exception of a result that nobody waits for any more, so that none is logged as forgotten."""
    if not future.cancelled():
        future.exception()


def _overloaded(error: Overloaded) -> ProblemError:
    wait = max(1, math.ceil(error.retry_after_s))
    return ProblemError(
        Kind.OVERLOADED,
        f"{error.reason}; try again in {wait} s",
        headers={"Retry-After": str(wait)},
        retry_after_s=error.retry_after_s,
    )


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
