"""The engine as others see it: models are loaded into it, jobs submitted to it, results come as futures."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import torch

from models.checkpoint.loading import Checkpoint
from service.engine.assembly import Assembly
from service.engine.contracts import EngineSettings, Observer
from service.engine.device import Device, choose_device, device_of
from service.engine.forecast import wall
from service.engine.job import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    Job,
    JobResult,
    Overloaded,
    Priority,
    TooSlow,
)
from service.engine.loop import STOPPED, Loop
from service.engine.model import Model, Running
from service.engine.operation import Operation
from service.engine.runner import Arena
from service.engine.scheduler import Entry

__all__ = ["DeadlineExceeded", "Draining", "Engine", "EngineFailed", "Observer", "Overloaded", "TooSlow"]


def default_threads() -> int:
    """CPU threads of the network where the settings name none: one for each core that may be used, but one.

    torch would take all of them, and HTTP and encoding, which go on while the network computes, would have none.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


class Engine:
    """Solves jobs for any number of models on one device.

    Args:
        settings: what it needs of them.
        observer: who is told what each network call carried.
        clock: seconds, never going back; deadlines are times of it.
        tools: of the device; where left out, those of the device in the settings.
    """

    def __init__(
        self,
        settings: EngineSettings,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
        tools: Device | None = None,
    ) -> None:
        self.device = choose_device(settings.device)
        self.threads = settings.threads or default_threads()
        self._tools = tools or device_of(self.device, settings.cuda_graphs, settings.compile == "auto")
        self._clock = clock
        self._max_queue = settings.max_queue
        self._loop = Loop(self._tools, observer, clock)
        self._loader = ThreadPoolExecutor(1, "pathline-loader", self._step_back)
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def turn_s(self) -> float:
        """Seconds that the thread has spent in its present turn, which is a network call or a few; 0 while it waits."""
        began = self._loop.turn_began
        return 0.0 if began is None else max(0.0, time.monotonic() - began)

    @property
    def device_name(self) -> str:
        """What the device is called by its maker."""
        return self._tools.name

    @property
    def active_jobs(self) -> int:
        """Jobs that wait or run."""
        return len(self._loop.desk.where)

    @property
    def queue_depth(self) -> int:
        """Jobs of which no sample runs yet."""
        waiting = sum(scheduler.queued for model in self._loop.arenas for scheduler in model.schedulers.values())
        return waiting + sum(len(model.incoming) for model in self._loop.arenas)

    @property
    def active_lanes(self) -> int:
        """Samples that are being solved."""
        return sum(len(model.arena) for model in self._loop.arenas)

    def ends_s(self) -> dict[Future[JobResult], float]:
        """Seconds until each job that is here is forecast to be done, if nobody else comes."""
        now, ends = self._clock(), dict[int, float]()
        lots = [lot for model in self._loop.arenas for lot in model.lots(now)]
        for lot in lots:
            others = [(other, other.total) for other in lots if other is not lot]
            seconds = wall(lot, lot.ends, others).tolist()
            ends.update(zip((demand.number for demand in lot.demands), seconds, strict=True))
        return {future: ends[number] for future, (_, number) in list(self._loop.desk.where.items()) if number in ends}

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._loop.run, args=(self.threads,), name="pathline-engine", daemon=True
            )
            self._thread.start()

    def drain(self) -> None:
        """Take no more jobs; those that are here run on."""
        self._loop.draining = True

    def give_up(self) -> None:
        """Take no more jobs and end those that are here: whoever waits for them gets `Draining`."""
        self._loop.draining = True
        desk = self._loop.desk
        self._loop.send(lambda: [desk.abandon(future, Draining()) for future in list(desk.where)])

    def stop(self) -> None:
        """Give up all jobs and end the thread."""
        self._loop.draining = self._loop.stopping = True
        self._loader.shutdown(wait=False, cancel_futures=True)
        self._loop.send(lambda: None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def load(self, name: str, version: int, checkpoint: Checkpoint) -> Arena:
        """Measure a model and make it ready; jobs of other models run on meanwhile.

        It is measured in a thread of its own with the engine's number of torch threads, which decides the bits, and at
        low priority, so that running jobs hardly notice. Whatever its network raises passes through.
        """
        arena = self._loader.submit(Arena, checkpoint, self._tools, tuple(Priority)).result()
        self._loop.add((name, version), Model(name, arena))
        return arena

    def prepared(self, name: str, version: int, operation: Operation) -> Arena | None:
        """The arena of an operation of a loaded version; None if `prepare` must make it first.

        Raises:
            KeyError: the version is not loaded.
        """
        model = self._loop.models[name, version]
        model = model if operation is Operation.SAMPLE else model.beside.get(operation)
        return None if model is None else model.arena

    def prepare(self, name: str, version: int, operation: Operation) -> Arena:
        """Make the arena of an operation of a loaded version, as `load` does; a second call does nothing.

        Raises:
            Draining: the engine takes no more.
            KeyError: the version is not loaded. What its network raises passes through.
        """

        def make() -> Arena:
            found = self.prepared(name, version, operation)
            if found is None:
                model = self._loop.models[name, version]
                found = Arena(model.arena.checkpoint, self._tools, tuple(Priority), operation)
                self._loop.add_beside(model, Model(name, found))
            return found

        try:
            making = self._loader.submit(make)
        except RuntimeError:  # it was shut down
            raise Draining from None
        try:
            return making.result()
        except CancelledError:
            raise Draining from None

    def unload(self, loaded: object) -> None:
        """Free the memory of what `load` returned once the jobs that were submitted for it are done; returns at once.

        What was loaded under the same name and version later stays.
        """
        self._loop.send(lambda: self._loop.retire(loaded))

    def submit(self, job: Job) -> Future[JobResult]:
        """Queue a job.

        Raises:
            Draining: the engine takes no more.
            TooSlow: the job would miss its deadline even with the machine to itself.
            Overloaded: the queue is full, or the job would miss its deadline or make another miss its own.
            EngineFailed: the thread has died.
            KeyError: the model version is not loaded, or its operation not prepared.
        """
        if self._loop.draining:
            raise Draining
        if not self.alive:
            raise EngineFailed(STOPPED)
        model = self._loop.models[job.model, job.version]
        if job.operation is not Operation.SAMPLE:
            model = model.beside[job.operation]
        number, now = next(self._numbers), self._clock()
        entry = model.entry(number, job, now)
        self._check_room(model, job, entry, now)
        future: Future[JobResult] = Future()
        running = Running(Assembly(job, model.arena.event_shape, model.arena.dtype), future)
        model.incoming[number] = (entry, job.priority)
        self._loop.desk.where[future] = (model, number)
        self._loop.send(lambda: self._loop.queue(model, number, running))
        if not self.alive:  # it died meanwhile, and nobody is left to answer
            self._loop.desk.settle(future, EngineFailed(STOPPED))
        return future

    def _check_room(self, model: Model, job: Job, entry: Entry, now: float) -> None:
        busy = [each for each in self._loop.arenas if each.busy]
        if len(self._loop.desk.where) >= self._max_queue:
            soonest = min((each.first_end_s(now) for each in busy), default=0.0)
            raise Overloaded(
                "the queue is full (PATHLINE_MAX_QUEUE)", max(0.1, min(soonest, 3600.0) * max(1, len(busy)))
            )
        model.check(job, entry, now, busy)

    def cancel(self, future: Future[JobResult]) -> None:
        """Give up a job; its lanes are gone before the next tick."""
        self._loop.send(lambda: self._loop.desk.abandon(future))

    def _step_back(self) -> None:
        """Begin a loader's thread."""
        torch.set_num_threads(self.threads)
        with contextlib.suppress(AttributeError, OSError):  # not every system has a priority for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
