"""The workload of an engine: what is left to do, for autoscalers and routers that choose between several services."""

from __future__ import annotations

from dataclasses import dataclass


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
