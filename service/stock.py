"""What is known of one model: its versions on disk, those in memory, and why others are not."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from models.repository import Signature
from service.errors import Kind, ProblemError
from service.served import Served

UNREADABLE = 0
"""In place of a version where a model's folder cannot be read; versions begin at 1."""


@dataclass(frozen=True)
class Stock:
    """A model at one moment. It is replaced, never changed: readers on the event loop take no lock.

    Attributes:
        name: of the model.
        versions: on disk, ascending.
        current: the version that answers where none is asked for; it may have to be loaded first.
        served: versions in memory.
        facts: what was found of each version that was ever loaded: its line in the list, and its full description.
        broken: why a version cannot be loaded, or why its changed files are left alone.
        signatures: the files of each version as they were when it was last tried.
    """

    name: str
    versions: tuple[int, ...] = ()
    current: int | None = None
    served: Mapping[int, Served] = field(default_factory=dict)
    facts: Mapping[int, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    broken: Mapping[int, str] = field(default_factory=dict)
    signatures: Mapping[int, Signature] = field(default_factory=dict)

    def loaded(self, served: Served, signature: Signature) -> Self:
        """With a version in memory."""
        v = served.version
        return replace(
            self,
            served={**self.served, v: served},
            facts={**self.facts, v: (served.summary(), served.describe())},
            broken=_without(self.broken, v),
            signatures={**self.signatures, v: signature},
        )

    def refused(self, version: int, reason: str, signature: Signature | None = None) -> Self:
        """With a reason; a signature says for which state of the files it holds."""
        tried = self.signatures if signature is None else {**self.signatures, version: signature}
        return replace(self, broken={**self.broken, version: reason}, signatures=tried)

    def unloaded(self, version: int) -> Self:
        """With a version no longer in memory; it is loaded again when it is asked for."""
        return replace(self, served=_without(self.served, version))

    def forgiven(self, version: int) -> Self:
        """Without the reason against a version, whose files have changed since."""
        return replace(self, broken=_without(self.broken, version))

    def forgotten(self, version: int) -> Self:
        """As if a version had never been tried."""
        return replace(
            self,
            current=None if self.current == version else self.current,
            facts=_without(self.facts, version),
            broken=_without(self.broken, version),
            signatures=_without(self.signatures, version),
        )

    def on_disk(self, versions: tuple[int, ...]) -> Self:
        """With these versions on disk, and nothing known of others any more."""
        kept = {UNREADABLE, *versions} if versions else set()
        return replace(
            self,
            versions=versions,
            current=self.current if self.current in versions else None,
            served={v: each for v, each in self.served.items() if v in kept},
            facts={v: each for v, each in self.facts.items() if v in kept},
            broken={v: each for v, each in self.broken.items() if v in kept and v != UNREADABLE},
            signatures={v: each for v, each in self.signatures.items() if v in kept},
        )

    def can_load(self, version: int | None) -> bool:
        """Whether a version is not in memory but could be."""
        wanted = self.current if version is None else version
        return wanted in self.versions and wanted not in self.served and wanted not in self.broken

    def summary(self) -> dict[str, Any]:
        """The line of ``GET /v1/models``."""
        if self.current is None:
            nothing = dict.fromkeys(("version", "dtype", "event_shape", "data_shape", "deterministic"))
            return {"name": self.name, "status": "unavailable", "loaded": False, **nothing}
        found, _ = self.facts[self.current]
        return {"name": self.name, "status": "served", "loaded": self.current in self.served, **found}

    def describe(self) -> dict[str, Any]:
        """What ``GET /v1/models/{name}`` answers."""
        shown = sorted(self.facts, reverse=True)
        return {
            "name": self.name,
            "status": "unavailable" if self.current is None else "served",
            "serving": self.current,
            "versions": list(self.versions),
            "served": [{**self.facts[v][1], "loaded": v in self.served} for v in shown if v not in self._lost()],
            "unavailable": [
                {"version": v or None, "reason": self.broken[v]} for v in sorted(self.broken, reverse=True)
            ],
        }

    def _lost(self) -> set[int]:
        """Versions that were loaded once but cannot be any more."""
        return {version for version in self.broken if version not in self.served}

    def absent(self, version: int | None) -> ProblemError:
        """The problem of whoever asks for a version that cannot be had."""
        if version is None and any(v not in self.broken and v not in self.signatures for v in self.versions):
            return ProblemError(Kind.NOT_READY, f"model {self.name!r} is being loaded; ask again in a few seconds")
        if version is None or version in self.broken:
            at = max(self.broken, default=UNREADABLE) if version is None else version
            which = f"model {self.name!r}" + (f" version {at}" if at else "")
            return ProblemError(Kind.BROKEN_MODEL, f"{which} cannot be served: {self.broken.get(at, 'it is gone')}")
        return ProblemError(
            Kind.UNKNOWN_VERSION,
            f"model {self.name!r} has no version {version}; available: {', '.join(map(str, self.versions))}",
            available=list(self.versions),
        )


def _without(table: Mapping[int, Any], version: int) -> dict[int, Any]:
    return {v: each for v, each in table.items() if v != version}
