"""The engine's thread, which owns all lanes of a device.

Each turn:

    take commands -> end late jobs -> choose an arena -> deliver -> admit samples -> tick

A turn goes to the arena that has used the least time, so that models share the device fairly. The lock guards the job
table, to which other threads add jobs; it is free while the network computes. All else that other threads want done is
a command.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import torch

from engine.device import Device
from engine.job import Draining, EngineFailed, Outcome, Pending
from engine.scheduler import BULK_SHARE
from engine.stages import Stage
from engine.table import ActiveJob, ArenaQueue, JobTable, Observer, Outcomes, settle

_log = logging.getLogger("pathline")

_LONGEST_RUN_S = 0.01
"""Longest run of ticks between which only commands and deadlines are checked."""

_UNCHECKED_RUN_S = 0.002
"""Longest run of ticks of compiled lanes with no check at all in between, in processor time."""

_LINGER_S = 0.001
"""Longest time for which compiled lanes that have ended wait for others, to be collected together, in processor
time."""

Command = Callable[[], object]
"""What another thread wants done, called in the engine's thread under its lock, in order."""

Granted = list[tuple[ActiveJob, int, int]]
"""Samples that become lanes: job, first sample, count."""


class Loop:
    """The loop of the engine's thread: turns of all arenas until `stop`.

    Attributes:
        lock: guards `table` and the costs in its queues.
        table: all jobs.
        commands: what other threads want done.
        working_since: when the current turn began, or the first job came after an idle one, by the clock; None if idle.
        deliver: completes the futures of a turn, all at once.
        closed: whether the loop has ended; a command put before this reads False is certain to be seen.
    """

    def __init__(
        self, tools: Device, observer: Observer | None, clock: Callable[[], float], prelude_cache_bytes: int = 0
    ) -> None:
        self.lock = threading.Lock()
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.working_since: float | None = None
        self.deliver: Callable[[Outcomes], object] = settle
        self.closed = False
        self._tools, self._observer, self._clock = tools, observer, clock
        self.table = JobTable(observer, clock, self._send_built, prelude_cache_bytes)
        self._stopping = False
        self._first: Command | None = None  # the one that ended the idle time
        self._began: tuple[float, float] | None = None  # the end of the last turn, by the clock and the device's clock

    def run(self, threads: int) -> None:
        """Take turns until `stop`, with this number of torch threads."""
        try:
            torch.set_num_threads(threads)
            with torch.inference_mode(), self._tools.scope():
                while not self._stopping:
                    if not self.turn() and not self._stopping:
                        self._first = self.commands.get()
        except BaseException:
            _log.exception("the engine died")  # /livez reports it, so that a supervisor restarts the service
        finally:
            self._close()

    def stop(self) -> None:
        """End the thread: a command."""
        self._stopping = True

    def give_up(self) -> None:
        """End all jobs with `Draining`: a command."""
        self.table.abandon_all(Draining())

    def retire(self, queues: Sequence[ArenaQueue]) -> None:
        """Drop arenas once their jobs are done: a command."""
        for queue in queues:
            queue.retired = True

    def _send_built(self, future: Pending, outcome: Outcome) -> None:
        self.commands.put(lambda: (self.table.close_built if self.closed else self.table.built)(future, outcome))

    def turn(self) -> bool:
        """Take one turn, with about 10 ms of ticks of one arena, or a slice of a stage; return whether any had jobs."""
        table, granted = self.table, list[Granted]()
        with self.lock:
            now = self._clock()
            begin = self._began or (now, self._tools.seconds())
            if self._first is not None:
                self._first()
                self._first = None  # it may hold what is to be freed
            while not self.commands.empty():
                self.commands.get_nowait()()
            if now >= table.next_deadline:
                table.expire(now)
            busy = table.busy()
            self.working_since = now if busy else None
            chosen = busy[0] if busy else None
            for candidate in busy[1:]:
                if chosen is not None and candidate.used_s < chosen.used_s:
                    chosen = candidate
            if chosen is not None:
                table.served_s = chosen.used_s
            if isinstance(chosen, ArenaQueue):
                granted = [chosen.grant(False), chosen.grant(True)]
            outcomes = table.outcomes()
        if outcomes:
            self.deliver(outcomes)
        if chosen is None:
            self._began = None
        elif isinstance(chosen, ArenaQueue):
            for bulk, samples in zip((False, True), granted, strict=True):
                if samples:
                    self._admit(chosen, bulk, samples)
            if groups := chosen.groups():
                self._tick(chosen, groups, begin, alone=len(busy) == 1)
        else:
            self._pass(chosen, alone=len(busy) == 1)
        return chosen is not None

    def _admit(self, queue: ArenaQueue, bulk: bool, granted: Granted, alone: bool = False) -> None:
        """Start lanes. If memory does not suffice for all, try each job alone, and fail those that do not fit."""
        try:
            for active, first, count in granted:
                active.builder.make_room(first, count)
            samples = [(active.number, first, count, active.job) for active, first, count in granted]
            ended = queue.arena.admit(samples, bulk)
        except Exception as error:  # (the exception, which keeps memory alive, goes with the handler)
            message = queue.arena.network.describe_error(error)
        else:
            if ended:
                with self.lock:
                    self.table.take(queue, ended)
            return
        for grant in granted:
            if alone:
                with self.lock:
                    self.table.abandon(grant[0], EngineFailed(message))
            else:
                self._admit(queue, bulk, [grant], alone=True)

    def _tick(self, queue: ArenaQueue, groups: Sequence[bool], begin: tuple[float, float], alone: bool) -> None:
        """Tick and collect finished lanes; several times if nothing else needs attention meanwhile."""
        arena, table, ticks, message = queue.arena, self.table, 0, None
        rows, before = [queue.schedulers[group].active_rows for group in groups], arena.network.rows
        requests, solvers = queue.requests, len(queue.solvers)
        lanes = [arena.counts[group] for group in groups]
        longest_s = _LONGEST_RUN_S if alone and sum(lanes) == sum(arena.counts) else 0.0
        until = min(self._clock() + longest_s, table.next_deadline)
        call_s = arena.tick_cost.cost(max(1, sum(lanes)))
        at_once, more = max(1, int(min(longest_s, _UNCHECKED_RUN_S) / call_s)), int(min(longest_s, _LINGER_S) / call_s)
        try:
            ended, failed, ticks = arena.tick(
                groups, lambda: self.commands.empty() and self._clock() < until, at_once, more
            )
        except Exception as error:
            ended, failed, message = [], {}, arena.network.describe_error(error)
            _log.exception("the lanes of model %s failed, and their requests with them", queue.name)
        # (outside the handler: the exception keeps the failed call's memory alive)
        if self._observer is not None and ticks:
            called = (arena.network.rows - before) // ticks  # a guided lane has a row for each term
            self._observer.batch(queue.name, arena.operation.name, called, requests, solvers, ticks)
        with self.lock:
            if message is None:
                for number, why in failed.items():
                    table.end(queue.jobs[number], EngineFailed(why))
                table.take(queue, ended)
            else:
                self._fail(queue, groups, message)
            now, cost = self._clock(), self._tools.seconds()
            took = now - begin[0]
            arena.tick_cost.learn(sum(rows), cost - begin[1], took, now, max(1, ticks))
            queue.ticked(groups, rows, ticks, took, alone)
            queue.report(groups, now)
        self._began = now, cost

    def _fail(self, queue: ArenaQueue, groups: Sequence[bool], message: str) -> None:
        """Fail the jobs of these lanes after an error outside the network call (most likely, memory for the lanes).

        The job that caused it and the state of the lanes are unknown, so all of these jobs fail and the lanes are
        recreated. Waiting jobs, other priorities and other arenas continue.
        """
        for group in groups:
            queue.arena.renew(group)
        for active in list(queue.jobs.values()):
            if active.bulk in groups and active.builder.started is not None:
                self.table.end(active, EngineFailed(message))

    def _pass(self, stage: Stage, alone: bool) -> None:
        """Run one slice of a stage's waiting rows."""
        begin = self._clock()
        turn = stage.turn()
        if self._observer is not None:
            self._observer.batch(stage.model, stage.name, turn.rows, turn.passes, turn.solvers, 1)
        took = self._clock() - begin
        with self.lock:
            stage.used_s += took if alone or not turn.bulk else took * (BULK_SHARE - 1)
            self.table.passed(turn.ended, turn.failed)
        self._began = None

    def _close(self) -> None:
        """Fail every job in progress, and deliver the results that were being built."""
        self.closed = True
        with self.lock:
            self.table.close()
            while not self.commands.empty():
                self.commands.get_nowait()()
            self.working_since = None
            outcomes = self.table.outcomes()
        self.deliver(outcomes)
