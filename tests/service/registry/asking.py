"""Helpers that use a registry as requests do, and hold up its loading."""

import threading
from typing import Any

from service.registry.registry import Registry


def answers(registry: Registry, name: str, version: int | None = None) -> int:
    """Return the version that answers a request; it is loaded first if needed."""
    with registry.lease(name, version) as model:
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
