"""The loop: one thread owns all lanes of a device; everybody else talks to it through commands and futures.

    take commands (load, submit, cancel) -> expire deadlines -> admit within the budget -> tick -> deliver

Each turn ticks the model that has used the least time, so that models share the device fairly.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor

import numpy as np
import torch

from models.checkpoint import Checkpoint
from service.engine.assembly import Assembly
from service.engine.contracts import EngineSettings, Observer
from service.engine.device import choose_device, device_of
from service.engine.job import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    Job,
    JobResult,
    Overloaded,
    Priority,
)
from service.engine.model import Model, Running
from service.engine.runner import Arena
from service.engine.scheduler import BULK_SHARE
from solvers.errors import Status
from solvers.plan import Plan
from solvers.records import Finished

__all__ = ["DeadlineExceeded", "Draining", "Engine", "EngineFailed", "Observer", "Overloaded"]

Key = tuple[str, int]
_log = logging.getLogger("pathline")

_REPRICE_EVERY = 32
"""Ticks after which the cost of jobs under error control is estimated anew from how far they have come."""

_STOPPED = "the engine has stopped; restart the service"


def default_threads() -> int:
    """CPU threads of the network where the settings name none: one core is left to HTTP and encoding."""
    return max(1, (os.cpu_count() or 1) - 1)


class Engine:
    """Solves jobs for any number of models on one device."""

    def __init__(self, settings: EngineSettings, observer: Observer | None = None) -> None:
        self.device = choose_device(settings.device)
        self.threads = settings.threads or default_threads()
        self._tools = device_of(self.device, settings.cuda_graphs)
        self._max_queue, self._observer = settings.max_queue, observer
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        # Replaced, never changed: other threads read them without a lock. `_arenas` has the retired ones too.
        self._models: dict[Key, Model] = {}
        self._arenas: tuple[Model, ...] = ()
        self._loading = threading.Lock()
        self._loader = ThreadPoolExecutor(1, "pathline-loader", self._step_back)
        self._where: dict[Future[JobResult], tuple[Model, int]] = {}
        self._deadlines: dict[int, tuple[float, Model]] = {}
        self._next_deadline = float("inf")
        self._numbers = itertools.count()
        self._stopping = self._draining = False
        self._thread: threading.Thread | None = None
        self._beside = ThreadPoolExecutor(1, "pathline-results")

    # What other threads call.

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def device_name(self) -> str:
        """What the device is called by its maker."""
        return self._tools.name

    @property
    def active_jobs(self) -> int:
        """Jobs that wait or run."""
        return len(self._where)

    @property
    def queue_depth(self) -> int:
        """Jobs of which no sample runs yet."""
        waiting = sum(scheduler.queued for model in self._arenas for scheduler in model.schedulers.values())
        return waiting + sum(len(model.incoming) for model in self._arenas)

    @property
    def active_lanes(self) -> int:
        """Samples that are being solved."""
        return sum(len(model.arena) for model in self._arenas)

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
        arena = self._loader.submit(Arena, checkpoint, self._tools, tuple(Priority)).result()
        with self._loading:
            model = Model(name, arena)
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
            raise EngineFailed(_STOPPED)
        model = self._models[job.model, job.version]
        self._check_room(model, job)
        future: Future[JobResult] = Future()
        running = Running(Assembly(job, model.arena.event_shape, model.arena.dtype), future)
        number = next(self._numbers)
        model.incoming[number] = (model.entry(number, job), job.priority)
        self._where[future] = (model, number)
        self._send(lambda: self._queue(model, number, running))
        if not self.alive:  # it died meanwhile, and nobody is left to answer
            self._settle(future, EngineFailed(_STOPPED))
        return future

    def _check_room(self, model: Model, job: Job) -> None:
        busy = [each for each in self._arenas if len(each) or each.incoming]
        if len(self._where) >= self._max_queue:
            soonest = min((each.first_end_s() for each in busy), default=0.0)
            raise Overloaded("the queue is full", max(0.1, min(soonest, 3600.0) * max(1, len(busy))))
        if job.deadline is not None and busy:
            model.check(job, job.deadline - time.monotonic(), [each for each in busy if each is not model])

    def cancel(self, future: Future[JobResult]) -> None:
        """Give up a job; its lanes are gone before the next tick."""
        self._send(lambda: self._abandon(future))

    def _send(self, command: Callable[[], object]) -> None:
        self._commands.append(command)
        self._wake.set()

    def _step_back(self) -> None:
        """Begin a loader's thread."""
        torch.set_num_threads(self.threads)
        with contextlib.suppress(AttributeError, OSError):  # not every system has a priority for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)

    # What the engine's thread does.

    def _run(self) -> None:
        try:
            torch.set_num_threads(self.threads)
            while not self._stopping:
                self._turn()
        except BaseException:
            _log.exception("the engine died")  # /livez tells, and whoever watches it restarts the service
        finally:
            self._draining = True
            self._beside.shutdown()
            for future in list(self._where):
                self._settle(future, EngineFailed(_STOPPED))

    def _turn(self) -> None:
        begin, cost = time.perf_counter(), self._tools.seconds()
        while self._commands:
            self._commands.popleft()()
        self._expire()
        busy = [model for model in self._arenas if len(model)]
        if not busy:
            self._wake.wait()
            self._wake.clear()
            return
        model = min(busy, key=lambda each: each.used_s)
        self._admit(model)
        groups = self._groups(model)
        if groups:
            counts = [len(model.arena.lanes[group]) for group in groups]
            self._tick(model, groups)
            took, cost = time.perf_counter() - begin, self._tools.seconds() - cost
            model.arena.pace.learn(sum(counts), cost, took, time.monotonic())
            self._account(model, groups, counts, took, alone=len(busy) == 1)
        if model.retired:
            self._drop_retired()

    def _drop_retired(self) -> None:
        with self._loading:
            self._models = {key: model for key, model in self._models.items() if not model.retired}
            self._arenas = tuple(each for each in self._arenas if not each.retired or len(each))

    def _queue(self, model: Model, number: int, running: Running) -> None:
        entry, priority = model.incoming.pop(number)
        if running.future not in self._where:
            return  # cancelled before it was seen
        if model not in self._arenas:  # it was unloaded while the job was on its way
            with self._loading:
                self._arenas = (*self._arenas, model)
        if not len(model):
            # A model that was idle has saved nothing up.
            others = [each.used_s for each in self._arenas if len(each)]
            model.used_s = max(model.used_s, min(others, default=model.used_s))
        model.jobs[number] = running
        if (deadline := running.job.deadline) is not None:
            self._deadlines[number] = (deadline, model)
            self._next_deadline = min(self._next_deadline, deadline)
        model.schedulers[priority].add(entry)
        self._report(model, number, running)

    def _admit(self, model: Model) -> None:
        for priority, scheduler in model.schedulers.items():
            granted = scheduler.grant()
            if not granted:
                continue
            now = time.perf_counter()
            for number, first, _ in granted:
                if first == 0:
                    assembly = model.jobs[number].assembly
                    assembly.started, assembly.network_s, assembly.reported_s = now, model.arena.network_s, 0.0
                    model.solvers[str(assembly.job.solve.settings["name"])] += 1
            wanted = [(number, first, count, model.jobs[number].job) for number, first, count in granted]
            try:
                finished = model.arena.admit(wanted, priority)
            except Exception as error:  # (what kept memory alive goes with the handler)
                model.arena.said(error)
            else:
                self._deliver(model, finished)
                continue
            for each in wanted:
                self._admit_alone(model, priority, each)

    def _admit_alone(self, model: Model, priority: Priority, wanted: tuple[int, int, int, Job]) -> None:
        """Not all found room: each job is tried alone, and fails if even that is too much."""
        try:
            finished = model.arena.admit([wanted], priority)
        except Exception as error:
            said = model.arena.said(error)
        else:
            self._deliver(model, finished)
            return
        future = self._forget(model, wanted[0])
        self._deliver(model, model.arena.stop(wanted[0], Status.CANCELLED, priority))
        self._settle(future, EngineFailed(said))

    def _groups(self, model: Model) -> list[Priority]:
        """Whose lanes take part in the tick."""
        interactive, bulk = (len(model.arena.lanes[priority]) for priority in Priority)
        groups = [Priority.INTERACTIVE] if interactive else []
        return [*groups, Priority.BULK] if model.turns.bulk(interactive, bulk) else groups

    def _tick(self, model: Model, groups: Sequence[Priority]) -> None:
        arena = model.arena
        if self._observer is not None:
            rows = sum(len(arena.lanes[group]) for group in groups)
            requests, solvers = model.solvers.total(), sum(count > 0 for count in model.solvers.values())
            self._observer.batch(model.name, rows, requests, solvers)
        with self._failing_alone(model, *groups):
            finished, failed = arena.tick(groups)
            for group in groups:
                model.schedulers[group].tick += 1
            for number, said in failed.items():
                self._settle(self._forget(model, number), EngineFailed(said))
            for each in finished:
                self._deliver(model, each)
        self._after(model, groups)

    @contextlib.contextmanager
    def _failing_alone(self, model: Model, *groups: Priority) -> Iterator[None]:
        """An error outside the network call (memory for the lanes, most likely) costs the jobs of these lanes only.

        Nobody can tell which of them caused it, and the state of their lanes is no longer known, so all of them fail;
        the lanes are made anew, and those that wait, other priorities and other models go on.
        """
        try:
            yield
            return
        except Exception as error:
            said = model.arena.said(error)
            _log.exception("the lanes of model %s failed; their requests are told", model.name)
        for group in groups:
            model.arena.renew(group)
        for number, running in list(model.jobs.items()):
            if running.job.priority in groups and running.assembly.started is not None:
                self._settle(self._forget(model, number), EngineFailed(said))

    def _after(self, model: Model, groups: Sequence[Priority]) -> None:
        """Estimate costs anew now and then, and tell those who want to know how far their job is."""
        for group in groups:
            scheduler = model.schedulers[group]
            if scheduler.tick % _REPRICE_EVERY == 0:
                for number, calls in model.arena.expected_calls(group).items():
                    scheduler.reprice(number, calls)
        for number in list(model.watched):
            running = model.jobs[number]
            if running.job.priority in groups:
                self._report(model, number, running)

    def _report(self, model: Model, number: int, running: Running) -> None:
        job, assembly, now = running.job, running.assembly, time.monotonic()
        if job.on_progress is None:
            return
        model.watched.add(number)
        if now < assembly.reported_s + job.progress_s:
            return
        assembly.reported_s = now
        waiting = model.schedulers[job.priority].first_waiting(number) < job.num_samples
        job.on_progress(assembly.progress(model.arena.reached(number, job.priority), waiting))

    def _account(
        self, model: Model, groups: Sequence[Priority], counts: Sequence[int], took: float, alone: bool
    ) -> None:
        interactive = counts[0] if groups[0] is Priority.INTERACTIVE else 0
        model.turns.used(interactive, sum(counts) - interactive, took)
        # Bulk lanes alone pay more where other models have work, which may be interactive.
        model.used_s += took if interactive or alone else took * (BULK_SHARE - 1)

    def _deliver(self, model: Model, finished: Finished | None) -> None:
        for saved in model.arena.take_saved():
            for number in np.unique(saved.owner):
                if int(number) in model.jobs:
                    model.jobs[int(number)].assembly.keep(saved, saved.owner == number)
        if finished is None:
            return
        # Lanes that were admitted together stand together, so their share is a slice.
        edges = np.flatnonzero(np.diff(finished.owner)) + 1
        attempts = np.concatenate([[0], np.cumsum(finished.attempts)])
        for first, last in zip([0, *edges], [*edges, len(finished.owner)], strict=True):
            number = int(finished.owner[first])
            if number not in model.jobs:
                self._count_cancelled(finished, slice(first, last))
                continue
            assembly = model.jobs[number].assembly
            assembly.take(finished, slice(first, last), slice(int(attempts[first]), int(attempts[last])))
            if model.schedulers[assembly.job.priority].ended(number, int(last - first)):
                self._complete(model, number)

    def _complete(self, model: Model, number: int) -> None:
        assembly = model.jobs[number].assembly
        if not isinstance(assembly.job.solve, Plan) and (calls := assembly.mean_nfe()) is not None:
            model.learn(assembly.job, calls)
        future, network_s = self._forget(model, number), model.arena.network_s
        if not assembly.large:
            self._settle(future, assembly.result(network_s, model.arena.start_of))
            return

        def finish() -> None:
            try:
                self._settle(future, assembly.result(network_s, model.arena.start_of))
            except Exception as error:
                self._settle(future, EngineFailed(f"{type(error).__name__}: {error}"))

        self._beside.submit(finish)

    def _expire(self) -> None:
        now = time.monotonic()
        if now < self._next_deadline:
            return
        for number in [number for number, (deadline, _) in self._deadlines.items() if deadline <= now]:
            self._end_late(number, self._deadlines[number][1])
        self._next_deadline = min((deadline for deadline, _ in self._deadlines.values()), default=float("inf"))

    def _end_late(self, number: int, model: Model) -> None:
        running = model.jobs[number]
        job, scheduler = running.job, model.schedulers[running.job.priority]
        if not job.partial:
            self._abandon(running.future, DeadlineExceeded())
            return
        waiting = scheduler.first_waiting(number)
        if waiting < job.num_samples:
            running.assembly.unstarted(waiting, Status.DEADLINE)
            scheduler.drop_waiting(number)
        finished = model.arena.stop(number, Status.DEADLINE, job.priority)
        if finished is not None:
            self._deliver(model, finished)
        if number in model.jobs:  # nothing of it ran
            self._complete(model, number)

    def _abandon(self, future: Future[JobResult], reason: Exception | None = None) -> None:
        model, number = self._where.pop(future, (None, -1))
        if model is None:
            return
        running = model.jobs.get(number)
        if running is not None:
            self._forget(model, number)
            self._deliver(model, model.arena.stop(number, Status.CANCELLED, running.job.priority))
        self._settle(future, reason)

    def _forget(self, model: Model, number: int) -> Future[JobResult]:
        running = model.jobs.pop(number)
        model.schedulers[running.job.priority].remove(number)
        model.watched.discard(number)
        self._deadlines.pop(number, None)
        if running.assembly.started is not None:
            model.solvers[str(running.job.solve.settings["name"])] -= 1
        model.arena.forget(number)
        return running.future

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
