"""The engine's thread: it owns all lanes of a device.

    take commands (load, submit, cancel) -> expire deadlines -> admit within the budget -> tick -> deliver

Each turn ticks the model that has used the least time, so that models share the device fairly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

from service.engine.contracts import Observer
from service.engine.desk import Desk
from service.engine.device import Device
from service.engine.job import DeadlineExceeded, EngineFailed, Job, Priority
from service.engine.model import Model, Running
from service.engine.promises import hopeless
from service.engine.scheduler import BULK_SHARE
from solvers.errors import Status

Key = tuple[str, int]
_log = logging.getLogger("pathline")

_REPRICE_EVERY = 16
"""Ticks after which the cost of jobs under error control is estimated anew from how far they have come."""

_LONGEST_RUN_S = 0.01
"""Ticks may follow each other for so long without a look at anything but commands and deadlines."""

_UNSEEN_S = 0.002
"""Ticks of a fused network may follow each other for so long without a look even at commands and deadlines."""

_LOOK_S = 0.05
"""Time after which it is looked again who will be late."""

_MOST_GIVEN_UP = 16
"""Jobs that one such look gives up at most: the next one knows more."""

STOPPED = "the engine has stopped; restart the service"


class Loop:
    """Turns of all models until it is told to stop; other threads talk to it by `send`.

    Attributes:
        desk: the jobs in hand.
        models: what jobs can be submitted for, by name and version.
        arenas: those and the retired ones that still have jobs. Both are replaced, never changed: other threads read
            them without a lock.
        stopping: set to end the loop after its turn.
        draining: whether no more jobs are taken; so when it has ended.
        turn_began: when the turn that runs began, in `time.monotonic`; None while it waits for work.
    """

    def __init__(self, tools: Device, observer: Observer | None, clock: Callable[[], float]) -> None:
        self.desk = Desk(observer, clock)
        self.models: dict[Key, Model] = {}
        self.arenas: tuple[Model, ...] = ()
        self.stopping = self.draining = False
        self._tools, self._observer, self._clock = tools, observer, clock
        self._looked = clock()
        self.turn_began: float | None = None
        self._served_s = 0.0  # time used by the model whose turn was last, before it
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Event()
        self._changing = threading.Lock()

    def send(self, command: Callable[[], object]) -> None:
        """Have the thread call something at its next turn."""
        self._commands.append(command)
        self._wake.set()

    def add(self, key: Key, model: Model) -> None:
        """Take jobs for a model from now on."""
        with self._changing:
            self.models = {**self.models, key: model}
            self.arenas = (*self.arenas, model)

    def add_beside(self, model: Model, other: Model) -> None:
        """Take jobs for another operation of a model from now on."""
        with self._changing:
            model.beside = {**model.beside, other.arena.operation: other}
            self.arenas = (*self.arenas, other)
            other.retired = model.retired

    def retire(self, loaded: object) -> None:
        """Drop the models of an arena's version once their jobs are done; on the loop's thread."""
        for model in self.arenas:
            if model.arena is loaded:
                for each in (model, *model.beside.values()):
                    each.retired = True
        self._drop_retired()

    def run(self, threads: int) -> None:
        """Take turns with so many torch threads."""
        try:
            torch.set_num_threads(threads)
            while not self.stopping:
                if not self.turn():
                    self._wake.wait()
                    self._wake.clear()
        except BaseException:
            _log.exception("the engine died")  # /livez tells, and whoever watches it restarts the service
        finally:
            self.turn_began = None
            self.draining = True
            self.desk.close(EngineFailed(STOPPED))

    def turn(self) -> bool:
        """Do what there is to do, with at most a few ticks of one model; whether there was a model with jobs."""
        self.turn_began = time.monotonic()
        begin, cost = self._clock(), self._tools.seconds()
        while self._commands:
            self._commands.popleft()()
        self.desk.expire()
        self._give_up(begin)
        busy = [model for model in self.arenas if len(model)]
        if not busy:
            self.turn_began = None
            return False
        model = min(busy, key=lambda each: each.used_s)
        self._served_s = model.used_s
        self._admit(model)
        groups = self._groups(model)
        if groups:
            rows = [model.schedulers[group].active_rows for group in groups]
            undisturbed = len(busy) == 1 and sum(map(model.arena.count, groups)) == len(model.arena)
            ticks = self._tick(model, groups, _LONGEST_RUN_S if undisturbed else 0.0)
            now = self._clock()
            took, cost = now - begin, self._tools.seconds() - cost
            model.arena.pace.learn(sum(rows), cost, took, now, ticks)
            self._account(model, groups, rows, took, alone=len(busy) == 1)
        if model.retired:
            self._drop_retired()
        return True

    def _give_up(self, now: float) -> None:
        """Tell those who can no longer be in time now: others make theirs with what they would have taken."""
        if now < self._looked + _LOOK_S:
            return
        self._looked = now
        if not any(scheduler.strained for model in self.arenas for scheduler in model.schedulers.values()):
            return
        lots = [lot for model in self.arenas for lot in model.lots(now)]
        for _ in range(_MOST_GIVEN_UP):
            found = hopeless(lots)
            if found is None:
                return
            lot, number = found
            lots = [each.without(number) if each is lot else each for each in lots]
            for running in [model.jobs[number] for model in self.arenas if number in model.jobs]:
                self.desk.abandon(running.future, DeadlineExceeded())

    def _drop_retired(self) -> None:
        with self._changing:
            self.models = {key: model for key, model in self.models.items() if not model.retired}
            self.arenas = tuple(each for each in self.arenas if not each.retired or len(each))

    def queue(self, model: Model, number: int, running: Running) -> None:
        """Take a submitted job in; on the loop's thread."""
        entry, priority = model.incoming.pop(number)
        if running.future not in self.desk.where:
            return  # cancelled before it was seen
        if model not in self.arenas:  # it was unloaded while the job was on its way
            with self._changing:
                self.arenas = (*self.arenas, model)
        if not len(model):
            # A model that was idle has saved nothing up.
            others = [each.used_s for each in self.arenas if len(each)]
            model.used_s = max(model.used_s, min(others, default=self._served_s))
        model.jobs[number] = running
        if (deadline := running.job.deadline) is not None:
            self.desk.due(number, deadline, model)
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
                    assembly.started, assembly.network_s, assembly.reported_s = now, model.arena.network.seconds, 0.0
                    model.solvers[assembly.job.solve.name] += 1
            wanted = [(number, first, count, model.jobs[number].job) for number, first, count in granted]
            try:
                for number, first, count, _ in wanted:
                    model.jobs[number].assembly.make_room(first, count)
                finished = model.arena.admit(wanted, priority, scheduler.part)
            except Exception as error:  # (what kept memory alive goes with the handler)
                model.arena.network.said(error)
            else:
                self.desk.deliver(model, finished)
                continue
            for each in wanted:
                self._admit_alone(model, priority, each)

    def _admit_alone(self, model: Model, priority: Priority, wanted: tuple[int, int, int, Job]) -> None:
        """Not all found room: each job is tried alone, and fails if even that is too much."""
        number, first, count, _ = wanted
        try:
            model.jobs[number].assembly.make_room(first, count)
            finished = model.arena.admit([wanted], priority, model.schedulers[priority].part)
        except Exception as error:
            said = model.arena.network.said(error)
        else:
            self.desk.deliver(model, finished)
            return
        future = self.desk.forget(model, number)
        self.desk.deliver(model, model.arena.stop(number, Status.CANCELLED, priority))
        self.desk.settle(future, EngineFailed(said))

    def _groups(self, model: Model) -> list[Priority]:
        """Whose lanes take part in the tick."""
        interactive, bulk = (model.arena.count(priority) for priority in Priority)
        groups = [Priority.INTERACTIVE] if interactive else []
        return [*groups, Priority.BULK] if model.turns.bulk(interactive, bulk) else groups

    def _tick(self, model: Model, groups: Sequence[Priority], longest_s: float) -> int:
        """Tick at least once, and for up to `longest_s` more while nothing happens that others must see.

        Returns:
            How many ticks.
        """
        arena, ticks = model.arena, 0
        requests, solvers = model.solvers.total(), sum(count > 0 for count in model.solvers.values())
        before = arena.network.rows
        until = min(self._clock() + longest_s, self.desk.next_deadline)
        try:
            lanes = sum(len(arena.lanes[group]) for group in groups)
            at_once = max(1, int(min(longest_s, _UNSEEN_S) / arena.pace.seconds(max(1, lanes))))
            go_on = lambda: not self._commands and self._clock() < until  # noqa: E731
            finished, failed, ticks = arena.tick(groups, go_on, at_once)
            for number, said in failed.items():
                self.desk.settle(self.desk.forget(model, number), EngineFailed(said))
            self.desk.deliver(model, finished)
        except Exception as error:
            said = arena.network.said(error)
            _log.exception("the lanes of model %s failed; their requests are told", model.name)
        else:
            said = None
        if said is not None:
            self._fail(model, groups, said)
        if self._observer is not None and ticks:
            rows = (arena.network.rows - before) // ticks  # guided lanes have two
            self._observer.batch(model.name, arena.operation, rows, requests, solvers, ticks)
        for group in groups:
            model.schedulers[group].tick += ticks
        self._after(model, groups)
        return max(1, ticks)

    def _fail(self, model: Model, groups: Sequence[Priority], said: str) -> None:
        """An error outside the network call (memory for the lanes, most likely) costs the jobs of these lanes only.

        Nobody can tell which of them caused it, and the state of their lanes is no longer known, so all of them fail;
        the lanes are made anew, and those that wait, other priorities and other models go on.
        """
        for group in groups:
            model.arena.renew(group)
        for number, running in list(model.jobs.items()):
            if running.job.priority in groups and running.assembly.started is not None:
                self.desk.settle(self.desk.forget(model, number), EngineFailed(said))

    def _after(self, model: Model, groups: Sequence[Priority]) -> None:
        """Estimate costs anew now and then, and tell those who want to know how far their job is."""
        for group in groups:
            scheduler = model.schedulers[group]
            if scheduler.tick >= model.reprice_at[group]:
                model.reprice_at[group] = scheduler.tick + _REPRICE_EVERY
                for number, pace in model.arena.paces(group).items():
                    entry = scheduler.reprice(number, *pace)
                    if entry is not None and number in model.jobs:
                        model.costs.suspect(model.jobs[number].job, entry.cost, entry.calls)
        if not model.watched:
            return
        self.desk.keep_saved(model)
        for number in list(model.watched):
            running = model.jobs[number]
            if running.job.priority in groups:
                self._report(model, number, running)

    def _report(self, model: Model, number: int, running: Running) -> None:
        job, assembly, now = running.job, running.assembly, self._clock()
        if job.on_progress is None:
            return
        model.watched.add(number)
        if now < assembly.reported_s + job.progress_s:
            return
        assembly.reported_s = now
        waiting = model.schedulers[job.priority].first_waiting(number) < job.num_samples
        job.on_progress(assembly.progress(model.arena.reached(number, job.priority), waiting))

    def _account(self, model: Model, groups: Sequence[Priority], rows: Sequence[int], took: float, alone: bool) -> None:
        interactive = rows[0] if groups[0] is Priority.INTERACTIVE else 0
        model.turns.used(interactive, sum(rows) - interactive, took)
        # Bulk lanes alone pay more where other models have work, which may be interactive.
        model.used_s += took if interactive or alone else took * (BULK_SHARE - 1)
