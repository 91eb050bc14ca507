"""The hub: starts the HTTP workers of a service, and gives them models, results, and answers to what they pass on.

The engine's process holds everything that exists once: the engine, the registry, the ledgers, the metrics. It accepts
no connections itself. A worker that ends is replaced; its jobs are cancelled, and what it held is released.
"""

import asyncio
import itertools
import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from starlette.types import ASGIApp

from service.engine.job import EngineFailed, Job, JobResult
from service.errors import REFUSALS, ProblemError
from service.ledger import Hold
from service.metrics import Counts, added
from service.registry.version import Lease, ModelVersion
from service.requests.sizes import kept_steps, logged_beyond
from service.state import Service
from service.workers.calls import Incoming
from service.workers.link import Arrays, Fields, Link, write_message
from service.workers.messages import can_serve, job_of, model_message, outcome_message, plan_of
from solvers.plan import Plan

_METRICS_S = 2.0  # for a worker to report its metrics, before its last report is used
_END_S = 5.0  # for a worker to end, beyond the time for responses being sent
_MAX_FAILED_STARTS = 5
_MAX_PLANS = 4096

_log = logging.getLogger("pathline")


class Hub:
    """The HTTP workers of one service; used on the event loop of the engine's process, except `spawn`.

    Args:
        app: answers the requests that workers pass on.
        service: the service.
        sockets: one for each worker, bound to the address of the service.

    Attributes:
        failed: whether workers cannot be started.
    """

    def __init__(self, app: ASGIApp, service: Service, sockets: Sequence[socket.socket]) -> None:
        self._app, self._service, self._sockets = app, service, sockets
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers: list[_Worker] = []
        self._past: Counts = {}  # metrics of workers that have ended
        self._failed_starts = 0
        self._start_again_at = 0.0
        self._state: tuple[bool, float] = (False, 0.0)
        self._closing = False
        self.failed = False

    def spawn(self) -> None:
        """Start the processes, which need seconds until they accept connections."""
        self._workers = [self._start(place) for place in range(len(self._sockets))]

    def _start(self, place: int) -> "_Worker":
        ours, theirs = socket.socketpair()
        listening = self._sockets[place].fileno()
        command = [sys.executable, "-m", "service.workers", str(theirs.fileno()), str(listening)]
        process = subprocess.Popen(  # noqa: S603  (our own module)
            command, pass_fds=(theirs.fileno(), listening), stdin=subprocess.DEVNULL
        )
        theirs.close()
        engine = self._service.engine
        facts = {"device": str(engine.device), "device_name": engine.device_name, "threads": engine.threads}
        write_message(ours, {"settings": self._service.settings.as_arguments(), "engine": facts})
        return _Worker(place, process, ours)

    async def open(self, tasks: set[asyncio.Task[None]]) -> None:
        """Connect the workers, and wait until all accept connections.

        Args:
            tasks: the server's tasks, which it waits for when it ends.
        """
        self._tasks = tasks
        loop = asyncio.get_running_loop()
        self._service.registry.watch(lambda: loop.call_soon_threadsafe(self._publish))
        self._service.worker_counts = self.counts
        for worker in self._workers:
            await self._connect(worker)

    async def _connect(self, worker: "_Worker") -> None:
        worker.open(self._service, self._app, self._tasks, self._publish)
        await asyncio.get_running_loop().create_unix_connection(lambda: worker.link, sock=worker.socket)

    @property
    def ready(self) -> bool:
        """Whether all workers accept connections."""
        return all(worker.ready for worker in self._workers)

    def _publish(self) -> None:
        """Bring the models of all workers up to date."""
        if self._closing:
            return
        wanted = [model for model in self._service.registry.answering() if can_serve(model)]
        for worker in self._workers:
            worker.set_models(wanted)

    def tick(self) -> None:
        """Replace workers that have ended, and tell all about a change of the service's state; called often."""
        service, now = self._service, time.monotonic()
        turn_s = service.engine.turn_s
        state = service.draining, turn_s if turn_s > service.settings.stall_s else 0.0
        if state != self._state:
            self._state = state
            for worker in self._workers:
                worker.tell_state(*state)
        for worker in self._workers:
            if worker.lost and not self._closing and now >= self._start_again_at:
                self._replace(worker, now)

    def _replace(self, worker: "_Worker", now: float) -> None:
        code = worker.end()
        self._past = added(self._past, worker.counts)
        self._failed_starts = 0 if worker.ready else self._failed_starts + 1
        self._start_again_at = now + self._failed_starts
        if self._failed_starts >= _MAX_FAILED_STARTS:
            _log.error("HTTP workers end before they are ready (exit code %s); the service ends", code)
            self.failed = True
            return
        _log.error("HTTP worker %d has ended with exit code %s; another one starts", worker.place, code)
        another = self._workers[worker.place] = self._start(worker.place)
        task = asyncio.ensure_future(self._connect(another))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def counts(self) -> list[Counts]:
        """Return the metrics that all workers have counted, those that have ended included."""
        await asyncio.gather(*(worker.ask_counts() for worker in self._workers if worker.ready and not worker.lost))
        return [self._past, *(worker.counts for worker in self._workers)]

    async def close(self, wait_s: float) -> None:
        """End all workers, which have `wait_s` seconds for responses being sent."""
        self._closing = True
        for worker in self._workers:
            worker.finish(wait_s)
        until = time.monotonic() + wait_s + _END_S
        while any(worker.process.poll() is None for worker in self._workers) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        for worker in self._workers:
            worker.end()


class _Worker:
    """One worker as the engine's process sees it."""

    def __init__(self, place: int, process: "subprocess.Popen[bytes]", link: socket.socket) -> None:
        self.place, self.process, self.socket = place, process, link
        self.ready = self.lost = False
        self.counts: Counts = {}
        self._numbers = itertools.count()
        self._models: dict[int, tuple[ModelVersion, Lease]] = {}
        self._given: dict[ModelVersion, int] = {}  # those not taken back
        self._plans: dict[tuple[int, str], Plan] = {}
        self._holds: dict[int, Hold] = {}
        self._jobs: dict[int, Future[JobResult]] = {}
        self._reports: list[asyncio.Future[None]] = []

    def open(
        self, service: Service, app: ASGIApp, tasks: set[asyncio.Task[None]], on_ready: Callable[[], object]
    ) -> None:
        """Make the link."""
        self._service, self._on_ready = service, on_ready
        self.link = Link(self._take, self._lose)
        self._incoming = Incoming(app, self.link, tasks)

    def _take(self, fields: Fields, arrays: Arrays) -> None:
        match fields["kind"]:
            case "job":
                self._take_job(fields, arrays)
            case "release":
                for number in fields["jobs"]:
                    if (hold := self._holds.pop(number, None)) is not None:
                        hold.release()
            case "cancel":
                if (future := self._jobs.get(fields["job"])) is not None:
                    self._service.engine.cancel(future)
            case "freed":
                _, lease = self._models.pop(fields["model"])
                self._plans = {key: plan for key, plan in self._plans.items() if key[0] != fields["model"]}
                lease.release()
            case "counts":
                self.counts = {(name, tuple(labels)): value for name, labels, value in fields["counts"]}
                for report in self._reports:
                    if not report.done():
                        report.set_result(None)
                self._reports.clear()
            case "ready":
                self.ready = True
                self._on_ready()
            case _:
                self._incoming.take(fields, arrays)

    # Models.

    def set_models(self, wanted: Sequence[ModelVersion]) -> None:
        """Give the worker the models that it lacks, and take back the others."""
        if not self.ready or self.lost:
            return
        for model, number in list(self._given.items()):
            if model not in wanted:
                del self._given[model]
                self.link.send({"kind": "drop", "model": number})
        for model in wanted:
            lease = self._service.registry.lease(model.name, model.version)
            if model in self._given or not lease.take(model):
                continue
            number = self._given[model] = next(self._numbers)
            self._models[number] = model, lease
            fields, arrays = model_message(model)
            self.link.send({"kind": "model", "model": number} | fields, arrays)

    # Jobs.

    def _take_job(self, fields: Fields, arrays: Arrays) -> None:
        number: int = fields["job"]
        try:
            job, hold = self._job_of(fields, arrays)
        except ProblemError as problem:
            self._send_outcome(number, problem)
            return
        self._holds[number] = hold
        try:
            future = self._jobs[number] = self._service.engine.submit(job)
        except Exception as error:
            if not isinstance(error, REFUSALS):
                _log.exception("a job of an HTTP worker could not be submitted")
            self._send_outcome(number, error)
            return
        hold.until(future)
        future.add_done_callback(partial(self._ended, number))

    def _job_of(self, fields: Fields, arrays: Arrays) -> tuple[Job, Hold]:
        """Return a job and the memory reserved for it.

        Raises:
            ProblemError: 413 or 429 from the ledgers; 503 if its model has changed.
        """
        service = self._service
        model, _ = self._models[fields["model"]]
        service.registry.touch(model)
        key = fields["model"], fields["spec"]
        if (plan := self._plans.get(key)) is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = plan_of(fields["spec"], model)
        hold = service.reserve(fields["bytes"], fields["deadline"], fields.get("condition_bytes", 0))
        logged = logged_beyond(hold, fields["n"] * kept_steps(plan, fields["trace"])) if plan.adaptive else None
        return job_of(fields, arrays, model, plan, logged), hold

    def _ended(self, number: int, future: Future[JobResult]) -> None:
        del self._jobs[number]
        if future.cancelled():
            self._send_outcome(number, None)
        else:
            error = future.exception()
            failed = error if isinstance(error, Exception) else None if error is None else EngineFailed(str(error))
            self._send_outcome(number, failed or future.result())

    def _send_outcome(self, number: int, outcome: JobResult | Exception | None) -> None:
        fields, arrays = outcome_message(outcome)
        self.link.send({"kind": "done", "job": number} | fields, arrays)

    # State, metrics and the end.

    def tell_state(self, draining: bool, turn_s: float) -> None:
        """Tell the worker whether the service drains, and how long the engine has hung; 0 if it does not."""
        if self.ready:
            self.link.send({"kind": "state", "draining": draining, "turn_s": turn_s})

    async def ask_counts(self) -> None:
        """Update `counts`, if the worker reports them in time."""
        report: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reports.append(report)
        self.link.send({"kind": "counts"})
        await asyncio.wait([report], timeout=_METRICS_S)

    def finish(self, wait_s: float) -> None:
        """Tell the worker to end."""
        if self.lost:
            return
        self.link.send({"kind": "finish", "wait_s": wait_s})

    def _lose(self) -> None:
        self.lost = True
        self._incoming.lose()
        for future in list(self._jobs.values()):
            self._service.engine.cancel(future)
        for hold in self._holds.values():
            hold.release()
        for _, lease in self._models.values():
            lease.release()
        for report in self._reports:
            if not report.done():
                report.set_result(None)

    def end(self) -> int | None:
        """Kill the process if it runs; return its exit code."""
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()
