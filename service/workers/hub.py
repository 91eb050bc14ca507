"""The hub: starts the HTTP workers of a service, and gives them models, results, and answers to what they pass on.

The engine's process holds everything that exists once: the engine, the registry, the ledgers, the metrics. It accepts
no connections itself. A worker that ends is replaced; its jobs are cancelled, and what it held is released.
"""

import asyncio
import itertools
import logging
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from starlette.types import ASGIApp

from service.engine.job import Job, JobResult, Outcome, Overloaded
from service.engine.job_table import Outcomes
from service.errors import REFUSALS, ProblemError
from service.ledger import Hold
from service.metrics import Counts, added
from service.registry.version import Lease, ModelVersion
from service.requests.sizes import kept_steps, logged_beyond
from service.state import Service
from service.workers.calls import Incoming
from service.workers.link import Arrays, Channel, Fields, Link, encoded, write_message
from service.workers.messages import can_serve, job_of, model_message, outcome_message, plan_of
from solvers.plan import Plan

_TICK_S = 0.1  # between two calls of `tick`
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
        self._closing = False
        self.failed = False

    def spawn(self) -> None:
        """Start the processes, which need seconds until they accept connections."""
        self._workers = [self._start(place) for place in range(len(self._sockets))]

    def _start(self, place: int) -> "_Worker":
        """Start one process.

        Raises:
            OSError: the system refuses.
        """
        (ours, theirs), (our_jobs, their_jobs) = socket.socketpair(), socket.socketpair()
        given = [each.fileno() for each in (theirs, their_jobs, self._sockets[place])]
        command = [sys.executable, "-m", "service.workers", *map(str, given)]
        try:
            process = subprocess.Popen(  # noqa: S603  (our own module)
                command,
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                process_group=0,  # a terminal's Ctrl-C is not for it
            )
        except OSError:
            ours.close()
            our_jobs.close()
            raise
        finally:
            theirs.close()
            their_jobs.close()
        engine, settings = self._service.engine, self._service.settings
        connections = math.ceil(settings.max_connections / len(self._sockets))
        facts = {"device": str(engine.device), "device_name": engine.device_name, "threads": engine.threads}
        write_message(ours, {"settings": settings.as_arguments() | {"max_connections": connections}, "engine": facts})
        return _Worker(place, process, ours, our_jobs)

    async def open(self, tasks: set[asyncio.Task[None]]) -> None:
        """Connect the workers.

        Args:
            tasks: the server's tasks, which it waits for when it ends.
        """
        self._tasks = tasks
        loop = asyncio.get_running_loop()
        self._service.engine.deliver_on(loop, deliver_jobs)
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
        """Tell the workers the state of the service, and replace those that have ended; called often."""
        service, now = self._service, time.monotonic()
        for worker in self._workers:
            worker.tell_state(service.draining, service.engine.turn_s)
            if worker.silent_s > service.settings.stall_s and not worker.lost:
                _log.error("HTTP worker %d has been silent for %.0f s and is killed", worker.place, worker.silent_s)
                worker.end()
            if worker.lost and not self._closing and now >= self._start_again_at:
                self._replace(worker, now)

    def _replace(self, worker: "_Worker", now: float) -> None:
        code = worker.end()
        self._past, worker.counts = added(self._past, worker.counts), {}
        self._failed_starts = 0 if worker.ready else self._failed_starts + 1
        self._start_again_at = now + self._failed_starts
        if self._failed_starts >= _MAX_FAILED_STARTS:
            if not self.failed:
                _log.error("HTTP workers end before they are ready (exit code %s); the service ends", code)
            self.failed = True
            return
        _log.error("HTTP worker %d has ended with exit code %s; another one starts", worker.place, code)
        try:
            another = self._workers[worker.place] = self._start(worker.place)
        except OSError as error:
            worker.ready = False  # the next try counts as a failed start
            _log.error("HTTP worker %d cannot be started: %s", worker.place, error)
            return
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


class _Job(Future[JobResult]):
    """A worker's job. It is never completed: its outcome is sent to the worker, and nothing here waits for it."""

    def __init__(self, worker: "_Worker", number: int) -> None:
        super().__init__()
        self.worker, self.number = worker, number


def deliver_jobs(outcomes: Outcomes) -> Outcomes:
    """Send the outcomes of the workers' jobs, each worker all at once; return the other outcomes."""
    parts: dict[_Worker, list[bytes]] = {}
    others: Outcomes = []
    for future, outcome in outcomes:
        if isinstance(future, _Job):
            parts.setdefault(future.worker, []).extend(future.worker.outcome(future.number, outcome))
        else:
            others.append((future, outcome))
    for worker, messages in parts.items():
        worker.channel.send(messages)
    return others


class _Worker:
    """One worker as the engine's process sees it.

    Its jobs are taken in the thread of its channel and answered in the engine's; the rest is for the event loop.
    """

    def __init__(self, place: int, process: "subprocess.Popen[bytes]", link: socket.socket, jobs: socket.socket):
        self.place, self.process, self.socket, self._job_socket = place, process, link, jobs
        self.ready = self.lost = False
        self.counts: Counts = {}
        self._numbers = itertools.count()
        self._models: dict[int, tuple[ModelVersion, Lease]] = {}
        self._given: dict[ModelVersion, int] = {}  # those not taken back
        self._plans: dict[tuple[int, str], Plan] = {}
        self._holds: dict[int, Hold] = {}
        self._jobs: dict[int, _Job] = {}
        self._over: set[int] = set()  # jobs whose requests are over before they have ended here
        self._reports: list[asyncio.Future[None]] = []
        self._unanswered = 0

    @property
    def silent_s(self) -> float:
        """Seconds for which the worker has not answered, while this process was running."""
        return self._unanswered * _TICK_S

    def open(
        self, service: Service, app: ASGIApp, tasks: set[asyncio.Task[None]], on_ready: Callable[[], object]
    ) -> None:
        """Make the links."""
        self._service, self._on_ready = service, on_ready
        self.link = Link(self._take, self._lose)
        self.channel = Channel(self._job_socket, self._take_job_message, asyncio.get_running_loop())
        self._incoming = Incoming(app, self.link, tasks)

    def _take(self, fields: Fields, arrays: Arrays) -> None:
        match fields["kind"]:
            case "freed":
                _, lease = self._models.pop(fields["model"])
                self._plans = {key: plan for key, plan in self._plans.items() if key[0] != fields["model"]}
                lease.release()
            case "counts":
                self.counts = {
                    (name, tuple((label, text) for label, text in labels)): value
                    for name, labels, value in fields["counts"]
                }
                self._end_reports()
            case "alive":
                self._unanswered = 0
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

    # Jobs: in the channel's thread, except `outcome`.

    def _take_job_message(self, fields: Fields, arrays: Arrays) -> None:
        match fields["kind"]:
            case "job":
                self._take_job(fields, arrays)
            case "release":
                for number in fields["jobs"]:
                    self._over.add(number)
                    if number not in self._jobs:
                        self._release(number)
            case _:
                if (future := self._jobs.get(fields["job"])) is not None:
                    self._service.engine.cancel(future)

    def _take_job(self, fields: Fields, arrays: Arrays) -> None:
        number: int = fields["job"]
        future = self._jobs[number] = _Job(self, number)
        try:
            job, hold = self._job_of(fields, arrays)
            self._holds[number] = hold
            self._service.engine.submit(job, future)
        except Exception as error:
            if not isinstance(error, (ProblemError, *REFUSALS)):
                _log.exception("a job of an HTTP worker could not be submitted")
            self.channel.send(self.outcome(number, error))

    def _job_of(self, fields: Fields, arrays: Arrays) -> tuple[Job, Hold]:
        """Return a job and the memory reserved for it.

        Raises:
            ProblemError: 413 or 429 from the ledgers; 503 if its tuned plan has been replaced.
            Overloaded: its model has been replaced.
        """
        service, number = self._service, fields["model"]
        if (found := self._models.get(number)) is None:  # its last request has been cancelled
            raise Overloaded("the model has just been replaced", 1.0)
        model, _ = found
        service.registry.touch(model)
        plans, key = self._plans, (number, fields["spec"])
        if (plan := plans.get(key)) is None:
            if len(plans) >= _MAX_PLANS:
                plans.clear()
            plan = plans[key] = plan_of(fields["spec"], model)
        hold = service.reserve(fields["bytes"], fields["deadline"], fields.get("condition_bytes", 0))
        logged = logged_beyond(hold, fields["n"] * kept_steps(plan, fields["trace"])) if plan.adaptive else None
        return job_of(fields, arrays, model, plan, logged), hold

    def outcome(self, number: int, outcome: Outcome) -> list[bytes]:
        """Return the message about the outcome of a job, which has ended."""
        self._jobs.pop(number, None)
        if number in self._over:
            self._release(number)
        fields, arrays = outcome_message(outcome)
        return encoded({"kind": "done", "job": number} | fields, arrays)

    def _release(self, number: int) -> None:
        """Release the memory of a job that has ended here and whose request is over in the worker, once."""
        if (hold := self._holds.pop(number, None)) is not None:
            hold.release()
        self._over.discard(number)

    # State, metrics and the end.

    def tell_state(self, draining: bool, turn_s: float) -> None:
        """Tell the worker whether the service drains, and how long the engine's current turn has taken."""
        if self.ready and not self.lost:
            self._unanswered += 1
            self.link.send({"kind": "state", "draining": draining, "turn_s": turn_s})

    async def ask_counts(self) -> None:
        """Update `counts`, if the worker reports them in time."""
        report: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reports.append(report)
        self.link.send({"kind": "counts"})
        await asyncio.wait([report], timeout=_METRICS_S)
        if report in self._reports:
            self._reports.remove(report)

    def finish(self, wait_s: float) -> None:
        """Tell the worker to end."""
        if self.lost:
            return
        self.link.send({"kind": "finish", "wait_s": wait_s})

    def _lose(self) -> None:
        self.lost = True
        self.channel.close()
        self._incoming.lose()
        for future in list(self._jobs.values()):
            self._service.engine.cancel(future)
        for number in list(self._holds):  # those of running jobs once they are cancelled
            self._over.add(number)
            if number not in self._jobs:
                self._release(number)
        for _, lease in self._models.values():
            lease.release()
        self._end_reports()

    def _end_reports(self) -> None:
        for report in self._reports:
            if not report.done():
                report.set_result(None)
        self._reports.clear()

    def end(self) -> int | None:
        """Kill the process if it runs; return its exit code."""
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()
