"""Leases that requests hold on loaded versions, and the loads that they wait for.

    with registry.lease("moons") as model:
        model.event_shape

A version is unloaded when the registry has retired it and its last lease is back.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

from service.engine.job import Draining
from service.errors import Kind, ProblemError
from service.registry.version import Leases, ModelVersion
from service.solving import problem_of

MOST_LOADS = 64
"""Versions, or operations of them, that requests wait for at once; beyond it they are refused."""

_log = logging.getLogger("pathline")

P = ParamSpec("P")
T = TypeVar("T")


class Lessor(Protocol):
    """What fills leases: the registry."""

    def fill(self, lease: "Lease") -> bool:
        """Have a lease take a version that is in memory; False where it must be loaded first."""
        ...

    def load(self, lease: "Lease") -> None:
        """Have a lease take a version, loading it first; this takes time, so not on the event loop."""
        ...

    async def load_beside(self, lease: "Lease") -> None:
        """Do what `load` does beside the event loop, within the lease's deadline."""
        ...


class Lease:
    """The right to use one loaded version until it is returned; a request holds one until its response is out.

    Made empty by `Registry.lease`; `acquire`, ``with`` or ``async with`` fill it. `release` returns it, once however
    often it is called. A lease that is dropped without is logged, and its version stays in memory: no collector
    decides what is unloaded.

    Attributes:
        name, version: what is asked for; None for the version that answers.
        deadline: when loading has taken too long, in `time.monotonic`.
        model: the version that it holds.
        fallback_from: the version that should have answered but cannot be loaded; None as a rule.
    """

    __slots__ = ("_held", "_lessor", "deadline", "fallback_from", "model", "name", "version")
    model: ModelVersion

    def __init__(self, lessor: Lessor, name: str, version: int | None, deadline: float = math.inf) -> None:
        self._lessor, self.name, self.version, self.deadline = lessor, name, version, deadline
        self.fallback_from: int | None = None
        self._held: list[Leases] = []  # its pop is atomic

    async def acquire(self) -> ModelVersion:
        """Fill it, loading the version beside the event loop where it is not in memory.

        Raises:
            ProblemError: 404, 429, 503 or 504.
        """
        if not self._lessor.fill(self):
            await self._lessor.load_beside(self)
        return self.model

    def take(self, model: ModelVersion, fallback_from: int | None = None) -> bool:
        """Hold a version; False where it is unloaded already."""
        if not model.leases.take():
            return False
        self.model, self.fallback_from = model, fallback_from
        self._held.append(model.leases)
        return True

    def release(self) -> None:
        """Return it, from any thread."""
        try:
            leases = self._held.pop()
        except IndexError:
            return
        leases.give_back()

    def __enter__(self) -> ModelVersion:
        if not self._lessor.fill(self):
            self._lessor.load(self)
        return self.model

    def __exit__(self, *_: object) -> None:
        self.release()

    async def __aenter__(self) -> ModelVersion:
        return await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self._held:
            said = "a lease of model %s version %d was dropped without being returned; the version stays in memory"
            _log.error(said, self.model.name, self.model.version)


@dataclass
class _Load:
    """A load that requests wait for.

    Attributes:
        lease: what it ends with: a lease of its own, so that the version stays until those who wait have theirs.
        ended: set on the event loop.
        waiting: how many requests there are.
    """

    lease: Future[Lease]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0

    def release(self) -> None:
        """Return its lease, if it has got one."""
        if not self.lease.cancelled() and self.lease.exception() is None:
            self.lease.result().release()


class Loads:
    """The thread that loads, and what requests wait for in it: each load is done once for all of them.

    Attributes:
        load_s: seconds that a load takes, about.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "pathline-loading")
        self._waited_for: dict[Hashable, _Load] = {}  # of the event loop
        self.load_s = 1.0

    def __len__(self) -> int:
        """How many loads requests wait for."""
        return len(self._waited_for)

    def close(self) -> None:
        """Begin nothing more: those who wait are told, and what runs is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call something in the thread, after what is queued there already; cancelled where it is closed."""
        try:
            return self._pool.submit(function, *args, **kwargs)
        except RuntimeError:  # it was shut down
            cancelled: Future[T] = Future()
            cancelled.cancel()
            return cancelled

    async def once(
        self, key: Hashable, load: Callable[[], Lease], then: Callable[[Lease], T], deadline: float, late: str
    ) -> T:
        """Load something, once for all who wait for it, and let each of them do something before its lease is back.

        It goes on when whoever waited gives up, but is not begun if nobody waits any more.

        Args:
            key: says who waits for the same.
            load: done in the thread; returns a lease of what it loaded.
            then: done for each who waited, on the event loop.
            deadline: how long to wait, in `time.monotonic`.
            late: what to say then.

        Raises:
            ProblemError: 429 where too much is waited for already, 504 at the deadline, 503 at shutdown. What `load`
                raises passes through.
        """
        awaited = self._waited_for.get(key) or self._begin(key, load)
        awaited.waiting += 1
        try:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await awaited.ended.wait()
            except TimeoutError:
                raise ProblemError(Kind.DEADLINE, late) from None
            if awaited.lease.cancelled():
                raise problem_of(Draining())
            return then(awaited.lease.result())
        finally:
            awaited.waiting -= 1
            if not awaited.waiting:
                self._leave(key, awaited)

    def _begin(self, key: Hashable, load: Callable[[], Lease]) -> _Load:
        if len(self) >= MOST_LOADS:
            wait = max(1, math.ceil(len(self) * self.load_s))
            detail = f"{len(self)} model versions are already waiting to be loaded; try again in {wait} s"
            raise ProblemError(Kind.OVERLOADED, detail, headers={"Retry-After": str(wait)}, retry_after_s=wait)
        begun = self._waited_for[key] = _Load(self.run(load))
        loop = asyncio.get_running_loop()

        def tell(_: Future[Lease]) -> None:
            try:
                loop.call_soon_threadsafe(self._end, key, begun)
            except RuntimeError:  # the loop is closed, and nobody waits
                begun.release()

        begun.lease.add_done_callback(tell)
        return begun

    def _end(self, key: Hashable, load: _Load) -> None:
        self._forget(key, load)
        load.ended.set()
        if not load.waiting:
            load.release()

    def _leave(self, key: Hashable, load: _Load) -> None:
        """Nobody waits any more."""
        if load.ended.is_set():
            load.release()
        elif load.lease.cancel():  # it had not begun
            self._forget(key, load)

    def _forget(self, key: Hashable, load: _Load) -> None:
        if self._waited_for.get(key) is load:
            del self._waited_for[key]
