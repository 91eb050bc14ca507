"""What requests ask of the models: their names, what is in memory, what answers, and why others do not.

Readers on the event loop take no lock: the tables are replaced, never changed. `service.models` fills them.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from models.repository import Signature
from service.errors import Kind, ProblemError
from service.served import Served
from service.stock import Stock

_log = logging.getLogger("pathline")


@dataclass
class Changes:
    """What a refresh changed: pairs of a model's name and a version, and for refusals the reason too."""

    loaded: list[tuple[str, int]] = field(default_factory=list)
    unloaded: list[tuple[str, int]] = field(default_factory=list)
    refused: list[tuple[str, int, str]] = field(default_factory=list)


class Shelf:
    """What is known of all models of a repository, by name."""

    def __init__(self, notify: Callable[[str, int, bool], None] = lambda name, version, loaded: None) -> None:
        """Begin empty; `notify` is told (name, version, whether it is loaded now) of each change."""
        self._notify = notify
        self._stock: dict[str, Stock] = {}
        self._used: dict[tuple[str, int], float] = {}
        self._pinned: set[tuple[str, int]] = set()  # asked for by number: a newer version does not replace them

    # What requests ask.

    def names(self) -> list[str]:
        """Return the names of all models, served or broken."""
        return sorted(self._stock)

    def served(self) -> list[Served]:
        """Return every version in memory."""
        return [served for stock in self._stock.values() for served in stock.served.values()]

    def broken(self) -> dict[str, dict[int, str]]:
        """Return name -> version -> why it cannot be loaded; version 0 is a model whose folder cannot be read."""
        return {name: dict(stock.broken) for name, stock in self._stock.items() if stock.broken}

    def current(self) -> list[tuple[str, int]]:
        """Return name and version of what answers where no version is asked for."""
        return [(name, stock.current) for name, stock in sorted(self._stock.items()) if stock.current is not None]

    def get(self, name: str, version: int | None = None) -> Served | None:
        """Return a version if it is in memory; the current one for None. None if it must be loaded first.

        Raises:
            ProblemError: 404 for a name or version there is not, 503 for one that cannot be loaded.
        """
        stock = self._known(name)
        wanted = stock.current if version is None else version
        served = None if wanted is None else stock.served.get(wanted)
        if served is None and not stock.can_load(version):
            raise stock.absent(version)
        if wanted is not None:
            self._used[name, wanted] = time.monotonic()
            if version is not None and version != stock.current:
                self._pinned.add((name, version))
        return served

    def summary(self, name: str) -> dict[str, Any]:
        """Return the line of ``GET /v1/models`` about a model of `names`."""
        return self._stock.get(name, Stock(name)).summary()

    def describe(self, name: str) -> dict[str, Any]:
        """Return what ``GET /v1/models/{name}`` answers.

        Raises:
            ProblemError: 404 for an unknown name.
        """
        return self._known(name).describe()

    def _known(self, name: str) -> Stock:
        stock = self._stock.get(name)
        if stock is None:
            available = self.names()
            detail = f"model {name!r} is unknown; available: {', '.join(available)}"
            raise ProblemError(Kind.UNKNOWN_MODEL, detail, available=available)
        return stock

    # What changes the tables; one thread at a time.

    def _put(self, name: str, stock: Stock, changes: Changes) -> None:
        """Replace what is known of a model, and tell what left the memory."""
        before = self._stock.get(name, Stock(name))
        table = {**self._stock, name: stock}
        if not stock.versions and not stock.broken:
            del table[name]
        self._stock = table
        for version in before.served.keys() - stock.served.keys():
            changes.unloaded.append((name, version))
            self._used.pop((name, version), None)
            self._pinned.discard((name, version))
            self._notify(name, version, False)
            _log.info("model %s version %d was unloaded", name, version)

    def _add(self, served: Served, signature: Signature, changes: Changes) -> None:
        """Take in a version that was loaded."""
        name, version = served.name, served.version
        self._put(name, self._stock[name].loaded(served, signature), changes)
        changes.loaded.append((name, version))
        self._used.setdefault((name, version), time.monotonic())
        self._notify(name, version, True)

    def _refuse(self, name: str, version: int, reason: str, signature: Signature | None, changes: Changes) -> None:
        """Keep why a version is not served, and say it once."""
        stock = self._stock.get(name, Stock(name))
        if stock.broken.get(version) != reason:
            how = "goes on as it was loaded" if version in stock.served else "is not served"
            _log.error("model %s version %d %s: %s", name, version, how, reason)
            changes.refused.append((name, version, reason))
        self._put(name, stock.refused(version, reason, signature), changes)
