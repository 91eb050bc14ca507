"""The engine's interface: load models, submit jobs, get futures of results.

Any thread may call it. It decides at once whether a job is accepted (`admission.py`) and adds it to the job table
(`table.py`), under the lock of the engine's thread (`loop.py`); all else is a command to that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Protocol, overload

import torch

from engine.admission import Gate
from engine.arena import Arena
from engine.device import Device, choose_device, default_threads, device_of
from engine.job import (
    SAMPLE,
    ArenaLoad,
    Draining,
    EngineFailed,
    Job,
    JobResult,
    Operation,
    Overloaded,
    Pending,
    Priority,
    Sizes,
    TooManySamples,
    Workload,
)
from engine.loop import Loop
from engine.scheduler import part_of
from engine.stages import decoder_sizes
from engine.table import STOPPED, ActiveJob, ArenaQueue, Observer, Outcomes, settle
from models.checkpoint.loading import Checkpoint
from models.guidance import network_rows

MAX_SIZES = 16
"""Maximum number of arenas that a version keeps for sizes of its free axes."""

_BUSY_S = 0.5
"""Seconds after which a busy engine is checked again."""

_ArenaKey = tuple[Operation, Sizes]


class EngineSettings(Protocol):
    """The settings that the engine reads."""

    @property
    def device(self) -> str:
        """`auto`, `cpu`, `cuda` or `cuda:N`."""
        ...

    @property
    def threads(self) -> int:
        """CPU threads of the networks; 0 for `default_threads`."""
        ...

    @property
    def compile(self) -> str:
        """`auto` fuses networks that have a fused form; `off` never does."""
        ...

    @property
    def prelude_cache_bytes(self) -> int:
        """Bytes of results of preludes that are kept; 0 keeps none."""
        ...

    @property
    def max_queue(self) -> int:
        """Maximum number of jobs waiting or running."""
        ...


class Engine:
    """Solves jobs for any number of models on one device.

    Args:
        settings: the settings that it reads.
        observer: counts network calls and their rows, requests and solvers.
        clock: a monotonic clock in seconds, in which deadlines are given.
        tools: tools of the device; by default those of the device in the settings.
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
        self._tools = tools or device_of(self.device, settings.compile == "auto")
        self._loop = Loop(self._tools, observer, clock, settings.prelude_cache_bytes)
        self._thread: threading.Thread | None = None
        self._loader = ThreadPoolExecutor(1, "pathline-loader", self._setup_loading_thread, (10,))
        self._preparer = ThreadPoolExecutor(1, "pathline-preparer", self._setup_loading_thread, (0,))
        self._numbers = itertools.count()
        self._lock, self._table = self._loop.lock, self._loop.table  # the lock guards all that follows, too
        self._draining = False
        self._clock = clock
        self._gate = Gate(settings.max_queue, clock, self._table)
        self._versions: dict[tuple[str, int], Arena] = {}  # the newest loaded under a name and version
        self._queues: dict[Arena, dict[_ArenaKey, ArenaQueue]] = {}  # all arenas of each loaded version

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and not self._loop.closed

    @property
    def turn_s(self) -> float:
        """Seconds that the thread has spent in its current turn (one or a few network calls); 0 without work."""
        since = self._loop.working_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    @property
    def device_name(self) -> str:
        """The vendor's name for the device."""
        return self._tools.name

    @property
    def active_jobs(self) -> int:
        """Jobs that wait or run."""
        return len(self._table)

    @property
    def queue_depth(self) -> int:
        """Jobs with no sample running yet."""
        with self._lock:
            return sum(
                not entry.admitted
                for queue in self._table.queues.values()
                for scheduler in queue.schedulers
                for entry in scheduler.entries.values()
            )

    @property
    def active_lanes(self) -> int:
        """Samples that are being solved."""
        with self._lock:
            return sum(
                entry.active
                for queue in self._table.queues.values()
                for scheduler in queue.schedulers
                for entry in scheduler.entries.values()
            )

    def workload(self) -> Workload:
        """Return the work left, for every arena."""
        with self._lock:
            loads = {
                (*key, " ".join((operation.name, *(f"{axis}={size}" for axis, size in sizes)))): ArenaLoad(
                    queue.work(False),
                    queue.work(True),
                    queue.arena.budget,
                    tuple((rows, queue.ticks.stretch * cost) for rows, cost in queue.ticks.sizes),
                )
                for key, loaded in self._versions.items()
                for (operation, sizes), queue in self._queues[loaded].items()
            }
            return Workload(len(self._table), self._gate.all_s(), loads)

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._loop.run, args=(self.threads,), name="pathline-engine", daemon=True
            )
            self._thread.start()

    def deliver_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Complete futures on an event loop from now on, all of a tick in one call, not on the engine's thread."""

        def deliver(outcomes: Outcomes) -> None:
            try:
                loop.call_soon_threadsafe(settle, outcomes)
            except RuntimeError:  # it has been closed, and nobody waits there
                settle([outcome for outcome in outcomes if isinstance(outcome[0], Future)])

        self._loop.deliver = deliver

    def drain(self) -> None:
        """Accept no more jobs; current jobs continue."""
        with self._lock:
            self._draining = True

    def give_up(self) -> None:
        """Accept no more jobs and end current ones with `Draining`."""
        self.drain()
        self._loop.commands.put(self._loop.give_up)

    def stop(self) -> None:
        """Give up all jobs and end the thread."""
        self.drain()
        for threads in (self._loader, self._preparer):
            threads.shutdown(wait=False, cancel_futures=True)
        self._loop.commands.put(self._loop.stop)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def load(self, name: str, version: int, checkpoint: Checkpoint) -> Arena:
        """Measure a model and make it ready, while jobs of other models continue.

        A separate thread measures it, with the engine's number of torch threads, which decides the bits, and at low
        priority, so that running jobs hardly notice. Errors of its network pass through.
        """
        arena = self._loader.submit(self._make, checkpoint).result()
        with self._lock:
            self._queues[arena] = {(SAMPLE, ()): self._open(name, arena)}
            self._versions[name, version] = arena
        return arena

    def _make(
        self, checkpoint: Checkpoint, operation: Operation = SAMPLE, sizes: Sizes = (), loaded: Arena | None = None
    ) -> Arena:
        """Make an arena, which shares its stages with those of the same version that have the same sizes."""
        with self._lock:
            queues = {} if loaded is None else self._queues[loaded]
            siblings = {others: queue.arena for (_, others), queue in queues.items()}
        same, decoded = siblings.get(sizes), decoder_sizes(checkpoint, sizes)
        decoders = (arena.decoder for others, arena in siblings.items() if decoder_sizes(checkpoint, others) == decoded)
        prelude = None if same is None else same.prelude
        return Arena(checkpoint, self._tools, operation, sizes, prelude, next(decoders, None))

    def prepared(self, name: str, version: int, operation: Operation, sizes: Sizes = ()) -> Arena | None:
        """The arena of an operation of a loaded version for these sizes; None if `prepare` must make it first.

        Raises:
            KeyError: the version is not loaded.
        """
        with self._lock:
            queues = self._queues[self._versions[name, version]]
            queue = queues.get((operation, sizes))
            if queue is not None and sizes:  # the last used comes last
                queues[operation, sizes] = queues.pop((operation, sizes))
            return None if queue is None else queue.arena

    def prepare(self, name: str, version: int, operation: Operation, sizes: Sizes = ()) -> Arena:
        """Make the arena of an operation of a loaded version, for a request that waits; a second call does nothing.

        Of its arenas for sizes of free axes, a version keeps the last few used; jobs in the others run to their end.

        Raises:
            Draining: the engine takes no more.
            KeyError: the version is not loaded, or was unloaded meanwhile. Errors of its network pass through.
        """

        def make() -> Arena:
            arena = self.prepared(name, version, operation, sizes)
            if arena is None:
                loaded = self._versions[name, version]
                arena = self._make(loaded.checkpoint, operation, sizes, loaded)
                with self._lock:
                    siblings = self._queues[loaded]
                    siblings[operation, sizes] = self._open(name, arena)
                    sized = [key for key in siblings if key[1]]
                    self._retire([siblings.pop(key) for key in sized[: max(0, len(sized) - MAX_SIZES)]])
            return arena

        try:
            arena = self._preparer.submit(make)
        except RuntimeError:  # it was shut down
            raise Draining from None
        try:
            return arena.result()
        except CancelledError:
            raise Draining from None

    def _open(self, name: str, arena: Arena) -> ArenaQueue:
        queue = ArenaQueue(next(self._numbers), name, arena)
        self._table.queues[queue.number] = queue
        return queue

    def _retire(self, queues: Iterable[ArenaQueue]) -> None:
        """Let the engine's thread drop arenas once their jobs are done."""
        self._loop.commands.put(partial(self._loop.retire, tuple(queues)))

    def unload(self, arena: Arena) -> None:
        """Free an arena that `load` returned, and those of its other operations, once their jobs are done.

        Returns at once. A version loaded later under the same name and number stays; a second call does nothing.
        """
        with self._lock:
            queues = self._queues.pop(arena, None)
            if queues is not None:
                self._versions = {key: loaded for key, loaded in self._versions.items() if loaded is not arena}
                self._retire(queues.values())

    @overload
    def submit(self, job: Job) -> Future[JobResult]: ...
    @overload
    def submit(self, job: Job, future: asyncio.Future[JobResult]) -> asyncio.Future[JobResult]: ...
    def submit(self, job: Job, future: asyncio.Future[JobResult] | None = None) -> Pending:
        """Queue a job, and return the future of its result: one of the loop of `deliver_on`, or by default a new one.

        Raises:
            Draining: the engine takes no more.
            TooManySamples: they share their steps, and one part of the row budget does not hold them.
            TooSlow: the job would miss its deadline even with the machine to itself.
            Overloaded: the queue is full, or the job would miss its deadline or make another miss its own.
            EngineFailed: the thread has died.
            KeyError: the model version is not loaded, or its operation not prepared.
        """
        loop = self._loop
        with self._lock:
            if self._draining:
                raise Draining
            if not self.alive:
                raise EngineFailed(STOPPED)
            queues = self._queues[self._versions[job.model, job.version]]
            if job.sizes and (job.operation, job.sizes) not in queues:  # retired since it was prepared
                raise Overloaded("requests have too many different shapes at once", _BUSY_S)
            queue = queues[job.operation, job.sizes]
            job, arena = _grouped(job, queue.arena.budget), queue.arena
            pending = Future[JobResult]() if future is None else future
            make = partial(ActiveJob, job=job, queue=queue, bulk=job.priority is Priority.BULK, future=pending)
            active = self._gate.take(queue, job, arena.stages_s(job) if arena.stages else 0.0, make)
            self._table.add(active)
            if loop.working_since is None:
                loop.working_since = self._clock()
        loop.commands.put(partial(self._table.begin, active))
        return pending

    def pace(
        self, name: str, version: int, calls: float, work: float, rows: float, priority: Priority, sizes: Sizes = ()
    ) -> float:
        """Return the seconds that a job of samples would take now if it ran alone.

        Sizes without an arena are assumed to cost as much per number as those of the arena made at load.

        Args:
            name, version: of a loaded model.
            calls: of its slowest sample.
            work: network rows in all.
            rows: network rows of one call of all its samples.
            priority: of the job.
            sizes: of the free axes.
        """
        with self._lock:
            queues, rate = self._queues[self._versions[name, version]], 1.0
            queue = queues.get((SAMPLE, sizes))
            if queue is None:
                queue = queues[SAMPLE, ()]
                arena = queue.arena
                rate = math.prod(arena.checkpoint.card.event_of(dict(sizes))) / math.prod(arena.event_shape)
            bulk = priority is Priority.BULK or not queue.schedulers[False].is_small(math.ceil(rate * rows))
            return queue.alone_s(calls, rate * work, rate * rows, bulk)

    def cancel(self, future: Pending) -> None:
        """Cancel a job; its lanes are removed before the next tick."""
        self._loop.commands.put(partial(self._table.cancel, future))

    def _setup_loading_thread(self, niceness: int) -> None:
        """Set up a thread that makes arenas: its number of torch threads, and how far it gives way to the engine's."""
        torch.set_num_threads(self.threads)
        if niceness:
            with contextlib.suppress(AttributeError, OSError):  # not every system has a priority for each thread
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)


def _grouped(job: Job, budget: int) -> Job:
    """Return a job with the priority of the lanes that it joins: one that is larger than a part joins the bulk jobs.

    A job with samples that share their steps needs all of them in the same call, and so the room of small jobs.

    Raises:
        TooManySamples: there is not enough of that.
    """
    part, width = part_of(budget), network_rows(job.guidance)
    if job.plan.batch and job.num_samples > 1:
        if job.num_samples * width > part:
            raise TooManySamples(job.num_samples, max(1, part // width))
        return job if job.priority is Priority.INTERACTIVE else replace(job, priority=Priority.INTERACTIVE)
    if job.num_samples * width > part and job.priority is Priority.INTERACTIVE:
        return replace(job, priority=Priority.BULK)
    return job
