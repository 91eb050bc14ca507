"""What one running service consists of."""

import asyncio
from dataclasses import dataclass

from starlette.requests import Request

from service.errors import Kind, ProblemError
from service.metrics import Metrics
from service.ports import Engine
from service.served import Served
from service.settings import Settings
from service.shelf import Models


@dataclass
class Service:
    """Settings, engine, models and metrics of one application; `started` and `draining` say where in its life it is."""

    settings: Settings
    engine: Engine
    models: Models
    metrics: Metrics
    started: bool = False
    draining: bool = False

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
        for served in self.models.served():
            self.metrics.model_loaded.labels(served.name, str(served.version)).set(1)
        self.started = True

    def drain(self) -> None:
        """Take no more requests; those that are here run on."""
        self.draining = True
        self.engine.drain()

    def stop(self) -> None:
        """Stop the engine."""
        self.started = False
        self.engine.stop()

    def fault(self) -> tuple[Kind, str] | None:
        """Return why no request can be taken now, or None."""
        if self.draining:
            return Kind.DRAINING, "the service is shutting down; send the request to another one"
        if not self.started:
            return Kind.NOT_READY, "the models are being loaded; try again in a few seconds"
        if not self.engine.alive:
            return Kind.NOT_READY, "the engine has stopped; the service must be started again"
        return None

    async def model(self, name: str, version: int | None) -> Served:
        """Return a model that can be asked now; an older version is loaded on first use, beside the event loop.

        Raises:
            ProblemError: 404 or 503, see `Models.find`; 503 while nothing can be served.
        """
        fault = self.fault()
        if fault is not None:
            raise ProblemError(*fault, headers={"Retry-After": "5"}, retry_after_s=5)
        try:
            return self.models.get(name, version)
        except ProblemError as problem:
            if problem.kind is not Kind.UNKNOWN_VERSION:
                raise
        served = await asyncio.to_thread(self.models.find, name, version)
        self.metrics.model_loaded.labels(served.name, str(served.version)).set(1)
        return served


def service_of(request: Request) -> Service:
    """Return the service that a request was sent to."""
    return request.app.state.service
