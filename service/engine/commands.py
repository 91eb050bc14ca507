"""Commands to the engine's thread: every change of its state is one of these, taken from one queue in order."""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

from service.engine.arena_queue import ArenaQueue
from service.engine.job import Job, JobResult
from service.engine.scheduler import Entry

Outcome = JobResult | Exception | None
"""How a job ends: with a result, with an error, or cancelled (None)."""


class Open(NamedTuple):
    """Take jobs for an arena."""

    queue: ArenaQueue


class Retire(NamedTuple):
    """Let arenas go, by number, once their jobs are done."""

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
    """Deliver a result that was put together beside the engine's thread."""

    future: Future[JobResult]
    outcome: Outcome


class GiveUp(NamedTuple):
    """End all jobs with `Draining`."""


class Stop(NamedTuple):
    """End the thread."""


Command = Open | Retire | Submit | Cancel | Built | GiveUp | Stop
