"""Commands to the engine's thread: whatever changes its state comes to it as one of these, on one queue, in order."""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

from service.engine.arena_queue import ArenaQueue
from service.engine.job import Job, JobResult
from service.engine.scheduler import Entry

Outcome = JobResult | Exception | None
"""What whoever waits for a job is told: its result, an error, or that it was given up."""


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
    """Give up the job that somebody no longer waits for."""

    future: Future[JobResult]


class Built(NamedTuple):
    """Deliver a result that was put together beside the engine's thread."""

    future: Future[JobResult]
    outcome: Outcome


class GiveUp(NamedTuple):
    """End all jobs, and tell those who wait that the engine is draining."""


class Stop(NamedTuple):
    """End the thread."""


Command = Open | Retire | Submit | Cancel | Built | GiveUp | Stop
