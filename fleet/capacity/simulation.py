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
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fleet.capacity.measure import Speed
from fleet.capacity.mix import Kind, arrivals
from models.architectures.analytic import Gaussian
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.engine.device import Device
from service.engine.engine import Engine
from service.engine.job import Job, Overloaded, TooSlow
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
            self._happen()
            halted = self.handled > self.now
            end = self.handled if halted else self.now + seconds
            step = min(end, self._due[0][0] if self._due else math.inf) - self.now
            self.now += step
            seconds -= 0.0 if halted else step
            if seconds <= 1e-12 and self.handled <= self.now:
                self._happen()
                if self.handled <= self.now:
                    return

    def _happen(self) -> None:
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()

    def skip(self) -> bool:
        """Advance the clock to the next event; return whether there is one."""
        if self._due:
            self.now = max(self.now, self._due[0][0])
            self._happen()
            return True
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
    world = World()
    engine = Simulated(Settings(device="cpu", threads=1, max_queue=100_000, compile="off"), None, world.clock, world)
    with tempfile.TemporaryDirectory() as folder:
        net = load(save(Path(folder), "net", Gaussian(), Decoder.identity((2,)), dataset={}, training={}, seed=0))
    engine.load("net", 1, replace(net, velocity=_Costly(net.velocity, world, speed.call)))
    latencies, refused, begin = list[float](), 0, world.now
    half = speed.handling_s / 2  # half to read the request, half to write the response

    def ask(kind: Kind, came: float) -> None:
        nonlocal refused
        job = Job("net", 1, kind.plan, kind.rows, deadline=came + timeout_s, trace="none", priority=kind.priority)
        try:
            future = engine.submit(job)
        except (Overloaded, TooSlow):
            refused += 1
            return

        def ended(_: object) -> None:
            nonlocal refused
            if future.exception() is None:
                latencies.append(world.handle(half) - came + speed.rest_s)
            else:
                refused += 1

        future.add_done_callback(ended)

    def come(kind: Kind) -> None:
        came = world.now
        world.at(world.handle(half), lambda: ask(kind, came))

    for when, kind in arrivals(kinds, rate, requests, seed):
        world.at(begin + when, lambda kind=kind: come(kind))
    idle = 0.0
    while True:
        if not engine.turn():
            before = world.now
            if not world.skip():
                break
            idle += world.now - before
    engine.stop()
    return Found(sorted(latencies), refused, 1 - idle / max(world.now - begin, 1e-9))
