"""Snapshots and workloads of the engine for other threads: immutable, made by its thread, replaced after each tick.

Making one costs a few small tuples, however many jobs there are: their places are listed again only after a change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from engine.cost import NfeEstimates, TickCostModel
from engine.job import Priority
from engine.scheduler import SchedulerSnapshot


class ArenaSnapshot(NamedTuple):
    """The jobs of one arena, and the costs measured so far.

    Attributes:
        interactive, bulk: its jobs by priority.
        ticks: measured seconds of its ticks, which any thread may read.
        nfe: measured calls of its jobs.
    """

    interactive: SchedulerSnapshot
    bulk: SchedulerSnapshot
    ticks: TickCostModel
    nfe: NfeEstimates

    def queue(self, priority: Priority) -> SchedulerSnapshot:
        """The jobs of a priority."""
        return self.bulk if priority is Priority.BULK else self.interactive


class EngineSnapshot(NamedTuple):
    """The jobs of the engine.

    Attributes:
        arenas: the arenas by number.
        jobs: number of jobs, including those with results being built.
        seen: number of the newest job among them; later jobs have not arrived yet.
        working_since: time of the snapshot by the engine's clock if there was more work; else None.
        stages_s: seconds that preludes and decoders still need for their waiting rows.
    """

    arenas: Mapping[int, ArenaSnapshot] = MappingProxyType({})
    jobs: int = 0
    seen: float = -math.inf
    working_since: float | None = None
    stages_s: float = 0.0

    @property
    def queues(self) -> list[SchedulerSnapshot]:
        """The queues of all arenas and priorities."""
        return [queue for arena in self.arenas.values() for queue in (arena.interactive, arena.bulk)]


@dataclass(frozen=True)
class ArenaLoad:
    """The work left for one arena, and its speed.

    Attributes:
        interactive, bulk: network rows that its jobs of each priority still need, over all calls.
        budget: maximum number of rows per call.
        tick_s: (rows, seconds) of a whole tick, rising in both, as measured recently.
    """

    interactive: float
    bulk: float
    budget: int
    tick_s: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Workload:
    """The work left for an engine.

    Attributes:
        jobs: number of jobs waiting or running.
        seconds: about how long all of them take together.
        arenas: (model, version, operation) -> load of each loaded arena. Sizes of free axes follow the operation, as in
            `sample L=12`.
    """

    jobs: int
    seconds: float
    arenas: dict[tuple[str, int, str], ArenaLoad]

    @property
    def work(self) -> float:
        """Network rows that all jobs still need, over all calls."""
        return sum(arena.interactive + arena.bulk for arena in self.arenas.values())
