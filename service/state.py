"""What one running service consists of."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, ParamSpec, TypeVar

import torch
from starlette.requests import Request

from models.repository import RepositoryError
from service.engine.job import Draining, EngineFailed
from service.engine.operation import Operation
from service.errors import Kind, ProblemError, invalid
from service.http.burst import Turnstile
from service.http.context import Context, context_of
from service.ledger import Hold, Ledger, Take
from service.metrics import Metrics
from service.ports import Engine, Loaded
from service.registry.registry import Models
from service.registry.served import Served
from service.registry.watch import Watch
from service.requests.checks import deadline_of
from service.requests.schemas import Solving
from service.settings import Settings, StartError
from service.solving import problem_of

VERSION = "0.1.0"

MOST_LOADS = 64
"""Versions, or operations of them, that requests wait for at once; beyond it they are refused."""

_LOOK_AGAIN_S = 2.0  # at start, where the repository cannot be read

_log = logging.getLogger("pathline")

K = TypeVar("K")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class _Awaited(Generic[T]):
    """Something that is being loaded, and how many requests wait for it."""

    future: "asyncio.Future[T]"
    waiting: int = 0


@dataclass
class Service:
    """Settings, engine, models and metrics of one application; `started` and `draining` say where in its life it is.

    `failed` is set where nothing can be served after all models were tried.
    """

    settings: Settings
    engine: Engine
    models: Models
    metrics: Metrics
    ledger: Ledger
    bodies: Ledger
    turnstile: Turnstile = field(default_factory=Turnstile)
    started: bool = False
    draining: bool = False
    failed: StartError | None = None
    _parsing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    _watch: Watch | None = None
    _starter: threading.Thread | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _loading: dict[tuple[str, int | None], _Awaited[Served]] = field(default_factory=dict)
    _preparing: dict[tuple[str, int, Operation], _Awaited[Loaded]] = field(default_factory=dict)

    def start(self, beside: bool = False, on_loaded: Callable[[], None] = lambda: None) -> None:
        """Start the engine and load the models; a second call does nothing.

        Args:
            beside: load in a thread of its own and return at once. What is loaded answers already; `failed` tells if
                nothing can be.
            on_loaded: called once every model was tried and something is served.

        Raises:
            StartError: There is nothing to serve.
        """
        if self.started:
            return
        self.engine.start()
        try:
            self.models.open() if beside else self.models.load_all()
        except BaseException:
            self.engine.stop()
            raise
        engine = self.engine
        self.metrics.watch(
            lambda: engine.queue_depth,
            lambda: engine.active_jobs,
            lambda: engine.active_lanes,
            lambda: self.ledger.in_hand,
        )
        self.metrics.runs_on(str(engine.device), engine.device_name)
        self.started = True
        if not beside:
            self._loaded(on_loaded)
            return
        self._starter = threading.Thread(target=self._load_all, args=(on_loaded,), name="pathline-start", daemon=True)
        self._starter.start()

    def _load_all(self, on_loaded: Callable[[], None]) -> None:
        while not self.models.complete and not self._stopping.is_set():
            try:
                self.models.refresh()
            except Exception as error:
                said = str(error) if isinstance(error, RepositoryError) else f"{type(error).__name__}: {error}"
                _log.error("%s; the models are looked at again in %g s", said, _LOOK_AGAIN_S)
                self._stopping.wait(_LOOK_AGAIN_S)
        try:
            if not self._stopping.is_set():
                self.models.check_any()
                self._loaded(on_loaded)
        except StartError as error:
            self.failed = error

    def _loaded(self, on_loaded: Callable[[], None]) -> None:
        if self.settings.watch_s:
            self._watch = Watch(self.models.refresh, self.settings.watch_s)
        on_loaded()

    def drain(self) -> None:
        """Take no more requests; those that are here run on."""
        self.draining = True
        self.engine.drain()

    def stop(self) -> None:
        """Stop the engine, and what is being loaded."""
        self.started = False
        self._stopping.set()
        self.models.close()
        if self._starter is not None:
            self._starter.join()
        if self._watch is not None:
            self._watch.stop()
        self.engine.stop()

    def fault(self) -> tuple[Kind, str] | None:
        """Return why no request can be taken now, or None."""
        if self.draining:
            return Kind.DRAINING, "the service is shutting down; send the request to another instance"
        if not self.started:
            return Kind.NOT_READY, "the models are being loaded; try again in a few seconds"
        ailment = self.ailment()
        return None if ailment is None else (Kind.NOT_READY, ailment)

    def ailment(self) -> str | None:
        """Return why the process can no longer work and must be started again, or None."""
        if self.started and not self.engine.alive:
            return "the engine has stopped; restart the service"
        if self.started and (spent := self.engine.turn_s) > (most := self.settings.stall_s):
            return (
                f"a network call has not ended for {spent:.0f} s, the limit is {most:g} s (PATHLINE_STALL_S); "
                "restart the service"
            )
        return None

    def unready(self) -> ProblemError | None:
        """Return why requests should go elsewhere: `fault`, or models that were not tried yet.

        A balancer sends any request to whoever is ready, so one model alone does not make it so. What is loaded does
        answer those who ask.
        """
        fault = self.fault()
        if fault is not None:
            return ProblemError(*fault)
        if self.models.complete:
            return None
        ready, pending = dict(self.models.current()), self.models.pending()
        detail = f"models still to load: {len(pending)}, already answering: {len(ready)}; try again in a few seconds"
        return ProblemError(Kind.NOT_READY, detail, headers={"Retry-After": "2"}, models=ready, pending=pending)

    def taking(self, context: Context) -> Take:
        """Return what sets memory aside for a request until it is over."""

        def take(wanted: int, deadline: float) -> Hold:
            hold = self.ledger.take(wanted, deadline)
            context.keep(hold)
            return hold

        return take

    async def parse(self, large: bool, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Parse a body at once; a large one beside the event loop, after those that came before.

        Parsed lists take many times the memory of their text, and threads that parse would take those of answers.
        """
        if not large:
            return function(*arguments, **named)
        async with self._parsing:
            return await asyncio.to_thread(function, *arguments, **named)

    async def model(self, name: str, version: int | None, deadline: float | None = None) -> Served:
        """Return a model that can be asked now; one that is not in memory is loaded first, beside the event loop.

        Whoever holds what is returned can submit jobs for it, also when a newer version takes its place meanwhile.

        Args:
            name: of the model.
            version: of it, or None for the one that answers.
            deadline: when the time limit of the request passes, in `time.monotonic`; the usual limit where left out.

        Raises:
            ProblemError: 404 or 503, see `Models.find`; 503 while nothing can be served; 429 where too much is to be
                loaded already; 504 where loading takes longer than the request may.
        """
        fault = self.fault()
        if fault is not None:
            raise ProblemError(*fault, headers={"Retry-After": "5"}, retry_after_s=5)
        served = self.models.get(name, version)
        if served is not None:
            if version is None:
                self.models.look_soon(name)
            return served
        deadline = time.monotonic() + self.settings.timeout_s if deadline is None else deadline
        late = f"model {name!r} was still loading when timeout_s ended; try again, or raise timeout_s"
        return await self._once(self._loading, (name, version), deadline, late, self.models.find_now, name, version)

    async def _once(
        self,
        table: dict[K, _Awaited[T]],
        key: K,
        deadline: float,
        late: str,
        function: Callable[P, T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """Do something that takes time once for all who wait for it, in the thread that loads.

        It goes on when whoever waited gives up, but is not begun if nobody waits any more.

        Raises:
            ProblemError: 429 where too much waits already, 504 at the deadline, 503 at shutdown. What the function
                raises passes through.
        """
        if key not in table:
            self._check_room()
            future = asyncio.wrap_future(self.models.run(function, *arguments, **named))
            future.add_done_callback(lambda done: (table.pop(key, None), done.cancelled() or done.exception()))
            table[key] = _Awaited(future)
        awaited = table[key]
        awaited.waiting += 1
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await asyncio.wait([awaited.future])
        except TimeoutError:
            raise ProblemError(Kind.DEADLINE, late) from None
        finally:
            awaited.waiting -= 1
            if not awaited.waiting:
                awaited.future.cancel()  # without effect on what has begun
        if awaited.future.cancelled():
            raise problem_of(Draining())
        return awaited.future.result()

    def _check_room(self) -> None:
        waiting = len(self._loading) + len(self._preparing)
        if waiting >= MOST_LOADS:
            wait = max(1, math.ceil(waiting * self.models.load_s))
            detail = f"{waiting} model versions are already waiting to be loaded; try again in {wait} s"
            raise ProblemError(Kind.OVERLOADED, detail, headers={"Retry-After": str(wait)}, retry_after_s=wait)

    async def ready(self, model: Served, operation: Operation, deadline: float) -> Loaded:
        """Make an operation of a model ready, once for all who wait for it; most often it is already.

        Args:
            model: what `model` returned.
            operation: what will be asked of it.
            deadline: when the time limit of the request passes, in `time.monotonic`.

        Raises:
            ProblemError: 422 for a network that has no derivatives, 500 where memory does not suffice, 429, 503, 504.
        """
        found = self.engine.prepared(model.name, model.version, operation)
        if found is not None:
            return found
        late = f"preparing model {model.name!r} for the first time took longer than timeout_s; try again, or raise it"
        key = (model.name, model.version, operation)
        return await self._once(self._preparing, key, deadline, late, self._prepare, model, operation)

    def _prepare(self, model: Served, operation: Operation) -> Loaded:
        """Hold the model meanwhile, so that it is not unloaded."""
        try:
            return self.engine.prepare(model.name, model.version, operation)
        except Draining as error:
            raise problem_of(error) from None
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise problem_of(EngineFailed(str(error).partition("\n")[0])) from None
        except Exception as error:
            _log.exception("model %s version %d cannot be made ready for %s", model.name, model.version, operation)
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise invalid("name", f"the network of model {model.name!r} has no derivative to use: {said}") from None


def service_of(request: Request) -> Service:
    """Return the service that a request was sent to."""
    return request.app.state.service


async def model_of(request: Request, wish: Solving, name: str, version: int | None) -> Served:
    """Return the model that a request asks for within its time limit, and note in its context what answers.

    Raises:
        ProblemError: As `Service.model`.
    """
    service, context = service_of(request), context_of(request.scope)
    model = await service.model(name, version, deadline_of(wish, service.settings))
    context.model = model.name
    if version is None:
        context.fallback_from = service.models.fallback_from(model.name, model.version)
    return model
