"""Waiting for a job without holding the event loop, and turning the engine's exceptions into problems."""

import asyncio
import contextlib
import math
from concurrent.futures import Future

from starlette.types import Receive

from service.engine.job import DeadlineExceeded, Draining, EngineFailed, Job, JobResult, Overloaded
from service.errors import ClientGoneError, Kind, ProblemError
from service.ports import Engine


async def solve(engine: Engine, job: Job, receive: Receive) -> JobResult:
    """Submit a job and wait for its result, or for the client to leave; the body must have been read.

    Raises:
        ProblemError: 429, 503, 504 or 500, as the engine says.
        ClientGoneError: The client closed its connection; the job is given up.
    """
    try:
        return await _solve(engine, job, receive)
    except Overloaded as error:
        raise _overloaded(error) from None
    except Draining:
        detail = "the service is shutting down; send the request to another one"
        raise ProblemError(Kind.DRAINING, detail, headers={"Retry-After": "5"}, retry_after_s=5) from None
    except DeadlineExceeded:
        raise ProblemError(
            Kind.DEADLINE,
            "the samples were not done within timeout_s; raise it, ask for less, or set on_timeout to 'partial'",
        ) from None
    except EngineFailed as error:
        raise ProblemError(Kind.ENGINE, f"the engine failed on this request: {error}") from None


async def _solve(engine: Engine, job: Job, receive: Receive) -> JobResult:
    future = engine.submit(job)
    result = asyncio.wrap_future(future)
    result.add_done_callback(_look_at)
    gone = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait((result, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not result.done():  # the client left, or this request is being cancelled
            engine.cancel(future)
    if not result.done():
        raise ClientGoneError
    if result.cancelled():  # by the engine: its CancelledError must not look like ours
        raise EngineFailed("the job was given up")
    return result.result()


async def _until_disconnect(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


def _look_at(future: "asyncio.Future[JobResult] | Future[JobResult]") -> None:
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
