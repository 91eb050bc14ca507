"""The running service: its parts, its start and stop, and whether it takes requests."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from starlette.requests import Request

from engine.engine import Engine
from models.messages import typed_line
from models.repository import RepositoryError
from service import VERSION as VERSION
from service.environment import environment
from service.errors import SHUTTING_DOWN, Kind, ProblemError
from service.http.context import context_of
from service.http.middleware import BurstLimiter
from service.ledger import CONDITIONS, Hold, Ledger
from service.metrics import Metrics
from service.registry.lease import Lease
from service.registry.registry import Registry
from service.settings import Settings, StartError

_RETRY_S = 2.0  # at start, while the repository cannot be read

_log = logging.getLogger("pathline")


@dataclass
class Service:
    """The parts of one application, and the stage of its life.

    Attributes:
        ledger: memory of the requests in progress.
        bodies: memory of the bodies being read.
        conditions: memory of the conditions of the requests in progress.
        kinds: kinds of recent requests, the oldest first; see `requests.validation`.
        parsing: held while a large body is parsed.
        started: whether it has been started.
        draining: whether it takes no more requests.
        failed: set when every model was tried and none can be served.
    """

    settings: Settings
    engine: Engine
    registry: Registry
    metrics: Metrics
    kinds: dict[Any, Any] = field(default_factory=dict)
    burst_limiter: BurstLimiter = field(default_factory=BurstLimiter)
    started: bool = False
    draining: bool = False
    failed: StartError | None = None
    parsing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    _watch: threading.Thread | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _logged_fault: str = ""

    def __post_init__(self) -> None:
        self.ledger, self.bodies = Ledger(self.settings.max_job_bytes), Ledger(self.settings.max_job_bytes)
        self.conditions = Ledger(self.settings.max_condition_bytes, purpose=CONDITIONS)

    def start(self, in_thread: bool = False, on_loaded: Callable[[], None] = lambda: None) -> None:
        """Start the engine and load the models; a second call does nothing.

        Args:
            in_thread: load in a thread and return at once. Each model answers as soon as it is loaded; `failed` is set
                if none can be.
            on_loaded: called when every model has been tried and at least one is served.

        Raises:
            StartError: there is nothing to serve.
        """
        if self.started:
            return
        self.engine.start()
        try:
            self.registry.open() if in_thread else self.registry.load_all()
        except BaseException:
            self.engine.stop()
            raise
        engine = self.engine
        self.metrics.watch(
            queue_depth=lambda: engine.queue_depth,
            work_seconds=lambda: engine.workload().seconds,
            active_jobs=lambda: engine.active_jobs,
            active_lanes=lambda: engine.active_lanes,
            job_bytes=lambda: self.ledger.reserved,
        )
        self.metrics.runs_on(str(engine.device), engine.device_name)
        self.started = True
        self._watch = threading.Thread(target=self._follow, args=(on_loaded,), name="pathline-watch", daemon=True)
        self._watch.start()

    def _follow(self, on_loaded: Callable[[], None]) -> None:
        """Try all models, and from then on follow the changes of the repository, until the service stops."""
        while not self.registry.complete:
            self._refresh()
            if self._stopping.wait(0.0 if self.registry.complete else _RETRY_S):
                return
        try:
            self.registry.check_any()
        except StartError as error:
            self.failed = error
            return
        on_loaded()
        while self.settings.watch_s and not self._stopping.wait(self.settings.watch_s):
            self._refresh()

    def _refresh(self) -> None:
        """Refresh the registry; a fault is logged once, until a refresh succeeds."""
        fault = ""
        try:
            self.registry.refresh()
        except Exception as error:
            fault = str(error) if isinstance(error, RepositoryError) else typed_line(error)
        if fault and fault != self._logged_fault:
            _log.error("looking for new models failed and is tried again, the loaded ones stay in use: %s", fault)
        self._logged_fault = fault

    def drain(self) -> None:
        """Refuse new requests; those in progress go on."""
        self.draining = True
        self.engine.drain()

    def stop(self) -> None:
        """Stop the engine, loading and the watch."""
        self.started = False
        self._stopping.set()
        self.registry.close()
        if self._watch is not None:
            self._watch.join()
        self.engine.stop()

    def reserve(self, size: int, deadline: float, conditions: int) -> Hold:
        """Reserve the memory of one request.

        Args:
            size: bytes of its states, steps and response.
            deadline: latest end of the request, in `time.monotonic`.
            conditions: bytes of its conditions.

        Raises:
            ProblemError: 413 or 429, see `Ledger.take`.
        """
        companion = self.conditions.take(conditions, deadline) if conditions else None
        try:
            hold = self.ledger.take(size, deadline)
        except ProblemError:
            if companion is not None:
                companion.release()
            raise
        hold.companion = companion
        return hold

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The environment that the bits of answers depend on."""
        return environment(str(self.engine.device), self.engine.device_name, self.engine.threads)

    def fault(self) -> tuple[Kind, str] | None:
        """Return why no request is taken now, or None."""
        if self.draining:
            return Kind.DRAINING, SHUTTING_DOWN
        if not self.started:
            return Kind.NOT_READY, "the models are being loaded; try again in a few seconds"
        fatal_fault = self.fatal_fault()
        return None if fatal_fault is None else (Kind.NOT_READY, fatal_fault)

    def fatal_fault(self) -> str | None:
        """Return why the process must be restarted, or None."""
        if self.started and not self.engine.alive:
            return "the engine has stopped; restart the service"
        if self.started and (spent := self.engine.turn_s) > (limit := self.settings.stall_s):
            return (
                f"a network call has not ended for {spent:.0f} s, the limit is {limit:g} s (PATHLINE_STALL_S); "
                "restart the service"
            )
        return None

    def unready(self) -> ProblemError | None:
        """Return why a balancer should send requests elsewhere: `fault`, or models that have not been tried yet.

        A balancer sends any request to any ready replica, so one loaded model is not enough. Models that are loaded
        answer all the same.
        """
        if (fault := self.fault()) is not None:
            return ProblemError(*fault)
        if self.registry.complete:
            return None
        ready, pending = dict(self.registry.current()), self.registry.pending()
        detail = f"models still to load: {len(pending)}, already answering: {len(ready)}; try again in a few seconds"
        return ProblemError(Kind.NOT_READY, detail, headers={"Retry-After": "2"}, models=ready, pending=pending)

    def lease(self, name: str, version: int | None, deadline: float | None = None) -> Awaitable[Lease]:
        """Return a lease of a model once it is loaded, see `Registry.lease`.

        Args:
            name: of the model.
            version: of the model, or None for the one that answers.
            deadline: end of the request's time limit, in `time.monotonic`; by default the usual limit from now.

        Raises:
            ProblemError: 503 while nothing can be served.
        """
        if self.draining or not self.started or not self.engine.alive or self.engine.turn_s > self.settings.stall_s:
            fault = self.fault()
            if fault is not None:
                raise ProblemError(*fault, retry_after_s=5)
        deadline = time.monotonic() + self.settings.timeout_s if deadline is None else deadline
        return self.registry.lease(name, version, deadline)


def service_of(request: Request) -> Service:
    """Return the service of a request."""
    return context_of(request.scope).service
