"""The real engine on a simulated clock, with a network of known cost: no threads, no waiting, always the same."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from engine.device import Device
from engine.engine import Engine
from engine.job import Job, JobResult, Overloaded, TooLate, TooSlow
from models.checkpoint.loading import Checkpoint
from models.conditions import NamedConditions
from models.forms.form import Form

from .conftest import Field, Settings, job

START = 1000.0
"""The time at which a simulated service has loaded its model, on its clock."""


class World(Device):
    """A device with a simulated clock and a queue of events."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 100.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()

    def clock(self) -> float:
        return self.now

    def seconds(self) -> float:
        return self.now

    def form(self, checkpoint: Checkpoint, condition: NamedConditions | None) -> Form:
        """Take rows as independent: calls padded to the numbers whose bits agree here would depend on the machine."""
        return replace(super().form(checkpoint, condition), independent=True)

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Schedule an event."""
        heapq.heappush(self._due, (when, next(self._count), what))

    def spend(self, seconds: float) -> None:
        """Let the engine compute for some seconds, in which events happen."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, what = heapq.heappop(self._due)
            self.now = max(self.now, when)
            what()
        self.now = end

    def skip(self) -> bool:
        """Advance the clock to the next event; return whether there was one."""
        if not self._due:
            return False
        self.now = max(self.now, self._due[0][0])
        self.spend(0.0)
        return True


class Simulated(Engine):
    """An engine without a thread, driven turn by turn."""

    @property
    def alive(self) -> bool:
        return True

    def turn(self) -> bool:
        """Take one turn; return whether there is more work or a pending command."""
        with torch.inference_mode():
            return self._loop.turn() or not self._loop.commands.empty()


@dataclass
class Attempt:
    """The outcome of one request, and when it was sent and answered.

    Attributes:
        outcome: `200`, `429`, `422` or `504`, as in HTTP.
        retry_s: the wait that a refusal promised.
    """

    began: float
    job: Job
    outcome: str = ""
    answered: float = 0.0
    retry_s: float = 0.0
    future: Future[JobResult] | None = None


class Service:
    """A simulated engine with one model, `net`; a call costs `call_s`, and `row_s` for each row."""

    def __init__(self, net: Checkpoint, call_s: float = 5e-4, row_s: float = 8e-5, slower: Sequence[Any] = ()) -> None:
        self.world, self.attempts = World(), []
        self.calls: list[tuple[float, int]] = []  # time and number of rows
        self.slower = slower  # (from, until, factor)
        field = Field(net.velocity)

        def hook(x: Tensor, t: Tensor) -> None:
            now = self.world.now
            times = next((factor for begin, end, factor in self.slower if begin <= now < end), 1.0)
            self.calls.append((now, len(x)))
            self.world.spend(times * (call_s + row_s * len(x)))

        field.hook = hook
        self.engine = Simulated(Settings(max_queue=1000), None, self.world.clock, self.world)
        self.engine.load("net", 1, replace(net, velocity=field))
        self.calls.clear()
        self.world.now = START

    def ask(self, limit_s: float = 2.0, **arguments: Any) -> Attempt:
        """Submit a job now."""
        given = job(**arguments, deadline=self.world.now + limit_s)
        attempt = Attempt(self.world.now, given)
        self.attempts.append(attempt)
        try:
            attempt.future = self.engine.submit(given)
        except (Overloaded, TooSlow) as refusal:
            attempt.outcome, attempt.answered = ("429" if isinstance(refusal, Overloaded) else "422"), self.world.now
            attempt.retry_s = getattr(refusal, "retry_after_s", 0.0)
            return attempt

        def answered(future: Future[JobResult]) -> None:
            attempt.answered = self.world.now
            attempt.outcome = "504" if isinstance(future.exception(), TooLate) else "200"

        attempt.future.add_done_callback(answered)
        return attempt

    def arrivals(self, rate: float, seconds: float, seed: int, draw: Callable[[Random], dict[str, Any]]) -> None:
        """Send requests at random times, `rate` per second."""
        chance, when = Random(seed), self.world.now
        while True:
            when += chance.expovariate(rate)
            if when > self.world.now + seconds:
                return
            self.world.at(when, partial(self.ask, **draw(chance)))

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Take turns until nothing is left to do."""
        while not until():
            if not self.engine.turn() and not self.world.skip():
                return

    def count(self, outcome: str) -> int:
        return sum(attempt.outcome == outcome for attempt in self.attempts)
