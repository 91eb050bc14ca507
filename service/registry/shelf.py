"""What requests ask of the models: their names, what is in memory, what answers, and why others do not.

Readers on the event loop take no lock: the tables are replaced, never changed. `service.registry.registry` fills them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.repository import Signature
from service.errors import Kind, ProblemError
from service.registry.served import Served
from service.registry.stock import Fault, Stock

_log = logging.getLogger("pathline")


MOST_PASSED_OVER = 50
"""Things in a repository that are passed over: so many are said."""


@dataclass
class Changes:
    """What a refresh changed: pairs of a model's name and a version, and for refusals the reason too."""

    loaded: list[tuple[str, int]] = field(default_factory=list)
    unloaded: list[tuple[str, int]] = field(default_factory=list)
    refused: list[tuple[str, int, str]] = field(default_factory=list)


class Shelf:
    """What is known of all models of a repository, by name."""

    def __init__(
        self,
        notify: Callable[[str, int, bool], None] = lambda name, version, loaded: None,
        notify_fallback: Callable[[str, bool], None] = lambda name, falls_back: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin empty.

        Args:
            notify: told (name, version, whether it is loaded now) of each change.
            notify_fallback: told (name, whether) when a model begins or ends to be answered by a version that is older
                than the highest, as that cannot be loaded.
            clock: seconds.
        """
        self._notify, self._notify_fallback, self._clock = notify, notify_fallback, clock
        self._passed_over: tuple[tuple[str, str], ...] = ()
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
        return {
            name: {version: fault.reason for version, fault in stock.broken.items()}
            for name, stock in self._stock.items()
            if stock.broken
        }

    def pending(self) -> list[str]:
        """Return the names of models of which no version answers yet, but one may."""
        return [name for name, stock in sorted(self._stock.items()) if stock.pending]

    def passed_over(self) -> dict[str, Any]:
        """Return the members of ``GET /v1/models`` about what in the repository is no model, and why."""
        found = [{"path": path, "reason": reason} for path, reason in self._passed_over[:MOST_PASSED_OVER]]
        return {"passed_over": found, "more_passed_over": len(self._passed_over) - len(found)}

    def fallback_from(self, name: str, version: int) -> int | None:
        """Return the version that should answer in the place of this one, but cannot be loaded; None as a rule."""
        stock = self._stock.get(name)
        return stock.fallback_from if stock is not None and stock.current == version else None

    def current(self) -> list[tuple[str, int]]:
        """Return name and version of what answers where no version is asked for."""
        return [(name, stock.current) for name, stock in sorted(self._stock.items()) if stock.current is not None]

    def get(self, name: str, version: int | None = None) -> Served | None:
        """Return a version if it is in memory; the current one for None. None if it must be loaded first.

        Raises:
            ProblemError: 404 for a name or version there is not, 503 for one that cannot be loaded.
        """
        stock, now = self._known(name), self._clock()
        wanted = stock.current if version is None else version
        served = None if wanted is None else stock.served.get(wanted)
        if served is None and not stock.can_load(version, now):
            raise stock.absent(version, now)
        if wanted is not None:
            self._used[name, wanted] = now
            if version is not None and version != stock.current:
                self._pinned.add((name, version))
        return served

    def check_ready(self, name: str, version: int | None = None) -> None:
        """Raise as `get` does, and also while no version of the model was loaded yet.

        Raises:
            ProblemError: 404 or 503.
        """
        if self.get(name, version) is None and self._known(name).pending:
            raise self._known(name).absent(None, self._clock())

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
            self._tell_unloaded(name, version, changes)
        if before.fallback_from != stock.fallback_from:
            self._tell_fallback(name, stock)

    def _tell_unloaded(self, name: str, version: int, changes: Changes) -> None:
        changes.unloaded.append((name, version))
        self._used.pop((name, version), None)
        self._pinned.discard((name, version))
        self._notify(name, version, False)
        _log.info("model %s version %d was unloaded", name, version)

    def _tell_fallback(self, name: str, stock: Stock) -> None:
        better = stock.fallback_from
        self._notify_fallback(name, better is not None)
        if better is not None:
            said = "model %s: version %s answers instead of version %d, which cannot be loaded: %s"
            _log.warning(said, name, stock.current, better, stock.broken[better].reason)

    def _tell_passed_over(self, found: Sequence[tuple[str, str]]) -> None:
        """Keep what in the repository is no model, and say of each thing once why."""
        new = [each for each in found if each not in self._passed_over]
        self._passed_over = tuple(found)
        for path, reason in new[:MOST_PASSED_OVER]:
            _log.warning("%s: %s", path, reason)
        if len(new) > MOST_PASSED_OVER:
            _log.warning("%d more are passed over; `python -m models list` shows all", len(new) - MOST_PASSED_OVER)

    def _add(self, served: Served, signature: Signature, changes: Changes) -> None:
        """Take in a version that was loaded."""
        name, version = served.name, served.version
        self._put(name, self._stock[name].loaded(served, signature), changes)
        changes.loaded.append((name, version))
        self._used.setdefault((name, version), self._clock())
        self._notify(name, version, True)

    def _refuse(
        self,
        name: str,
        version: int,
        reason: str,
        signature: Signature | None,
        changes: Changes,
        transient: bool = False,
    ) -> None:
        """Keep why a version is not served, and say it once."""
        stock = self._stock.get(name, Stock(name))
        before = stock.broken.get(version)
        if before is None or before.reason != reason:
            how = "goes on as it was loaded" if version in stock.served else "is not served"
            how += ", and is tried again" if transient else ""
            _log.error("model %s version %d %s: %s", name, version, how, reason)
            changes.refused.append((name, version, reason))
        fault = Fault.of(reason, self._clock(), transient, before)
        self._put(name, stock.refused(version, fault, signature), changes)
