"""Helpers that use a registry as requests do, and hold up its loading."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from service.registry.lease import Lease
from service.registry.registry import Registry
from service.registry.version import ModelVersion
from service.settings import Settings


def registry_of(root: Path, engine: Any, clock: Callable[[], float] = monotonic, **settings: Any) -> Registry:
    """Return a registry of the models in a folder, none of them loaded."""
    return Registry(Settings(models_dir=root, **settings), engine, clock=clock)


def acquired(registry: Registry, name: str, version: int | None = None) -> Lease:
    """Return a lease, filled as by a request."""
    return asyncio.run(registry.lease(name, version))


def loaded(registry: Registry) -> list[ModelVersion]:
    """Return every version that can be leased without loading it."""
    return [model for entry in registry.entries() for model in entry.loaded.values()]


def waited_for(registry: Registry) -> int:
    """Return the number of loads that requests wait for."""
    return sum(load.key is not None for load in registry._loads.pending())


@contextmanager
def leased(registry: Registry, name: str, version: int | None = None) -> Iterator[ModelVersion]:
    """Lease a version for a block."""
    lease = acquired(registry, name, version)
    yield lease.model
    lease.release()


def answers(registry: Registry, name: str, version: int | None = None) -> int:
    """Return the version that answers a request; it is loaded first if needed."""
    with leased(registry, name, version) as model:
        return model.version


class Gate:
    """A gate at which loading stops until it is opened; `threads` has the names of those that arrived."""

    def __init__(self, engine: Any) -> None:
        self.open, self.entered = threading.Event(), threading.Semaphore(0)
        self.loaded: list[tuple[str, int]] = []
        self.threads: set[str] = set()
        self._load = engine.load
        engine.load = self

    def __call__(self, name: str, version: int, checkpoint: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        self.loaded.append((name, version))
        self.entered.release()
        assert self.open.wait(60)
        return self._load(name, version, checkpoint)
