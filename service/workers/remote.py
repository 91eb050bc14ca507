"""The engine and the models of another process, as an HTTP worker sees them."""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Never
from weakref import WeakKeyDictionary

import torch

from engine.job import Draining, Job, JobResult, Overloaded
from engine.job_table import Outcomes, settle
from engine.snapshot import Workload
from service.errors import Kind, ProblemError
from service.ledger import Hold
from service.registry.version import Lease, Leases, ModelVersion
from service.workers.link import Arrays, Fields, Link
from service.workers.messages import job_message, model_of, outcome_of

_SILENT_S = 1.0
"""Seconds for which the engine's process may say nothing."""


class RemoteModels:
    """The models that the engine's process has handed to this worker; used on its event loop.

    A model is freed there only when the last lease here is back.
    """

    def __init__(self, link: Link) -> None:
        self._link, self._loop = link, asyncio.get_running_loop()
        self._numbers: dict[int, ModelVersion] = {}
        self._current: dict[str, ModelVersion] = {}

    def put(self, fields: Fields, arrays: Arrays) -> None:
        """Take a model; it answers from now on."""
        number: int = fields["model"]

        def free() -> None:  # from any thread
            self._loop.call_soon_threadsafe(self._free, number)

        model = model_of(fields, arrays, Leases(free))
        self._numbers[number] = self._current[model.name] = model

    def drop(self, number: int) -> None:
        """Hand a model back once its leases are back; others may be leased while any lease of it is out."""
        if self._current.get((model := self._numbers[number]).name) is model:
            del self._current[model.name]
        model.leases.retire()

    def _free(self, number: int) -> None:
        del self._numbers[number]
        self._link.send({"kind": "freed", "model": number})

    def number(self, name: str, version: int) -> int:
        """Return the number of a leased version in the engine's process, the newest with these weights.

        Raises:
            Overloaded: other weights have the same version now, so it is not known which of them a job was made for.
        """
        found = {number: model.digest for number, model in self._numbers.items() if _is(model, name, version)}
        if len(set(found.values())) != 1:
            raise Overloaded(f"model {name!r} has just been replaced", 1.0)
        return max(found)

    def current(self, name: object) -> ModelVersion | None:
        """Return the version of a model that answers, if it is here."""
        return self._current.get(name) if isinstance(name, str) else None

    def lease(self, name: str, version: int | None = None, deadline: float = 0.0) -> Lease:
        """Return a lease to be filled, as `Registry.lease` does."""
        return Lease(self, name, version, deadline)

    def fill(self, lease: Lease) -> bool:
        """Fill a lease with the version that answers, or that answered a moment ago and is still leased."""
        found = (self._current.get(lease.name), *reversed(self._numbers.values()))
        fitting = (model for model in found if model is not None and _is(model, lease.name, lease.version))
        return any(lease.take(model) for model in fitting)

    def load(self, lease: Lease) -> None:
        """Refuse: nothing is loaded here.

        Raises:
            ProblemError: 503.
        """
        detail = f"model {lease.name!r} has just been replaced; send the request again"
        raise ProblemError(Kind.NOT_READY, detail, headers={"Retry-After": "1"}, retry_after_s=1)

    async def load_async(self, lease: Lease) -> None:
        """Refuse, as `load` does."""
        self.load(lease)


def _all(outcomes: Outcomes) -> Outcomes:
    return outcomes


def _is(model: ModelVersion, name: str, version: int | None) -> bool:
    return model.name == name and version in (None, model.version)


class RemoteEngine:
    """The engine of another process, as `service.ports.Engine`; takes jobs for samples of the models handed over.

    Args:
        link: for jobs, to the engine's process.
        models: the models.
        facts: its device, threads and device name.
    """

    def __init__(self, link: Link, models: RemoteModels, facts: Mapping[str, Any]) -> None:
        self._link, self._models = link, models
        self.device, self.threads = torch.device(facts["device"]), int(facts["threads"])
        self.device_name = str(facts["device_name"])
        self.alive = True
        self._turn_s, self._heard_at = 0.0, time.monotonic()
        self.queue_depth = self.active_lanes = 0
        self._numbers = itertools.count()
        self._jobs: dict[int, tuple[Future[JobResult], Callable[[int], None] | None]] = {}
        self._number_of: WeakKeyDictionary[Future[JobResult], int] = WeakKeyDictionary()

    @property
    def active_jobs(self) -> int:
        """Jobs sent to the engine that have not ended."""
        return len(self._jobs)

    @property
    def turn_s(self) -> float:
        """Seconds of the engine's current turn, or of its process's silence: that tells it every tenth of a second."""
        silent_s = time.monotonic() - self._heard_at
        return self._turn_s + silent_s if self._turn_s or silent_s > _SILENT_S else 0.0

    def hear(self, turn_s: float) -> None:
        """Note the seconds of the current turn; 0 without work."""
        self._turn_s, self._heard_at = turn_s, time.monotonic()

    def submit(self, job: Job, future: Future[JobResult] | None = None) -> Future[JobResult]:
        """Send a job; the engine's refusals become the future's exception.

        Raises:
            Draining: the engine's process has ended.
            Overloaded: the model is being replaced.
        """
        if not self.alive:
            raise Draining
        number, future = next(self._numbers), Future[JobResult]() if future is None else future
        fields, arrays = job_message(job)
        fields |= {"kind": "job", "job": number, "model": self._models.number(job.model, job.version)}
        self._jobs[number] = future, job.on_logged
        self._number_of[future] = number
        self._link.send(fields, arrays)
        return future

    def take(self, fields: Fields, arrays: Arrays) -> None:
        """Take the outcome of a job."""
        future, on_logged = self._jobs.pop(fields["job"])
        outcome = outcome_of(fields, arrays)
        if isinstance(outcome, JobResult) and on_logged is not None and len(outcome.trace):
            on_logged(len(outcome.trace))
        settle([(future, outcome)])

    def cancel(self, future: Future[JobResult]) -> None:
        """Cancel a job."""
        if not future.done():
            self._link.send({"kind": "cancel", "job": self._number_of[future]})

    def release(self, hold: Hold) -> None:
        """Return the memory that the engine's process holds for a request's jobs."""
        numbers = [self._number_of[job] for job in hold.jobs if job in self._number_of]
        if numbers:
            self._link.send({"kind": "release", "jobs": numbers})

    def lose(self) -> None:
        """End all jobs: the engine's process has ended."""
        self.alive = False
        jobs, self._jobs = self._jobs, {}
        settle([(future, Draining()) for future, _ in jobs.values()])

    def ends_s(self) -> Mapping[Future[JobResult], float]:
        """Return no forecasts: the engine's process has them."""
        return {}

    def workload(self) -> Workload:
        """Return only the number of jobs: the engine's process has the rest."""
        return Workload(len(self._jobs), 0.0, {})

    def start(self) -> None:
        """Do nothing: the engine runs."""

    def stop(self) -> None:
        """Do nothing: the engine's process stops it."""

    def drain(self) -> None:
        """Do nothing: the engine's process drains it."""

    def give_up(self) -> None:
        """Do nothing: the engine's process gives up."""

    def deliver_on(self, loop: asyncio.AbstractEventLoop, first: Callable[[Outcomes], Outcomes] = _all) -> None:
        """Do nothing: futures complete on the event loop of the link."""

    def unload(self, arena: Any) -> None:
        """Do nothing: the engine's process unloads."""

    def _elsewhere(self, *arguments: Any, **named: Any) -> Never:
        raise NotImplementedError("requests that need this are passed on to the engine's process")

    load = prepared = prepare = pace = _elsewhere
