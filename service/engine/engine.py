"""The loop: one thread owns all lanes of a device; everybody else talks to it through commands and futures.

    take commands (load, submit, cancel) -> expire deadlines -> admit within the budget -> tick -> deliver

Each turn ticks the model that has used the least network time, so that models share the device fairly.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor

import numpy as np
import torch

from models.checkpoint import Checkpoint
from service.engine.assembly import Assembly
from service.engine.contracts import EngineSettings, Observer
from service.engine.job import DeadlineExceeded, Draining, EngineFailed, Job, JobResult, Overloaded
from service.engine.runner import Arena, choose_device
from service.engine.scheduler import Entry, Scheduler
from solvers.errors import Status
from solvers.plan import Plan
from solvers.records import Finished

__all__ = ["DeadlineExceeded", "Draining", "Engine", "EngineFailed", "Observer", "Overloaded"]

Key = tuple[str, int]
_log = logging.getLogger("pathline")
_GUESSED_NFE = 80.0
"""Calls of an adaptive sample before any has been seen."""


def default_threads() -> int:
    """CPU threads of the network where the settings name none: one core is left to HTTP and encoding."""
    return max(1, (os.cpu_count() or 1) - 1)


class _Model:
    """An arena with its jobs."""

    def __init__(self, name: str, arena: Arena) -> None:
        self.name, self.arena = name, arena
        self.scheduler = Scheduler(arena.budget)
        self.jobs: dict[int, tuple[Assembly, Future[JobResult]]] = {}
        self.used_s = 0.0  # network time, for fairness among models
        self.nfe: dict[str, float] = {}  # running mean by solver, for the cost of adaptive jobs
        self.retired = False  # to be dropped once its jobs are done

    def cost(self, job: Job) -> float:
        if isinstance(job.solve, Plan):
            return float(job.solve.nfe)
        return min(self.nfe.get(str(job.solve.settings["name"]), _GUESSED_NFE), float(job.solve.max_nfe))


class Engine:
    """Solves jobs for any number of models on one device."""

    def __init__(self, settings: EngineSettings, observer: Observer | None = None) -> None:
        self.device = choose_device(settings.device)
        self._threads, self._max_queue = settings.threads or default_threads(), settings.max_queue
        self._observer = observer
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        # Replaced, never changed: other threads read them without a lock. `_arenas` has the retired ones too.
        self._models: dict[Key, _Model] = {}
        self._arenas: tuple[_Model, ...] = ()
        self._loading = threading.Lock()
        self._loader = ThreadPoolExecutor(1, "pathline-loader", self._step_back)
        self._where: dict[Future[JobResult], tuple[_Model, int]] = {}
        self._deadlines: dict[int, tuple[float, _Model]] = {}
        self._numbers = 0
        self._stopping = self._draining = False
        self._thread: threading.Thread | None = None

    # What other threads call.

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def active_jobs(self) -> int:
        """Jobs that wait or run."""
        return len(self._where)

    @property
    def queue_depth(self) -> int:
        """Jobs of which no sample runs yet."""
        return sum(model.scheduler.queued for model in self._arenas)

    @property
    def active_lanes(self) -> int:
        """Samples that are being solved."""
        return sum(len(model.arena.lanes) for model in self._arenas)

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pathline-engine", daemon=True)
            self._thread.start()

    def drain(self) -> None:
        """Take no more jobs; those that are here run on."""
        self._draining = True

    def give_up(self) -> None:
        """Take no more jobs and end those that are here: whoever waits for them gets `Draining`."""
        self._draining = True
        self._send(lambda: [self._abandon(future, Draining()) for future in list(self._where)])

    def stop(self) -> None:
        """Give up all jobs and end the thread."""
        self._draining = self._stopping = True
        self._loader.shutdown(wait=False, cancel_futures=True)
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def load(self, name: str, version: int, checkpoint: Checkpoint) -> Arena:
        """Measure a model and make it ready; jobs of other models run on meanwhile.

        It is measured in a thread of its own with the engine's number of torch threads, which decides the bits, and at
        low priority, so that running jobs hardly notice. Whatever its network raises passes through.
        """
        arena = self._loader.submit(Arena, checkpoint, self.device).result()
        with self._loading:
            model = _Model(name, arena)
            self._models = {**self._models, (name, version): model}
            self._arenas = (*self._arenas, model)
        return arena

    def unload(self, loaded: object) -> None:
        """Free the memory of what `load` returned once the jobs that were submitted for it are done; returns at once.

        What was loaded under the same name and version later stays.
        """

        def retire() -> None:
            for model in self._arenas:
                model.retired |= model.arena is loaded
            self._drop_retired()

        self._send(retire)

    def submit(self, job: Job) -> Future[JobResult]:
        """Queue a job.

        Raises:
            Draining: the engine takes no more.
            Overloaded: the queue is full, or what is ahead would make the job miss its deadline.
            EngineFailed: the thread has died.
            KeyError: the model version is not loaded.
        """
        if self._draining:
            raise Draining
        if not self.alive:
            raise EngineFailed("the engine has stopped; restart the service")
        model = self._models[job.model, job.version]
        ahead = model.scheduler.backlog() * model.arena.seconds_a_row if len(self._where) else 0.0
        # Without anything ahead a job that is too slow runs to its deadline: coming back later would not help.
        late = ahead > 0 and job.deadline is not None and time.monotonic() + ahead > job.deadline
        if len(self._where) >= self._max_queue or late:
            raise Overloaded(max(0.1, ahead))
        future: Future[JobResult] = Future()
        assembly = Assembly(job, model.arena.event_shape, model.arena.dtype)
        self._where[future] = (model, -1)
        self._send(lambda: self._queue(model, assembly, future))
        if not self.alive:  # it died meanwhile, and nobody is left to answer
            self._settle(future, EngineFailed("the engine has stopped; restart the service"))
        return future

    def cancel(self, future: Future[JobResult]) -> None:
        """Give up a job; its lanes are gone before the next tick."""
        self._send(lambda: self._abandon(future))

    def _send(self, command: Callable[[], object]) -> None:
        self._commands.append(command)
        self._wake.set()

    def _step_back(self) -> None:
        """Begin a loader's thread."""
        torch.set_num_threads(self._threads)
        with contextlib.suppress(AttributeError, OSError):  # not every system has a priority for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)

    # What the engine's thread does.

    def _run(self) -> None:
        try:
            torch.set_num_threads(self._threads)
            while not self._stopping:
                self._turn()
        except BaseException:
            _log.exception("the engine died")  # /livez tells, and whoever watches it restarts the service
        finally:
            self._draining = True
            for future in list(self._where):
                self._settle(future, EngineFailed("the engine has stopped; restart the service"))

    def _turn(self) -> None:
        while self._commands:
            self._commands.popleft()()
        self._expire()
        busy = [model for model in self._arenas if len(model.scheduler)]
        if not busy:
            self._wake.wait()
            self._wake.clear()
            return
        model = min(busy, key=lambda each: each.used_s)
        self._admit(model)
        if len(model.arena.lanes):
            self._tick(model)
        else:
            time.sleep(0)
        if model.retired:
            self._drop_retired()

    def _drop_retired(self) -> None:
        with self._loading:
            self._models = {key: model for key, model in self._models.items() if not model.retired}
            self._arenas = tuple(each for each in self._arenas if not each.retired or len(each.scheduler))

    def _queue(self, model: _Model, assembly: Assembly, future: Future[JobResult]) -> None:
        if future not in self._where:
            return  # cancelled before it was seen
        number, self._numbers = self._numbers, self._numbers + 1
        if not len(model.scheduler):
            # A model that was idle has saved nothing up.
            others = [each.used_s for each in self._arenas if len(each.scheduler)]
            model.used_s = max(model.used_s, min(others, default=model.used_s))
        job = assembly.job
        model.jobs[number] = (assembly, future)
        self._where[future] = (model, number)
        if job.deadline is not None:
            self._deadlines[number] = (job.deadline, model)
        whole = not isinstance(job.solve, Plan) and job.solve.batch
        model.scheduler.add(Entry(number, job.num_samples, model.cost(job), whole))

    def _admit(self, model: _Model) -> None:
        granted = model.scheduler.grant()
        if not granted:
            return
        now = time.perf_counter()
        for number, first, _ in granted:
            if first == 0:
                assembly = model.jobs[number][0]
                assembly.started, assembly.network_s = now, model.arena.network_s
        wanted = [(number, first, count, model.jobs[number][0].job) for number, first, count in granted]
        self._deliver(model, model.arena.admit(wanted))

    def _tick(self, model: _Model) -> None:
        arena = model.arena
        if self._observer is not None:
            running = model.scheduler.running_jobs()
            solvers = {model.jobs[number][0].job.solve.settings["name"] for number in running}
            self._observer.batch(model.name, len(arena.lanes), len(running), len(solvers))
        before = arena.network_s
        finished, failed = arena.tick()
        model.used_s += arena.network_s - before
        for number, said in failed.items():
            self._settle(self._forget(model, number), EngineFailed(said))
        self._deliver(model, finished)

    def _deliver(self, model: _Model, finished: Finished | None) -> None:
        for saved in model.arena.take_saved():
            for number in np.unique(saved.owner):
                if int(number) in model.jobs:
                    model.jobs[int(number)][0].keep(saved, saved.owner == number)
        if finished is None:
            return
        # Lanes of a job stand together, so its share is a slice.
        edges = np.flatnonzero(np.diff(finished.owner)) + 1
        attempts = np.concatenate([[0], np.cumsum(finished.attempts)])
        for first, last in zip([0, *edges], [*edges, len(finished.owner)], strict=True):
            number = int(finished.owner[first])
            if number not in model.jobs:
                self._count_cancelled(finished, slice(first, last))
                continue
            assembly, future = model.jobs[number]
            assembly.take(finished, slice(first, last), slice(int(attempts[first]), int(attempts[last])))
            if model.scheduler.ended(number, int(last - first)):
                self._learn(model, assembly)
                self._forget(model, number)
                self._settle(future, assembly.result(model.arena.network_s))

    def _learn(self, model: _Model, assembly: Assembly) -> None:
        name, seen = str(assembly.job.solve.settings["name"]), float(assembly.nfe.mean())
        model.nfe[name] = model.nfe.get(name, seen) * 0.9 + seen * 0.1

    def _expire(self) -> None:
        now = time.monotonic()
        for number in [number for number, (deadline, _) in self._deadlines.items() if deadline <= now]:
            _, model = self._deadlines[number]
            assembly, future = model.jobs[number]
            waiting = model.scheduler.first_waiting(number)
            if not assembly.job.partial:
                self._abandon(future, DeadlineExceeded())
                continue
            if waiting < assembly.job.num_samples:
                count = assembly.job.num_samples - waiting
                assembly.unstarted(waiting, model.arena.start_of(assembly.job, waiting, count), Status.DEADLINE)
                model.scheduler.drop_waiting(number)
            finished = model.arena.stop(number, Status.DEADLINE)
            if finished is None:  # nothing of it ran
                self._forget(model, number)
                self._settle(future, assembly.result(model.arena.network_s))
            else:
                self._deliver(model, finished)

    def _abandon(self, future: Future[JobResult], reason: Exception | None = None) -> None:
        model, number = self._where.pop(future, (None, -1))
        if model is None:
            return
        if number >= 0:
            self._forget(model, number)
            self._deliver(model, model.arena.stop(number, Status.CANCELLED))
        self._settle(future, reason)

    def _forget(self, model: _Model, number: int) -> Future[JobResult]:
        _, future = model.jobs.pop(number)
        model.scheduler.remove(number)
        self._deadlines.pop(number, None)
        return future

    def _settle(self, future: Future[JobResult], outcome: JobResult | Exception | None) -> None:
        self._where.pop(future, None)
        with contextlib.suppress(InvalidStateError):  # whoever waited may have cancelled it meanwhile
            if outcome is None:
                future.cancel()
            elif isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def _count_cancelled(self, finished: Finished, part: slice) -> None:
        if self._observer is not None:
            self._observer.cancelled(int(finished.nfe[part].sum()))
