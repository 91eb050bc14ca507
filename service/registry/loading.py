"""The loading thread: models take turns, and a load is done once for all requests that wait for it."""

import asyncio
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from service.errors import Kind, ProblemError, shutting_down
from service.registry.lease import Lease
from service.registry.version import ModelVersion

MAX_LOADS = 64
"""Maximum number of loads (versions, operations or sizes of them) that requests wait for, shared by the models."""

T = TypeVar("T")

Key = tuple[str, *tuple[Hashable, ...]]
"""What is loaded: the name of a model, and which part of it."""


@dataclass
class _Load:
    """A load that requests wait for.

    Attributes:
        lease: its result, an extra lease that keeps the version until every waiting request has its own.
        ended: set on the event loop.
        waiting: number of waiting requests.
    """

    lease: Future[Lease]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    def release(self) -> None:
        """Return its lease, if it has one."""
        if not self.lease.cancelled() and self.lease.exception() is None:
            self.lease.result().release()


class Loads:
    """One thread that works through a queue for each model, a call of each in turn.

    So a request for many versions or sizes of one model delays another by one load only.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "pathline-loading")
        self._lock = threading.Lock()
        self._queues: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._shared: dict[Key, _Load] = {}  # used on the event loop
        self._load_s = 1.0  # estimated seconds of a load

    def __len__(self) -> int:
        """Return the number of loads that requests wait for."""
        return len(self._shared)

    def run(self, name: str, call: Callable[[], T]) -> Future[T]:
        """Queue a call for a model in the thread; the future is cancelled if the thread is closed."""
        future: Future[T] = Future()
        try:
            with self._lock:
                self._pool.submit(self._run_next)
                self._queues.setdefault(name, deque()).append((future, call))
        except RuntimeError:  # the thread was closed
            future.cancel()
        return future

    def close(self) -> None:
        """Start no more calls: waiting requests fail, and a running load is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            queues, self._queues = self._queues, OrderedDict()
        for future, _ in chain.from_iterable(queues.values()):
            future.cancel()

    def _run_next(self) -> None:
        with self._lock:
            if not self._queues:
                return
            name, queue = self._queues.popitem(last=False)
            future, call = queue.popleft()
            if queue:
                self._queues[name] = queue  # behind the others
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    @asynccontextmanager
    async def once(
        self, key: Key, load: Callable[[], Lease], deadline: float, late: str
    ) -> AsyncIterator[ModelVersion]:
        """Load a version, or a part of it, once for all requests that wait for it; it stays in memory for the block.

        A running load continues if its requests give up; a queued one is dropped once no request waits.

        Args:
            key: equal for requests that wait for the same load; begins with the name of the model.
            load: called in the thread; returns a lease of the loaded version.
            deadline: end of the wait, in `time.monotonic`.
            late: message of the problem at the deadline.

        Raises:
            ProblemError: 429 if too many loads are pending, 504 at the deadline, 503 at shutdown. Errors of `load` pass
                through.
        """
        shared = self._shared.get(key) or self._begin(key, load)
        shared.waiting += 1
        try:
            try:
                async with asyncio.timeout(None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())):
                    await shared.ended.wait()
            except TimeoutError:
                raise ProblemError(Kind.DEADLINE, late) from None
            if shared.lease.cancelled():
                raise shutting_down()
            yield shared.lease.result().model
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                if shared.ended.is_set():
                    shared.release()
                elif shared.lease.cancel():  # it had not started, and no request waits for it any more
                    self._forget(key, shared)

    def _begin(self, key: Key, load: Callable[[], Lease]) -> _Load:
        names = [name for name, *_ in self._shared]
        if (own := names.count(key[0])) >= MAX_LOADS / len({*names, key[0]}):
            wait = max(1, math.ceil(len(self) * self._load_s))
            detail = (
                f"{own} versions or sizes of model {key[0]!r} are already waiting to be loaded; try again in {wait} s"
            )
            raise ProblemError(Kind.OVERLOADED, detail, retry_after_s=wait)

        def timed() -> Lease:
            begun = time.monotonic()
            lease = load()
            self._load_s += (time.monotonic() - begun - self._load_s) / 4
            return lease

        shared = self._shared[key] = _Load(self.run(key[0], timed))
        loop = asyncio.get_running_loop()

        def end() -> None:
            self._forget(key, shared)
            shared.ended.set()
            if not shared.waiting:
                shared.release()

        def tell(_: Future[Lease]) -> None:
            try:
                loop.call_soon_threadsafe(end)
            except RuntimeError:  # the loop is closed, so no request waits
                shared.release()

        shared.lease.add_done_callback(tell)
        return shared

    def _forget(self, key: Key, load: _Load) -> None:
        if self._shared.get(key) is load:
            del self._shared[key]
