"""A simulation of the engine: its admission and scheduler on a simulated clock, and network calls of measured cost.

The network is a Gaussian, as its numbers do not matter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import torch
from torch import Tensor, nn

from fleet.capacity.mix import Kind
from models.architectures.analytic import Gaussian
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.engine.device import Device
from service.engine.engine import Engine
from service.engine.job import Job, Overloaded, TooSlow
from service.settings import Settings


class World(Device):
    """A device with a simulated clock, and the events in its time.

    Attributes:
        now: the clock.
        calls: (time, rows) of each network call.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 100.0
        self.calls: list[tuple[float, int]] = []
        self._due: list[tuple[float, Callable[[], object]]] = []

    def clock(self) -> float:
        """The time."""
        return self.now

    def seconds(self) -> float:
        """The time."""
        return self.now

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Schedule an event."""
        self._due.append((when, what))
        self._due.sort(key=lambda each: each[0])

    def spend(self, seconds: float) -> None:
        """Advance the clock and run the events that are due."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            when, what = self._due.pop(0)
            self.now = max(self.now, when)
            what()
        self.now = end

    def skip(self) -> bool:
        """Advance the clock to the next event; return whether there is one."""
        if self._due:
            self.spend(max(0.0, self._due[0][0] - self.now))
            return True
        return False


class Simulated(Engine):
    """An engine that is driven turn by turn: it has no thread."""

    @property
    def alive(self) -> bool:
        """Always."""
        return True

    def turn(self) -> bool:
        """Take one turn; return whether there is more work, or an event to come."""
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
        latencies: (requests,) seconds from arrival to result, ascending.
        refused: requests that got a 429 or 422, or were late.
        busy: share of the time in which it computed.
    """

    latencies: list[float]
    refused: int
    busy: float

    def quantile(self, share: float) -> float:
        """The latency that this share of the requests stays below."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def simulate(
    kinds: Sequence[Kind], rate: float, call_s: Callable[[int], float], requests: int, timeout_s: float, seed: int = 0
) -> Found:
    """Send requests to one replica, by chance and without regard to each other (a Poisson process).

    Args:
        kinds: the kinds of requests.
        rate: requests a second.
        call_s: seconds of a network call with its overhead, by rows.
        requests: their number.
        timeout_s: deadline of each.
        seed: of the arrivals.
    """
    world, chance = World(), Random(seed)  # noqa: S311  (arrivals are no secret)
    engine = Simulated(Settings(device="cpu", threads=1, max_queue=100_000, compile="off"), None, world.clock, world)
    with tempfile.TemporaryDirectory() as folder:
        net = load(save(Path(folder), "net", Gaussian(), Decoder.identity((2,)), dataset={}, training={}, seed=0))
    engine.load("net", 1, replace(net, velocity=_Costly(net.velocity, world, call_s)))
    latencies, refused, begin, when = list[float](), 0, world.now, world.now

    def ask(kind: Kind) -> None:
        nonlocal refused
        came = world.now
        try:
            future = engine.submit(
                Job("net", 1, kind.plan, kind.rows, deadline=came + timeout_s, trace="none", priority=kind.priority)
            )
        except (Overloaded, TooSlow):
            refused += 1
            return

        def ended(_: object) -> None:
            nonlocal refused
            if future.exception() is None:
                latencies.append(world.now - came)
            else:
                refused += 1

        future.add_done_callback(ended)

    for kind in chance.choices(kinds, [kind.share for kind in kinds], k=requests):
        when += chance.expovariate(rate)
        world.at(when, lambda kind=kind: ask(kind))
    idle = 0.0
    while True:
        if not engine.turn():
            before = world.now
            if not world.skip():
                break
            idle += world.now - before
    engine.stop()
    return Found(sorted(latencies), refused, 1 - idle / max(world.now - begin, 1e-9))
