"""Protocols of the engine: the settings that it reads, and an observer of what it does."""

from typing import Protocol


class EngineSettings(Protocol):
    """What the engine reads of the settings."""

    @property
    def device(self) -> str:
        """`auto`, `cpu`, `cuda` or `cuda:N`."""
        ...

    @property
    def threads(self) -> int:
        """CPU threads of the networks; 0 for `default_threads`."""
        ...

    @property
    def cuda_graphs(self) -> bool:
        """Capture calls of few rows as CUDA graphs; without effect on the CPU."""
        ...

    @property
    def compile(self) -> str:
        """`auto` fuses networks that have a fused form; `off` never does."""
        ...

    @property
    def max_queue(self) -> int:
        """The most jobs that wait or run."""
        ...


class Observer(Protocol):
    """Who is told what each network call carried."""

    def batch(self, model: str, operation: str, rows: int, requests: int, solvers: int, calls: int) -> None:
        """So many network calls, all with the same rows."""
        ...

    def cancelled(self, nfe: int) -> None:
        """Calls spent on samples that nobody will get."""
        ...
