"""Snapshots of the engine, read by other threads: immutable, made by its thread, replaced after each tick; workloads.

Making one costs a few small tuples, whatever is in hand: the places of jobs are listed anew only once one has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from service.engine.cost import Curve, NfeEstimates
from service.engine.job import Priority
from service.engine.scheduler import SchedulerSnapshot


class ArenaSnapshot(NamedTuple):
    """What one arena has to do, and what is known of how long that takes.

    Attributes:
        interactive, bulk: its jobs by priority.
        curve: seconds of its ticks.
        nfe: calls of its jobs.
    """

    interactive: SchedulerSnapshot
    bulk: SchedulerSnapshot
    curve: Curve
    nfe: NfeEstimates

    def queue(self, priority: Priority) -> SchedulerSnapshot:
        """The jobs of a priority."""
        return self.bulk if priority is Priority.BULK else self.interactive


class EngineSnapshot(NamedTuple):
    """What the engine has to do.

    Attributes:
        arenas: by number.
        jobs: how many are in hand, including those with results being built.
        seen: the newest job among them; the later ones are still on their way.
        working_since: when this was, if there was work to go on with, by the engine's clock; else None.
    """

    arenas: Mapping[int, ArenaSnapshot] = MappingProxyType({})
    jobs: int = 0
    seen: float = -math.inf
    working_since: float | None = None

    @property
    def queues(self) -> list[SchedulerSnapshot]:
        """Those of all arenas and priorities."""
        return [queue for arena in self.arenas.values() for queue in (arena.interactive, arena.bulk)]


@dataclass(frozen=True)
class ArenaLoad:
    """What one arena has to do, and how fast it is.

    Attributes:
        interactive, bulk: network rows that its jobs of a priority still need, over all calls.
        budget: the most rows of one call.
        tick_s: (rows, seconds) of a call with what surrounds it, rising in both; as measured of late.
    """

    interactive: float
    bulk: float
    budget: int
    tick_s: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Workload:
    """What an engine has to do.

    Attributes:
        jobs: that wait or run.
        seconds: until all of them are done, by forecast.
        arenas: (model, version, operation) -> its load; those that are loaded. Sizes of free axes follow the operation,
            as in `sample L=12`.
    """

    jobs: int
    seconds: float
    arenas: dict[tuple[str, int, str], ArenaLoad]

    @property
    def work(self) -> float:
        """Network rows that all jobs still need, over all calls."""
        return sum(arena.interactive + arena.bulk for arena in self.arenas.values())
