"""What one running service consists of."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

import torch
from starlette.requests import Request

from service.engine.job import Draining, EngineFailed
from service.engine.operation import Operation
from service.errors import Kind, ProblemError, invalid
from service.metrics import Metrics
from service.models import Models
from service.ports import Engine, Loaded
from service.served import Served
from service.settings import Settings
from service.solving import problem_of
from service.turnstile import Turnstile
from service.watch import Watch

VERSION = "0.1.0"

_log = logging.getLogger("pathline")


@dataclass
class Service:
    """Settings, engine, models and metrics of one application; `started` and `draining` say where in its life it is."""

    settings: Settings
    engine: Engine
    models: Models
    metrics: Metrics
    turnstile: Turnstile = field(default_factory=Turnstile)
    started: bool = False
    draining: bool = False
    _watch: Watch | None = None
    _loading: dict[tuple[str, int | None], "asyncio.Task[Served]"] = field(default_factory=dict)
    _preparing: dict[tuple[str, int, Operation], "asyncio.Task[Loaded]"] = field(default_factory=dict)

    def start(self) -> None:
        """Start the engine and load the models; a second call does nothing. This takes seconds.

        Raises:
            StartError: There is nothing to serve.
        """
        if self.started:
            return
        self.engine.start()
        try:
            self.models.load_all()
        except BaseException:
            self.engine.stop()
            raise
        engine = self.engine
        self.metrics.watch(lambda: engine.queue_depth, lambda: engine.active_jobs, lambda: engine.active_lanes)
        self.metrics.runs_on(str(engine.device), engine.device_name)
        if self.settings.watch_s:
            self._watch = Watch(self.models.refresh, self.settings.watch_s)
        self.started = True

    def drain(self) -> None:
        """Take no more requests; those that are here run on."""
        self.draining = True
        self.engine.drain()

    def stop(self) -> None:
        """Stop the engine."""
        self.started = False
        if self._watch is not None:
            self._watch.stop()
        self.engine.stop()

    def fault(self) -> tuple[Kind, str] | None:
        """Return why no request can be taken now, or None."""
        if self.draining:
            return Kind.DRAINING, "the service is shutting down; send the request to another one"
        if not self.started:
            return Kind.NOT_READY, "the models are being loaded; try again in a few seconds"
        ailment = self.ailment()
        return None if ailment is None else (Kind.NOT_READY, ailment)

    def ailment(self) -> str | None:
        """Return why the process can no longer work and must be started again, or None."""
        if self.started and not self.engine.alive:
            return "the engine has stopped; the service must be started again"
        if self.started and (spent := self.engine.turn_s) > (most := self.settings.stall_s):
            return (
                f"a network call has not ended for {spent:.0f} s, the limit is {most:g} (PATHLINE_STALL_S); "
                "the service must be started again"
            )
        return None

    async def model(self, name: str, version: int | None) -> Served:
        """Return a model that can be asked now; one that is not in memory is loaded first, beside the event loop.

        Whoever holds what is returned can submit jobs for it, also when a newer version takes its place meanwhile.

        Raises:
            ProblemError: 404 or 503, see `Models.find`; 503 while nothing can be served.
        """
        fault = self.fault()
        if fault is not None:
            raise ProblemError(*fault, headers={"Retry-After": "5"}, retry_after_s=5)
        served = self.models.get(name, version)
        return await self._load(name, version) if served is None else served

    async def _load(self, name: str, version: int | None) -> Served:
        """Load a version once for all who wait for it: each would take a thread of the pool."""
        key = (name, version)
        if key not in self._loading:
            task = asyncio.create_task(asyncio.to_thread(self.models.find, name, version))
            task.add_done_callback(lambda done: (self._loading.pop(key), done.cancelled() or done.exception()))
            self._loading[key] = task
        return await asyncio.shield(self._loading[key])

    async def ready(self, model: Served, operation: Operation, deadline: float) -> Loaded:
        """Make an operation of a model ready, once for all who wait for it; most often it is already.

        Args:
            model: what `model` returned.
            operation: what will be asked of it.
            deadline: when the time limit of the request passes, in `time.monotonic`.

        Raises:
            ProblemError: 422 for a network that has no derivatives, 500 where memory does not suffice, 503, 504.
        """
        found = self.engine.prepared(model.name, model.version, operation)
        if found is not None:
            return found
        key = (model.name, model.version, operation)
        if key not in self._preparing:
            task = asyncio.create_task(asyncio.to_thread(self._prepare, model, operation))
            task.add_done_callback(lambda done: (self._preparing.pop(key), done.cancelled() or done.exception()))
            self._preparing[key] = task
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await asyncio.shield(self._preparing[key])
        except TimeoutError:
            detail = f"model {model.name!r} was being made ready for this for the first time; ask again"
            raise ProblemError(Kind.DEADLINE, f"{detail}, or with a longer timeout_s") from None

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
