"""Simulation of the engine: its own admission and scheduler on a simulated clock, with network calls of measured cost.

The network is a Gaussian, as its values do not matter. Beside the engine, one thread reads requests and writes
responses, one at a time; meanwhile the engine waits, as both need Python's global lock.
"""

from __future__ import annotations

import heapq
import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.device import Device
from engine.engine import Engine
from engine.job import Job, JobResult, Overloaded, TooSlow
from fleet.capacity.measure import Speed
from fleet.capacity.mix import Kind, arrivals
from models.architectures.analytic import Gaussian
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.settings import Settings


class World(Device):
    """A device with a simulated clock and a queue of events.

    Attributes:
        now: the time on the clock.
        handled: when the thread that handles requests becomes idle.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 100.0
        self.handled = self.now
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def seconds(self) -> float:
        """Return the time."""
        return self.now

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Schedule an event."""
        heapq.heappush(self._due, (when, next(self._count), what))

    def handle(self, seconds: float) -> float:
        """Queue work for the thread that handles requests; return its end."""
        self.handled = max(self.now, self.handled) + seconds
        return self.handled

    def spend(self, seconds: float) -> None:
        """Let the engine compute for some seconds, not counting those in which requests are handled."""
        while True:
            self._run_due()
            halted = self.handled > self.now
            end = self.handled if halted else self.now + seconds
            step = min(end, self._due[0][0] if self._due else math.inf) - self.now
            self.now += step
            seconds -= 0.0 if halted else step
            if self.now + seconds <= self.now and self.handled <= self.now:  # (a remainder may be below its resolution)
                self._run_due()
                if self.handled <= self.now:
                    return

    def _run_due(self) -> None:
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()

    def skip(self, until: float) -> bool:
        """Advance the clock to the next event, or to a time if that comes first; return whether there was an event."""
        if self._due and self._due[0][0] <= until:
            self.now = max(self.now, self._due[0][0])
            self._run_due()
            return True
        if until < math.inf:
            self.now = max(self.now, until)
        return False


class Simulated(Engine):
    """An engine without a thread, driven turn by turn."""

    @property
    def alive(self) -> bool:
        """Always True."""
        return True

    def turn(self) -> bool:
        """Take one turn; return whether there is more work or a pending command."""
        return bool(self._loop.turn()) or not self._loop.commands.empty()


class _Costly(nn.Module):
    """A network with calls that take simulated time."""

    def __init__(self, inner: nn.Module, world: World, seconds: Callable[[int], float]) -> None:
        super().__init__()
        self.inner, self._world, self._seconds = inner, world, seconds

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self._world.spend(self._seconds(len(x)))
        return self.inner(x, t)


@dataclass(frozen=True)
class Found:
    """The results of one simulated replica.

    Attributes:
        latencies: (requests,) seconds until clients have their responses, ascending.
        refused: number of requests that got a 429 or 422, or were late.
        busy: share of the time that it spent computing.
    """

    latencies: list[float]
    refused: int
    busy: float

    def quantile(self, share: float) -> float:
        """Return the latency below which this share of the requests stays."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


class Replica:
    """One replica of a service on a simulated clock, which starts at 0.

    Args:
        speed: its speed.
        timeout_s: time limit of each request.
    """

    def __init__(self, speed: Speed, timeout_s: float) -> None:
        self._world, self._speed, self._timeout_s = World(), speed, timeout_s
        settings = Settings(device="cpu", threads=1, max_queue=100_000, compile="off")
        self._engine = Simulated(settings, None, self._world.clock, self._world)
        with tempfile.TemporaryDirectory() as folder:
            net = load(save(Path(folder), "net", Gaussian(), Decoder.identity((2,)), dataset={}, training={}, seed=0))
        costly = _Costly(net.velocity, self._world, speed.call)
        self._engine.load("net", 1, replace(net, velocity=costly))
        self._begin, self._idle = self._world.now, 0.0  # loading takes simulated time too

    @property
    def now(self) -> float:
        """The time on its clock."""
        return self._world.now - self._begin

    @property
    def busy(self) -> float:
        """Share of the time so far that it spent computing."""
        return 1 - self._idle / max(self.now, 1e-9)

    def send(self, kind: Kind, when: float, ended: Callable[[float | None], object]) -> None:
        """Send a request.

        Args:
            kind: its kind.
            when: time of its arrival.
            ended: called with the time at which the client has the response, or None if the request is refused or late.
        """
        came, half = self._begin + when, self._speed.handling_s / 2  # half to read it, half to write the response

        def ask() -> None:
            deadline = came + self._timeout_s
            job = Job("net", 1, kind.plan, kind.rows, deadline=deadline, trace="none", priority=kind.priority)
            try:
                future = self._engine.submit(job)
            except (Overloaded, TooSlow):
                ended(None)
                return
            future.add_done_callback(answer)

        def answer(future: Future[JobResult]) -> None:
            if future.exception() is None:
                ended(self._world.handle(half) - self._begin + self._speed.rest_s)
            else:
                ended(None)

        self._world.at(came, lambda: self._world.at(self._world.handle(half), ask))

    def advance(self, until: float = math.inf) -> None:
        """Run until a time, or until nothing is left to do; a network call that has begun is finished."""
        while self.now < until:
            if not self._engine.turn():
                before = self._world.now
                more = self._world.skip(self._begin + until)
                self._idle += self._world.now - before
                if not more:
                    return

    def stop(self) -> None:
        """Release its engine."""
        self._engine.stop()


def simulate(kinds: Sequence[Kind], rate: float, speed: Speed, requests: int, timeout_s: float, seed: int = 0) -> Found:
    """Send requests to one replica at random, independent times (a Poisson process).

    Args:
        kinds: the kinds of requests.
        rate: requests per second.
        speed: speed of the service.
        requests: number of requests.
        timeout_s: time limit of each.
        seed: fixes the arrivals.
    """
    replica = Replica(speed, timeout_s)
    latencies = list[float]()
    for when, kind in arrivals(kinds, rate, requests, seed):
        replica.send(kind, when, lambda end, when=when: None if end is None else latencies.append(end - when))
    replica.advance()
    replica.stop()
    return Found(sorted(latencies), requests - len(latencies), replica.busy)
