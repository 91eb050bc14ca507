"""What the HTTP side needs of an engine, so that tests can put another in its place."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

import torch

from models.checkpoint.loading import Checkpoint
from service.engine.job import Job, JobResult
from service.engine.operation import Operation


class Loaded(Protocol):
    """What the engine says of a model it has taken in."""

    @property
    def deterministic(self) -> bool:
        """Whether a sample's bits depend on checkpoint, solver, seed and index only."""
        ...

    @property
    def path(self) -> str:
        """What evaluates the network: `fused` or `eager`."""
        ...

    @property
    def path_reason(self) -> str:
        """Why it is not fused; empty if it is."""
        ...


class Engine(Protocol):
    """The engine as the HTTP side sees it; every method returns at once, but `start`, `stop`, `load` and `prepare`."""

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        ...

    @property
    def device_name(self) -> str:
        """What that is called by its maker."""
        ...

    @property
    def queue_depth(self) -> int:
        """Jobs of which no sample runs yet."""
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
        """Whether the engine still works."""
        ...

    @property
    def turn_s(self) -> float:
        """Seconds since the network call that runs began, or a few of them together; 0 while there is no work."""
        ...

    def ends_s(self) -> Mapping[Future[JobResult], float]:
        """Return the seconds until each job that is here will be done, by a forecast; some may be lacking."""
        ...

    def start(self) -> None:
        """Begin to work."""
        ...

    def drain(self) -> None:
        """Take no more jobs; those that are here run on."""
        ...

    def give_up(self) -> None:
        """End the jobs that are here; whoever waits for them gets `Draining`."""
        ...

    def stop(self) -> None:
        """Give up all jobs and end."""
        ...

    def load(self, name: str, version: int, checkpoint: Checkpoint) -> Loaded:
        """Make a version ready to solve for; jobs of others run on meanwhile."""
        ...

    def prepared(self, name: str, version: int, operation: Operation) -> Loaded | None:
        """Return what there is for an operation of a loaded version; None if `prepare` must make it first."""
        ...

    def prepare(self, name: str, version: int, operation: Operation) -> Loaded:
        """Make an operation of a loaded version ready; this takes time, so not on the event loop."""
        ...

    def unload(self, loaded: Any) -> None:
        """Free the memory of what `load` returned once the jobs submitted for it are done; returns at once."""
        ...

    def submit(self, job: Job) -> Future[JobResult]:
        """Queue a job."""
        ...

    def cancel(self, future: Future[JobResult]) -> None:
        """Give up a job; its lanes are gone within one tick."""
        ...
