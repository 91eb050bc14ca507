"""What is known of one model: its versions on disk, those in memory, and why others are not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from models.repository import Signature
from service.errors import Kind, ProblemError
from service.registry.served import Served

UNREADABLE = 0
"""In place of a version where a model's folder cannot be read; versions begin at 1."""


LOOK_AGAIN_S = 1.0
"""Requests for what could not be loaded have it looked at again after so long, without waiting for the next look."""

_LONGEST_S = 60.0


@dataclass(frozen=True)
class Fault:
    """Why a version could not be loaded, or why its changed files are left alone.

    Attributes:
        reason: what is said of it.
        again_at: when it may be looked at again, in the clock of whoever keeps it.
        transient: whether the reason lies outside of the files (disk, rights, memory, the engine), so that the same
            files may do later. Others hold until the files change.
        tries: how often it failed in a row; each transient failure doubles the wait.
    """

    reason: str
    again_at: float
    transient: bool = False
    tries: int = 1

    @classmethod
    def of(cls, reason: str, now: float, transient: bool, before: "Fault | None") -> Self:
        """Say when to look again: the longer, the more often it failed for a transient reason."""
        tries = before.tries + 1 if transient and before is not None and before.transient else 1
        return cls(reason, now + min(LOOK_AGAIN_S * 2.0 ** min(tries - 1, 16), _LONGEST_S), transient, tries)


@dataclass(frozen=True)
class Stock:
    """A model at one moment. It is replaced, never changed: readers on the event loop take no lock.

    Attributes:
        name: of the model.
        versions: on disk, ascending.
        current: the version that answers where none is asked for; it may have to be loaded first.
        served: versions in memory.
        facts: what was found of each version that was ever loaded: its line in the list, and its full description.
        broken: why a version cannot be loaded, or why its changed files are left alone; `UNREADABLE` for the folder.
        signatures: the files of each version as they were when it was last tried.
    """

    name: str
    versions: tuple[int, ...] = ()
    current: int | None = None
    served: Mapping[int, Served] = field(default_factory=dict)
    facts: Mapping[int, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    broken: Mapping[int, Fault] = field(default_factory=dict)
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

    def refused(self, version: int, fault: Fault, signature: Signature | None = None) -> Self:
        """With a reason; a signature says for which state of the files it holds."""
        tried = self.signatures if signature is None else {**self.signatures, version: signature}
        return replace(self, broken={**self.broken, version: fault}, signatures=tried)

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

    def on_disk(self, versions: tuple[int, ...], stays: int | None = None) -> Self:
        """With these versions on disk, and nothing known of others any more but of one that `stays` in memory."""
        kept = {version for version in (*versions, stays) if version is not None}
        return replace(
            self,
            versions=versions,
            current=self.current if self.current in kept else None,
            served={v: each for v, each in self.served.items() if v in kept},
            facts={v: each for v, each in self.facts.items() if v in kept},
            broken={v: each for v, each in self.broken.items() if v in kept},
            signatures={v: each for v, each in self.signatures.items() if v in kept},
        )

    @property
    def pending(self) -> bool:
        """Whether nothing answers yet, but a version was not tried."""
        return self.current is None and any(version not in self.broken for version in self.versions)

    @property
    def status(self) -> str:
        """`served`, `loading` or `unavailable`."""
        return "served" if self.current is not None else "loading" if self.pending else "unavailable"

    @property
    def fallback_from(self) -> int | None:
        """The highest version that should answer but cannot be loaded, so that an older one does; or None."""
        current = self.current
        return None if current is None else max((v for v in self.broken if v > current), default=None)

    def can_load(self, version: int | None, now: float) -> bool:
        """Whether a version is not in memory but could be: it was not tried, or the time has come to look again."""
        if version is None and self.current is None:
            return self.pending or any(fault.again_at <= now for fault in self.broken.values())
        wanted = self.current if version is None else version
        fault = self.broken.get(UNREADABLE if wanted is None or wanted not in self.broken else wanted)
        there = wanted in self.versions or (UNREADABLE in self.broken and not self.versions)
        return there and wanted not in self.served and (fault is None or fault.again_at <= now)

    def summary(self) -> dict[str, Any]:
        """The line of ``GET /v1/models``."""
        common = {"name": self.name, "status": self.status, "fallback_from": self.fallback_from}
        if self.current is None:
            nothing = dict.fromkeys(("version", "dtype", "event_shape", "data_shape", "deterministic", "path"))
            return {**common, "loaded": False, **nothing}
        found, _ = self.facts[self.current]
        return {**common, "loaded": self.current in self.served, **found}

    def describe(self) -> dict[str, Any]:
        """What ``GET /v1/models/{name}`` answers."""
        shown = sorted(self.facts, reverse=True)
        return {
            "name": self.name,
            "status": self.status,
            "serving": self.current,
            "fallback_from": self.fallback_from,
            "versions": list(self.versions),
            "served": [{**self.facts[v][1], "loaded": v in self.served} for v in shown if v not in self._lost()],
            "unavailable": [
                {"version": v or None, "reason": self.broken[v].reason} for v in sorted(self.broken, reverse=True)
            ],
        }

    def _lost(self) -> set[int]:
        """Versions that were loaded once but cannot be any more."""
        return {version for version in self.broken if version not in self.served}

    def absent(self, version: int | None, now: float) -> ProblemError:
        """The problem of whoever asks for a version that cannot be had."""
        at = version if version is not None else max(self.broken, default=UNREADABLE)
        if at not in self.broken and UNREADABLE in self.broken:
            at = UNREADABLE
        fault = self.broken.get(at)
        if fault is None and version is not None and version not in self.versions:
            return ProblemError(
                Kind.UNKNOWN_VERSION,
                f"model {self.name!r} has no version {version}; available: {', '.join(map(str, self.versions))}",
                available=list(self.versions),
            )
        if fault is None or (version is None and self.pending):
            detail = f"model {self.name!r} is being loaded; ask again in a few seconds"
            return ProblemError(Kind.NOT_READY, detail, headers={"Retry-After": "2"}, retry_after_s=2)
        which = f"model {self.name!r}" + (f" version {at}" if at else "")
        detail = f"{which} cannot be served: {fault.reason}"
        if not fault.transient:
            return ProblemError(Kind.BROKEN_MODEL, detail)
        wait = max(1, math.ceil(fault.again_at - now))
        detail += f"; it is tried again in {wait} s"
        return ProblemError(Kind.NOT_READY, detail, headers={"Retry-After": str(wait)}, retry_after_s=wait)


def _without(table: Mapping[int, Any], version: int) -> dict[int, Any]:
    return {v: each for v, each in table.items() if v != version}
