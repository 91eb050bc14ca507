"""One HTTP worker as the engine's process sees it: its models, jobs, passed-on requests, metrics and end."""

import asyncio
import itertools
import logging
import socket
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from starlette.types import ASGIApp

from engine.job import Job, JobResult, Outcome, Overloaded
from engine.job_table import Outcomes
from service.errors import REFUSALS, ProblemError
from service.ledger import Hold
from service.metrics import Counts
from service.registry.version import Lease, ModelVersion
from service.requests.sizes import kept_steps, logged_beyond
from service.state import Service
from service.workers.calls import Incoming
from service.workers.link import Arrays, Channel, Fields, Link, encoded
from service.workers.messages import job_of, model_message, outcome_message, plan_of
from solvers.plan import Plan

_TICK_S = 0.1  # between two calls of `tell_state`
_METRICS_S = 2.0  # for a worker to report its metrics, before its last report is used
_MAX_PLANS = 4096

_log = logging.getLogger("pathline")


class _Job(Future[JobResult]):
    """A worker's job. It is never completed: its outcome is sent to the worker, and nothing here waits for it."""

    def __init__(self, worker: "AttachedWorker", number: int) -> None:
        super().__init__()
        self.worker, self.number = worker, number


def deliver_jobs(outcomes: Outcomes) -> Outcomes:
    """Send the outcomes of the workers' jobs, each worker all at once; return the other outcomes."""
    parts: dict[AttachedWorker, list[bytes]] = {}
    others: Outcomes = []
    for future, outcome in outcomes:
        if isinstance(future, _Job):
            parts.setdefault(future.worker, []).extend(future.worker.outcome(future.number, outcome))
        else:
            others.append((future, outcome))
    for worker, messages in parts.items():
        worker.channel.send(messages)
    return others


class AttachedWorker:
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
