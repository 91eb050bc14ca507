"""The loading thread: models take turns, and a load is done once for all requests that wait for it."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from service.errors import Kind, ProblemError, overloaded, shutting_down
from service.registry.lease import Lease

MAX_LOADS = 64
"""Maximum number of loads (versions, operations or sizes of them) that requests wait for, shared by the models."""

T = TypeVar("T")

Key = tuple[str, *tuple[Hashable, ...]]
"""What is loaded: the name of a model, and which part of it."""


@dataclass(eq=False)
class _Load:
    """A call in the thread, and the futures of those who wait for it; with a key, its result makes one for each."""

    name: str
    call: Callable[[], Any]
    waiting: list[Future[Any]]
    key: Key | None = None

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(future.cancelled() for future in self.waiting)

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Tell those who wait; what fails for one of them does not keep the others waiting."""
        for future in self.waiting:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if error is not None:
                    raise error
                future.set_result(result if self.key is None else result())
            except BaseException as failure:
                future.set_exception(failure)


class Loads:
    """One thread that makes one call at a time, the next one for the model that has waited longest for its turn.

    So a request for many versions or sizes of one model delays another by one load only.

    Attributes:
        closed: whether no more calls are started.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "pathline-loading")
        self._lock = threading.Lock()  # of all that follows
        self._queue: list[_Load] = []
        self._running: _Load | None = None
        self._turns: dict[str, float] = {}  # by model: when its last call began
        self._load_s = 1.0  # estimated seconds of a load
        self.closed = False

    def pending(self) -> list[_Load]:
        """Return the calls that are queued and waited for, and the running one."""
        queued = [load for load in self._queue if not load.abandoned]
        return queued if (running := self._running) is None else [*queued, running]

    def run(self, name: str, call: Callable[[], T]) -> Future[T]:
        """Queue a call for a model; its future has a 503 once the thread is closed."""
        future: Future[T] = Future()
        with self._lock:
            self._add(_Load(name, call, [future]))
        return future

    async def wait(self, key: Key, load: Callable[[], Callable[[], Any]], deadline: float, late: str) -> Any:
        """Load a version, or a part of it, once for all requests that wait for it.

        A running load continues if its requests give up; a queued one is dropped once no request waits.

        Args:
            key: equal for requests that wait for the same load; begins with the name of the model.
            load: called in the thread; returns what makes the result of each request, such as its lease, before
                anything is unloaded.
            deadline: end of the wait, in `time.monotonic`.
            late: message of the problem at the deadline.

        Raises:
            ProblemError: 429 if too many loads are pending, 504 at the deadline, 503 at shutdown. Errors of `load` pass
                through.
        """
        future = self._wait_for(key, load)
        try:
            async with asyncio.timeout(None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())):
                return await asyncio.wrap_future(future)
        except BaseException as error:
            if not future.cancel():  # its result has come, or is about to
                future.add_done_callback(_return)
            if isinstance(error, TimeoutError):
                raise ProblemError(Kind.DEADLINE, late) from None
            raise

    def _wait_for(self, key: Key, load: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            shared = {load.key: load for load in self.pending() if load.key is not None}
            if key in shared:
                shared[key].waiting.append(future)
                return future
            names = [name for name, *_ in shared]
            if (own := names.count(key[0])) >= MAX_LOADS / len({*names, key[0]}):
                reason = f"{own} versions or sizes of model {key[0]!r} are already waiting to be loaded"
                raise overloaded(reason, max(1, math.ceil(len(names) * self._load_s)))
            self._add(_Load(key[0], load, [future], key))
        return future

    def _add(self, load: _Load) -> None:
        try:
            self._pool.submit(self._run_next)
            self._queue.append(load)
        except RuntimeError:  # the thread was closed
            load.end(error=shutting_down())

    def close(self) -> None:
        """Start no more calls: waiting requests fail, and a running load is not waited for."""
        self.closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            queued, self._queue = self._queue, []
        for load in queued:
            load.end(error=shutting_down())

    def _run_next(self) -> None:
        begun, result, failure = time.monotonic(), None, None
        with self._lock:
            self._queue = self.pending()
            if not self._queue:
                return
            load = self._running = min(self._queue, key=lambda load: self._turns.get(load.name, 0.0))
            self._queue.remove(load)
            self._turns[load.name] = begun
        try:
            result = load.call()
        except BaseException as error:
            failure = error
        with self._lock:
            self._running = None
            if load.key is not None:
                self._load_s += (time.monotonic() - begun - self._load_s) / 4
        load.end(result, failure)


def _return(future: Future[Any]) -> None:
    """Return the lease of a request that has given up."""
    if future.exception() is None and isinstance(lease := future.result(), Lease):
        lease.release()
