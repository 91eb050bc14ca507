"""The loading thread: models take turns, and a load is done once for all requests that wait for it."""

import asyncio
import math
import threading
import time
from collections import OrderedDict, deque
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

    call: Callable[[], Any]
    waiting: list[Future[Any]]
    key: Key | None = None
    started: bool = False

    @property
    def abandoned(self) -> bool:
        """Whether it has not started and nobody waits for it any more."""
        return not self.started and all(future.cancelled() for future in self.waiting)

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
    """One thread that works through a queue for each model, a call of each in turn.

    So a request for many versions or sizes of one model delays another by one load only.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "pathline-loading")
        self._lock = threading.Lock()  # of all that follows
        self._queues: OrderedDict[str, deque[_Load]] = OrderedDict()
        self._shared: dict[Key, _Load] = {}  # queued or running
        self._load_s = 1.0  # estimated seconds of a load

    def waiting(self) -> list[Key]:
        """Return the loads that requests wait for."""
        with self._lock:
            self._shared = {key: load for key, load in self._shared.items() if not load.abandoned}
            return list(self._shared)

    def run(self, name: str, call: Callable[[], T]) -> Future[T]:
        """Queue a call for a model; its future has a 503 once the thread is closed."""
        future: Future[T] = Future()
        with self._lock:
            self._add(name, _Load(call, [future]))
        return future

    async def lease(self, key: Key, load: Callable[[], Callable[[], Lease | None]], deadline: float, late: str) -> Any:
        """Load a version, or a part of it, once for all requests that wait for it.

        A running load continues if its requests give up; a queued one is dropped once no request waits.

        Args:
            key: equal for requests that wait for the same load; begins with the name of the model.
            load: called in the thread; returns what makes a lease for each request, before anything is unloaded.
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
            if not future.cancel():  # its lease has come, or is about to
                future.add_done_callback(_return)
            if isinstance(error, TimeoutError):
                raise ProblemError(Kind.DEADLINE, late) from None
            raise

    def _wait_for(self, key: Key, load: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        names = [name for name, *_ in self.waiting()]
        with self._lock:
            if key in self._shared:
                self._shared[key].waiting.append(future)
                return future
            if (own := names.count(key[0])) >= MAX_LOADS / len({*names, key[0]}):
                reason = f"{own} versions or sizes of model {key[0]!r} are already waiting to be loaded"
                raise overloaded(reason, max(1, math.ceil(len(names) * self._load_s)))
            self._add(key[0], _Load(load, [future], key))
        return future

    def _add(self, name: str, load: _Load) -> None:
        try:
            self._pool.submit(self._run_next)
        except RuntimeError:  # the thread was closed
            load.end(error=shutting_down())
            return
        self._queues.setdefault(name, deque()).append(load)
        if load.key is not None:
            self._shared[load.key] = load

    def close(self) -> None:
        """Start no more calls: waiting requests fail, and a running load is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            queued = [load for queue in self._queues.values() for load in queue]
            self._queues.clear()
            self._shared = {key: load for key, load in self._shared.items() if load.started}
        for load in queued:
            load.end(error=shutting_down())

    def _run_next(self) -> None:
        with self._lock:
            if not self._queues:
                return
            name, queue = self._queues.popitem(last=False)
            load = queue.popleft()
            if queue:
                self._queues[name] = queue  # behind the others
            if load.abandoned:
                return
            load.started = True
        begun, result, failure = time.monotonic(), None, None
        try:
            result = load.call()
        except BaseException as error:
            failure = error
        with self._lock:
            if load.key is not None:
                del self._shared[load.key]
                self._load_s += (time.monotonic() - begun - self._load_s) / 4
        load.end(result, failure)


def _return(future: Future[Lease | None]) -> None:
    """Return the lease of a request that has given up."""
    if future.exception() is None and (lease := future.result()) is not None:
        lease.release()
