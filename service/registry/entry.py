"""The registry's entry of one model: its versions on disk, those in memory, and why others are not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from models.repository import Signature
from service.errors import Kind, ProblemError
from service.registry.version import ModelVersion

UNREADABLE = 0
"""Key for a model's folder that cannot be read, in place of a version; versions start at 1."""

RETRY_S = 1.0
"""Seconds after which a request retries a version that failed to load, without waiting for the next refresh."""

_LONGEST_S = 60.0


@dataclass(frozen=True)
class Fault:
    """Why a version could not be loaded, or why its changed files are left alone.

    Attributes:
        reason: message for clients and the log.
        again_at: when it may be tried again, by the registry's clock.
        transient: whether the cause is outside the files (disk, permissions, memory, the engine), so that the
            same files may load later. Other faults stay until the files change.
            tries: consecutive failures; each transient one doubles the wait.
    """

    reason: str
    again_at: float
    transient: bool = False
    tries: int = 1


@dataclass(frozen=True)
class ModelEntry:
    """A model at one moment. It is replaced, never changed: readers on the event loop take no lock.

    Attributes:
        name: name of the model.
        versions: versions on disk, ascending.
        current: the version that answers requests without a version; it may have to be loaded first.
        loaded: versions in memory.
        facts: for each version ever loaded, its line in the list and its full description.
        broken: why a version cannot be loaded, or why its changed files are left alone; `UNREADABLE` for the folder.
        signatures: the files of each version as they were when it was last tried.
    """

    name: str
    versions: tuple[int, ...] = ()
    current: int | None = None
    loaded: Mapping[int, ModelVersion] = field(default_factory=dict)
    facts: Mapping[int, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    broken: Mapping[int, Fault] = field(default_factory=dict)
    signatures: Mapping[int, Signature] = field(default_factory=dict)

    def with_loaded(self, model: ModelVersion) -> Self:
        """With a version in memory."""
        v = model.version
        return replace(
            self,
            loaded={**self.loaded, v: model},
            facts={**self.facts, v: (model.summary(), model.describe())},
            broken=_without(self.broken, v),
            signatures={**self.signatures, v: model.signature},
        )

    def with_plans(self, model: ModelVersion) -> Self:
        """With new tuned plans for a version in memory."""
        v = model.version
        facts = {**self.facts, v: (model.summary(), model.describe())}
        return replace(self, loaded={**self.loaded, v: model}, facts=facts)

    def without_loaded(self, version: int) -> Self:
        """With a version no longer in memory; it is loaded again on request."""
        return replace(self, loaded=_without(self.loaded, version))

    def with_fault(
        self, version: int, reason: str, now: float, transient: bool = False, signature: Signature | None = None
    ) -> Self:
        """With a fault; each consecutive transient one waits longer. `signature`: the files that were tried."""
        before = self.broken.get(version)
        tries = before.tries + 1 if transient and before is not None and before.transient else 1
        fault = Fault(reason, now + min(RETRY_S * 2.0 ** min(tries - 1, 16), _LONGEST_S), transient, tries)
        signatures = self.signatures if signature is None else {**self.signatures, version: signature}
        return replace(self, broken={**self.broken, version: fault}, signatures=signatures)

    def with_signature(self, version: int, signature: Signature) -> Self:
        """With another signature of the same files."""
        return replace(self, signatures={**self.signatures, version: signature})

    def without_fault(self, version: int) -> Self:
        """Without the fault of a version."""
        return replace(self, broken=_without(self.broken, version))

    def untried(self, version: int) -> Self:
        """As if a version had never been tried."""
        return replace(
            self,
            current=None if self.current == version else self.current,
            facts=_without(self.facts, version),
            broken=_without(self.broken, version),
            signatures=_without(self.signatures, version),
        )

    def with_versions(self, versions: tuple[int, ...], stays: int | None = None) -> Self:
        """With these versions on disk; others are forgotten, except one that `stays` in memory."""
        kept = {version for version in (*versions, stays) if version is not None}
        return replace(
            self,
            versions=versions,
            current=self.current if self.current in kept else None,
            loaded={v: each for v, each in self.loaded.items() if v in kept},
            facts={v: each for v, each in self.facts.items() if v in kept},
            broken={v: each for v, each in self.broken.items() if v in kept},
            signatures={v: each for v, each in self.signatures.items() if v in kept},
        )

    @property
    def empty(self) -> bool:
        """Whether the model has neither versions nor faults."""
        return not self.versions and not self.broken

    @property
    def pending(self) -> bool:
        """Whether no version answers yet and at least one is untried."""
        return self.current is None and any(version not in self.broken for version in self.versions)

    @property
    def status(self) -> str:
        """`served`, `loading` or `unavailable`."""
        return "served" if self.current is not None else "loading" if self.pending else "unavailable"

    @cached_property
    def fallback_from(self) -> int | None:
        """The highest version that should answer but cannot be loaded, so that an older one does; or None."""
        current = self.current
        return None if current is None else max((v for v in self.broken if v > current), default=None)

    def can_load(self, version: int | None, now: float) -> bool:
        """Whether a version is not in memory but could be: it is untried, or due for another try."""
        if version is None and self.current is None:
            return self.pending or any(fault.again_at <= now for fault in self.broken.values())
        wanted = self.current if version is None else version
        fault = self.broken.get(UNREADABLE if wanted is None or wanted not in self.broken else wanted)
        there = wanted in self.versions or (UNREADABLE in self.broken and not self.versions)
        return there and wanted not in self.loaded and (fault is None or fault.again_at <= now)

    def summary(self) -> dict[str, Any]:
        """The line of ``GET /v1/models``."""
        common = {"name": self.name, "status": self.status, "fallback_from": self.fallback_from}
        if self.current is None:
            names = (
                "version",
                "dtype",
                "event_shape",
                "data_shape",
                "axes",
                "deterministic",
                "path",
                "compute",
                "field",
                "sampling",
            )
            nothing = dict.fromkeys(names)
            return {**common, "loaded": False, **nothing, "tuned": [], "tuned_fault": "", "conditions": {}}
        found, _ = self.facts[self.current]
        return {**common, "loaded": self.current in self.loaded, **found}

    def describe(self) -> dict[str, Any]:
        """The response of ``GET /v1/models/{name}``."""
        shown = [v for v in sorted(self.facts, reverse=True) if v in self.loaded or v not in self.broken]
        return {
            "name": self.name,
            "status": self.status,
            "serving": self.current,
            "fallback_from": self.fallback_from,
            "versions": list(self.versions),
            "served": [{**self.facts[v][1], "loaded": v in self.loaded} for v in shown],
            "unavailable": [
                {"version": v or None, "reason": self.broken[v].reason} for v in sorted(self.broken, reverse=True)
            ],
        }

    def absent(self, version: int | None, now: float) -> ProblemError:
        """The error for a request for an unavailable version."""
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
            detail = f"model {self.name!r} is being loaded; try again in a few seconds"
            return ProblemError(Kind.NOT_READY, detail, headers={"Retry-After": "2"}, retry_after_s=2)
        which = f"model {self.name!r}" + (f" version {at}" if at else "")
        detail = f"{which} cannot be served: {fault.reason}"
        if not fault.transient:
            return ProblemError(Kind.BROKEN_MODEL, detail)
        wait = max(1, math.ceil(fault.again_at - now))
        detail += f"; it will be tried again in {wait} s"
        return ProblemError(Kind.NOT_READY, detail, headers={"Retry-After": str(wait)}, retry_after_s=wait)


@dataclass
class Changes:
    """Changes made by a refresh: (name, version) pairs, with a reason for refusals."""

    loaded: list[tuple[str, int]] = field(default_factory=list)
    unloaded: list[tuple[str, int]] = field(default_factory=list)
    refused: list[tuple[str, int, str]] = field(default_factory=list)

    @classmethod
    def between(cls, before: ModelEntry, after: ModelEntry) -> Self:
        """The difference between two entries of a model; a refusal for the same reason as before does not count."""
        name, reasons = after.name, {version: fault.reason for version, fault in before.broken.items()}
        return cls(
            [(name, version) for version in after.loaded.keys() - before.loaded.keys()],
            [(name, version) for version in before.loaded.keys() - after.loaded.keys()],
            [(name, v, fault.reason) for v, fault in after.broken.items() if fault.reason != reasons.get(v)],
        )

    def add(self, others: "Changes") -> None:
        """Add further changes."""
        self.loaded += others.loaded
        self.unloaded += others.unloaded
        self.refused += others.refused


def _without(table: Mapping[int, Any], version: int) -> dict[int, Any]:
    return {v: each for v, each in table.items() if v != version}
