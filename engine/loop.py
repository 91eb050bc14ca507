"""The engine's thread, which owns all jobs and lanes of a device.

Each turn:

    take commands -> end late jobs -> schedule -> publish and deliver -> tick

A turn goes to the arena that has used the least time, so that models share the device fairly. Other threads send
commands, the only way to change its state, and read `snapshot`; they touch nothing else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import NamedTuple

import torch

from engine.arena_queue import ActiveJob, ArenaQueue
from engine.device import Device
from engine.job import Draining, EngineFailed, Job, JobResult, Outcome, Priority
from engine.job_table import STOPPED, JobTable, Observer, Outcomes, settle
from engine.result_builder import ResultBuilder
from engine.scheduler import BULK_SHARE, Entry
from engine.snapshot import ArenaSnapshot, EngineSnapshot
from engine.stages import Pass, Stage

_log = logging.getLogger("pathline")

_LONGEST_RUN_S = 0.01
"""Longest run of ticks between which only commands and deadlines are checked."""

_UNCHECKED_RUN_S = 0.002
"""Longest run of ticks of a fused network with no check at all in between, in processor time."""

_LINGER_S = 0.001
"""Longest time for which lanes of a fused network that have ended wait for others, to be collected together, in
processor time."""


class Open(NamedTuple):
    """Open an arena for jobs."""

    queue: ArenaQueue


class Retire(NamedTuple):
    """Close arenas, by number, once their jobs are done."""

    arenas: tuple[int, ...]


class Submit(NamedTuple):
    """Solve a job in an arena."""

    arena: int
    job: Job
    entry: Entry
    future: Future[JobResult]


class Cancel(NamedTuple):
    """Cancel a job."""

    future: Future[JobResult]


class Built(NamedTuple):
    """Deliver a result that was built off the engine's thread."""

    future: Future[JobResult]
    outcome: Outcome


class GiveUp(NamedTuple):
    """End all jobs with `Draining`."""


class Stop(NamedTuple):
    """End the thread."""


Command = Open | Retire | Submit | Cancel | Built | GiveUp | Stop
"""The commands that change the thread's state, taken in order from one queue."""


class _Mark(NamedTuple):
    """The start of a turn, on the engine's clock, and on the device's clock of work (`Device.seconds`)."""

    now: float
    cost: float


class Loop:
    """The loop of the engine's thread: turns of all arenas until `Stop`.

    Attributes:
        commands: commands from other threads, which only put.
        snapshot: the state after the last tick; other threads only read it.
        deliver: completes the futures of a turn, all at once.
        closed: whether the loop has ended; a command put before this reads False is certain to be seen.
    """

    def __init__(
        self, tools: Device, observer: Observer | None, clock: Callable[[], float], prelude_cache_bytes: int = 0
    ) -> None:
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.snapshot = EngineSnapshot()
        self.deliver: Callable[[Outcomes], object] = settle
        self.closed = False
        self._tools, self._observer, self._clock = tools, observer, clock
        self._table = JobTable(
            observer,
            clock,
            lambda future, outcome: self.commands.put(Built(future, outcome)),
            self._begin,
            prelude_cache_bytes,
        )
        self._stages: list[Stage] = []  # stages with waiting rows
        self._queues: dict[int, ArenaQueue] = {}
        self._seen = -math.inf
        self._stopping = False
        self._served_s = 0.0  # time used by the arena of the last turn, before that turn
        self._began: _Mark | None = None  # the end of the last turn, unless it was idle

    def run(self, threads: int) -> None:
        """Take turns until `Stop`, with this number of torch threads."""
        try:
            torch.set_num_threads(threads)
            while not self._stopping:
                if not self.turn() and not self._stopping:
                    self._execute(self.commands.get())
        except BaseException:
            _log.exception("the engine died")  # /livez reports it, so that a supervisor restarts the service
        finally:
            self._close()

    def turn(self) -> bool:
        """Take one turn, with at most a few ticks of one arena; return whether any arena had jobs."""
        now = self._clock()
        begin = self._began or _Mark(now, self._tools.seconds())
        while not self.commands.empty():
            self._execute(self.commands.get_nowait())
        self._table.expire(now)
        busy = self._busy()
        if not busy:
            self._publish(now)
            self._began = None
            return False
        chosen = min(busy, key=lambda each: each.used_s)
        self._served_s = chosen.used_s
        if isinstance(chosen, Stage):
            self._publish(now)
            self._pass(chosen, alone=len(busy) == 1)
            return True
        groups = self._schedule(chosen)
        self._publish(now)
        if groups:
            self._tick(chosen, groups, begin, alone=len(busy) == 1)
        return True

    def _busy(self) -> list[ArenaQueue | Stage]:
        """Arenas and stages with work to do."""
        self._stages = [stage for stage in self._stages if stage.passes]
        return [*(queue for queue in self._queues.values() if queue.jobs and queue.ready), *self._stages]

    def _begin(self, stage: Stage, rows: Pass) -> None:
        """Queue rows for a stage."""
        if not stage.passes:
            stage.used_s = self._fair(stage.used_s)
        stage.passes.append(rows)
        if stage not in self._stages:
            self._stages.append(stage)

    def _fair(self, used_s: float) -> float:
        """The used time to give an arena or stage that was idle until now: idling earns no credit."""
        return max(used_s, min((each.used_s for each in self._busy()), default=self._served_s))

    def _pass(self, stage: Stage, alone: bool) -> None:
        """Run one slice of a stage's waiting rows."""
        begin = self._clock()
        turn = stage.turn()
        took = self._clock() - begin
        self._table.passed(turn.ended, turn.failed)
        if self._observer is not None:
            self._observer.batch(stage.model, stage.name, turn.rows, turn.passes, turn.solvers, 1)
        stage.used_s += took if alone or not turn.bulk else took * (BULK_SHARE - 1)
        self._began = None
        self._publish(self._clock())

    def _execute(self, command: Command) -> None:
        match command:
            case Submit():
                self._seen = command.entry.number
                self._take(command)
            case Cancel():
                self._table.cancel(command.future)
            case Built():
                self._table.built(command.future, command.outcome)
            case Open():
                self._queues[command.queue.number] = command.queue
            case Retire():
                for number in command.arenas:
                    self._queues[number].retired = True
            case GiveUp():
                self._table.abandon_all(Draining())
            case Stop():
                self._stopping = True

    def _take(self, command: Submit) -> None:
        queue, job = self._queues[command.arena], command.job
        if not queue.jobs:
            queue.used_s = self._fair(queue.used_s)
        builder = ResultBuilder(job, queue.arena.event_shape, queue.arena.dtype)
        self._table.add(ActiveJob(command.entry.number, command.entry, job, command.future, builder, queue))
        if job.on_progress is not None:
            self._table.report(queue, [command.entry.number])

    def _schedule(self, queue: ArenaQueue) -> list[Priority]:
        """Admit as many samples as fit; return the priorities that take part in the tick."""
        for priority in Priority:
            if granted := queue.grant(priority):
                self._admit(queue, priority, granted)
        return queue.groups()

    def _admit(
        self, queue: ArenaQueue, priority: Priority, granted: list[tuple[ActiveJob, int, int]], alone: bool = False
    ) -> None:
        """Start lanes. If memory does not suffice for all, try each job alone, and fail those that do not fit."""
        try:
            for active, first, count in granted:
                active.builder.make_room(first, count)
            wanted = [(active.number, first, count, active.job) for active, first, count in granted]
            ended = queue.arena.admit(wanted, priority)
        except Exception as error:  # (the exception, which keeps memory alive, goes with the handler)
            message = queue.arena.network.describe_error(error)
        else:
            self._table.take(queue, ended)
            return
        for each in granted:
            if alone:
                self._table.abandon(each[0], EngineFailed(message))
            else:
                self._admit(queue, priority, [each], alone=True)

    def _tick(self, queue: ArenaQueue, groups: Sequence[Priority], begin: _Mark, alone: bool) -> None:
        """Tick and collect finished lanes; several times if nothing else needs attention meanwhile."""
        arena, rows, before = queue.arena, queue.rows(groups), queue.arena.network.rows
        requests, solvers = queue.in_calls
        undisturbed = alone and sum(map(arena.count, groups)) == len(arena)
        longest_s = _LONGEST_RUN_S if undisturbed else 0.0
        until = min(self._clock() + longest_s, self._table.next_deadline)
        ticks, message = 0, None
        try:
            lanes = sum(len(arena.lanes[group]) for group in groups)
            call_s = arena.tick_cost.cost(max(1, lanes))
            at_once, more = (
                max(1, int(min(longest_s, _UNCHECKED_RUN_S) / call_s)),
                int(min(longest_s, _LINGER_S) / call_s),
            )
            keep_going = lambda: self.commands.empty() and self._clock() < until  # noqa: E731
            ended, failed, ticks = arena.tick(groups, keep_going, at_once, more)
            for number, why in failed.items():
                self._table.end(queue.jobs[number], EngineFailed(why))
            self._table.take(queue, ended)
        except Exception as error:
            message = arena.network.describe_error(error)
            _log.exception("the lanes of model %s failed, and their requests with them", queue.name)
        if message is not None:  # (outside the handler: the exception keeps the failed call's memory alive)
            self._fail(queue, groups, message)
        if self._observer is not None and ticks:
            called = (arena.network.rows - before) // ticks  # guided lanes have two
            self._observer.batch(queue.name, arena.operation.name, called, requests, solvers, ticks)
        queue.ticked(groups, ticks)
        if queue.watched:
            self._table.report(queue, [each for each in queue.watched if queue.jobs[each].job.priority in groups])
        now, cost = self._clock(), self._tools.seconds()
        took = now - begin.now
        arena.tick_cost.learn(sum(rows), cost - begin.cost, took, now, max(1, ticks))
        queue.used(groups, rows, took, alone)
        self._began = _Mark(now, cost)

    def _fail(self, queue: ArenaQueue, groups: Sequence[Priority], message: str) -> None:
        """Fail the jobs of these lanes after an error outside the network call (most likely, memory for the lanes).

        The job that caused it and the state of the lanes are unknown, so all of these jobs fail and the lanes are
        recreated. Waiting jobs, other priorities and other arenas continue.
        """
        for group in groups:
            queue.arena.renew(group)
        for active in list(queue.jobs.values()):
            if active.job.priority in groups and active.builder.started is not None:
                self._table.end(active, EngineFailed(message))

    def _publish(self, now: float) -> None:
        """Publish the snapshot, then deliver: receivers of results may read the snapshot at once."""
        arenas: dict[int, ArenaSnapshot] = {}
        working = bool(self._stages)
        for number, queue in self._queues.items():
            if queue.jobs:
                working = True
            elif queue.retired:
                continue
            arenas[number] = queue.snapshot()
        if len(arenas) < len(self._queues):
            self._queues = {number: self._queues[number] for number in arenas}
        stages_s = sum(stage.left_s for stage in self._stages)
        self.snapshot = EngineSnapshot(arenas, len(self._table), self._seen, now if working else None, stages_s)
        if outcomes := self._table.outcomes():
            self.deliver(outcomes)

    def _close(self) -> None:
        """Fail every job in progress or still in the command queue."""
        self.closed = True
        self._queues.clear()
        self._table.close(EngineFailed(STOPPED))
        while not self.commands.empty():
            command = self.commands.get_nowait()
            if isinstance(command, Built):
                self._table.closing(command.future, command.outcome)
            elif isinstance(command, Submit):
                self._table.add_outcome(command.future, EngineFailed(STOPPED))
        self.snapshot = EngineSnapshot(seen=math.inf)
        self.deliver(self._table.outcomes())
