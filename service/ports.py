"""Protocols of the engine as the HTTP side sees it, so that tests can substitute their own."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import torch

from engine.job import Job, JobResult, Operation, Priority, Sizes, Workload
from models.checkpoint.loading import Checkpoint

Pace = Callable[[float, float, float, Priority, Sizes], float]
"""Seconds of a job of one version by its calls, work, rows, priority and sizes: see `Engine.pace`."""


class Arena(Protocol):
    """An operation of a model version that the engine is ready to solve for."""

    @property
    def deterministic(self) -> bool:
        """Whether a sample's bits depend on checkpoint, solver, seed and index only."""
        ...

    @property
    def path(self) -> str:
        """How the network is evaluated: `fused`, `onnx` or `eager`."""
        ...

    @property
    def path_reason(self) -> str:
        """Why it is `eager`; empty if it is not."""
        ...

    @property
    def row_limit(self) -> int:
        """The most rows of one call of the network."""
        ...


class Engine(Protocol):
    """The engine; every method returns at once, except `start`, `stop`, `load` and `prepare`."""

    @property
    def device(self) -> torch.device:
        """The device that holds the networks."""
        ...

    @property
    def threads(self) -> int:
        """CPU threads of the networks."""
        ...

    @property
    def device_name(self) -> str:
        """The vendor's name for the device."""
        ...

    @property
    def queue_depth(self) -> int:
        """Jobs with no sample running yet."""
        ...

    @property
    def active_jobs(self) -> int:
        """Jobs that wait or run."""
        ...

    @property
    def active_lanes(self) -> int:
        """Samples that are being solved."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        ...

    @property
    def turn_s(self) -> float:
        """Seconds since the current network call (or short run of calls) began; 0 while idle."""
        ...

    def workload(self) -> Workload:
        """Return the work left, for every arena."""
        ...

    def start(self) -> None:
        """Start the engine's thread."""
        ...

    def deliver_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Complete futures on an event loop from now on; their callbacks run there."""
        ...

    def drain(self) -> None:
        """Accept no more jobs; current jobs continue."""
        ...

    def give_up(self) -> None:
        """Accept no more jobs and end current ones with `Draining`."""
        ...

    def stop(self) -> None:
        """End all jobs and the thread."""
        ...

    def load(self, name: str, version: int, checkpoint: Checkpoint) -> Arena:
        """Load and measure a version while jobs of other versions continue; blocks."""
        ...

    def prepared(self, name: str, version: int, operation: Operation, sizes: Sizes = ()) -> Arena | None:
        """Return the arena of an operation of a loaded version; None until `prepare` has made it."""
        ...

    def prepare(self, name: str, version: int, operation: Operation, sizes: Sizes = ()) -> Arena:
        """Make the arena of an operation of a loaded version; blocks, so not on the event loop."""
        ...

    def unload(self, arena: Any) -> None:
        """Free what `load` returned once all jobs submitted for it are done; returns at once."""
        ...

    def pace(
        self, name: str, version: int, calls: float, work: float, rows: float, priority: Priority, sizes: Sizes = ()
    ) -> float:
        """Return the seconds that a job of a loaded version would take now if it ran alone.

        Args:
            name, version: of the model.
            calls: of its slowest sample.
            work: network rows in all.
            rows: network rows of one call of all its samples.
            priority: of the job.
            sizes: of the free axes.
        """
        ...

    def submit(self, job: Job, future: asyncio.Future[JobResult]) -> asyncio.Future[JobResult]:
        """Queue a job."""
        ...

    def cancel(self, future: asyncio.Future[JobResult]) -> None:
        """Cancel a job; its lanes are removed within one tick."""
        ...
