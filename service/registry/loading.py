"""Loading: one thread turns checkpoints into `ModelVersion`s, and requests wait for its loads."""

import asyncio
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

from models.architectures import PROGRAM
from models.checkpoint.card import CheckpointError, read_card
from models.checkpoint.loading import load
from models.compute import missing_instructions
from models.repository import Signature
from selection.frontier import FrontierFile
from service.errors import Kind, ProblemError, shutting_down
from service.ports import Engine
from service.registry.version import Lease, ModelVersion, PlansFile

_log = logging.getLogger("pathline")

MAX_LOADS = 64
"""Maximum number of loads (versions, operations or sizes of them) that requests wait for, shared by the models."""

T = TypeVar("T")


def load_version(
    engine: Engine,
    name: str,
    version: int,
    folder: Path,
    allow_programs: bool,
    signature: Signature = (),
    plans_signature: Signature = (),
    compute: Literal["auto", "float32"] = "auto",
) -> ModelVersion:
    """Load and verify a checkpoint and pass it to the engine.

    Args:
        engine: evaluates the network.
        name, version: name and version in requests.
        folder: the checkpoint.
        allow_programs: whether it may be an imported program.
        signature, plans_signature: signatures of card and weights, and of the tuned plans; they change with the files.
        compute: see `models.checkpoint.loading.load`.

    Raises:
        CheckpointError: the checkpoint is damaged, or a program where none is allowed. Errors of its network pass
            through.
    """
    if not allow_programs and read_card(folder).runs_programs:
        raise CheckpointError(f"{name}/{version}: is a program; set PATHLINE_ALLOW_PROGRAMS=true to serve it")
    checkpoint = load(folder, engine.device, compute)
    program = checkpoint.card.architecture.name == PROGRAM
    if slow := missing_instructions(str(checkpoint.half), engine.device, program):
        _log.warning("model %s version %d computes in %s: %s", name, version, checkpoint.half, slow)
    plans_file = PlansFile.read(name, version, folder, checkpoint.card.weights_sha256, plans_signature)
    loaded = engine.load(name, version, replace(checkpoint, plans=plans_file.plans))
    found = (loaded.deterministic, loaded.path, loaded.path_reason, loaded.row_limit)
    return ModelVersion.of(
        name,
        version,
        checkpoint,
        *found,
        signature,
        plans_file,
        lambda: engine.unload(loaded),
        FrontierFile(folder, checkpoint.card),
        partial(engine.pace, name, version),
    )


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


class Turns:
    """One thread that works through a queue for each model, a call of each in turn."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "pathline-loading")
        self._lock = threading.Lock()
        self._queues: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()

    def submit(self, name: str, call: Callable[[], T]) -> Future[T]:
        """Queue a call for a model; the future is cancelled if the thread is shut down."""
        future: Future[T] = Future()
        try:
            with self._lock:
                self._pool.submit(self._run_next)
                self._queues.setdefault(name, deque()).append((future, call))
        except RuntimeError:  # the thread was shut down
            future.cancel()
        return future

    def shutdown(self) -> None:
        """Start no more calls; a running one is not waited for."""
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


class Loads:
    """The loading thread and the loads that requests wait for; each is done once for all of them.

    Models take turns, so that a request for many versions or sizes of one delays another by one load only.

    Attributes:
        load_s: estimated seconds of a load.
    """

    def __init__(self) -> None:
        self._turns = Turns()
        self._waited_for: dict[Key, _Load] = {}  # used on the event loop
        self.load_s = 1.0

    def __len__(self) -> int:
        """Return the number of loads that requests wait for."""
        return len(self._waited_for)

    def close(self) -> None:
        """Start no more loads: waiting requests fail, and a running load is not waited for."""
        self._turns.shutdown()

    def run(self, name: str, call: Callable[[], T]) -> Future[T]:
        """Queue a call for a model in the thread; the future is cancelled if the thread is closed."""
        return self._turns.submit(name, call)

    async def once(
        self, key: Key, load: Callable[[], Lease], then: Callable[[Lease], T], deadline: float, late: str
    ) -> T:
        """Load something once for all requests that wait for it, and call `then` for each before its lease is returned.

        A running load continues if its requests give up; a queued one is dropped once no request waits.

        Args:
            key: equal for requests that wait for the same load; begins with the name of the model.
            load: called in the thread; returns a lease of the loaded version.
            then: called on the event loop for each waiting request.
            deadline: end of the wait, in `time.monotonic`.
            late: message of the problem at the deadline.

        Raises:
            ProblemError: 429 if too many loads are pending, 504 at the deadline, 503 at shutdown. Errors of `load` pass
                through.
        """
        awaited = self._waited_for.get(key) or self._begin(key, load)
        awaited.waiting += 1
        try:
            try:
                left_s = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
                async with asyncio.timeout(left_s):
                    await awaited.ended.wait()
            except TimeoutError:
                raise ProblemError(Kind.DEADLINE, late) from None
            if awaited.lease.cancelled():
                raise shutting_down()
            return then(awaited.lease.result())
        finally:
            awaited.waiting -= 1
            if not awaited.waiting:
                self._leave(key, awaited)

    def _begin(self, key: Key, load: Callable[[], Lease]) -> _Load:
        names = [name for name, *_ in self._waited_for]
        if (own := names.count(key[0])) >= MAX_LOADS / len({*names, key[0]}):
            wait = max(1, math.ceil(len(self) * self.load_s))
            detail = (
                f"{own} versions or sizes of model {key[0]!r} are already waiting to be loaded; try again in {wait} s"
            )
            raise ProblemError(Kind.OVERLOADED, detail, headers={"Retry-After": str(wait)}, retry_after_s=wait)
        begun = self._waited_for[key] = _Load(self.run(key[0], partial(self._timed, load)))
        loop = asyncio.get_running_loop()

        def tell(_: Future[Lease]) -> None:
            try:
                loop.call_soon_threadsafe(self._end, key, begun)
            except RuntimeError:  # the loop is closed, so no request waits
                begun.release()

        begun.lease.add_done_callback(tell)
        return begun

    def _timed(self, load: Callable[[], Lease]) -> Lease:
        begun = time.monotonic()
        lease = load()
        self.load_s += (time.monotonic() - begun - self.load_s) / 4
        return lease

    def _end(self, key: Key, load: _Load) -> None:
        self._forget(key, load)
        load.ended.set()
        if not load.waiting:
            load.release()

    def _leave(self, key: Key, load: _Load) -> None:
        """Drop a load that no request waits for any more."""
        if load.ended.is_set():
            load.release()
        elif load.lease.cancel():  # it had not started
            self._forget(key, load)

    def _forget(self, key: Key, load: _Load) -> None:
        if self._waited_for.get(key) is load:
            del self._waited_for[key]
