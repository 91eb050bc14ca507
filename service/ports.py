"""What the HTTP side needs of an engine, so that tests can put another in its place."""

from concurrent.futures import Future
from typing import Any, Protocol

from models.checkpoint import Checkpoint
from service.engine.job import Job, JobResult


class Engine(Protocol):
    """The engine as the HTTP side sees it; every method returns at once, but `start`, `stop` and `load`."""

    @property
    def alive(self) -> bool:
        """Whether the engine still works."""
        ...

    def start(self) -> None:
        """Begin to work."""
        ...

    def stop(self) -> None:
        """Give up all jobs and end."""
        ...

    def load(self, name: str, version: int, checkpoint: Checkpoint) -> Any:
        """Make a version ready to solve for."""
        ...

    def submit(self, job: Job) -> Future[JobResult]:
        """Queue a job."""
        ...

    def cancel(self, future: Future[JobResult]) -> None:
        """Give up a job; its lanes are gone within one tick."""
        ...
