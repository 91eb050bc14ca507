"""The registry's entry of one model: its versions on disk and in memory, and why others cannot be served."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from models.repository import Signature
from service.errors import Kind, ProblemError
from service.registry.version import ModelVersion

FOLDER = 0
"""In place of a version: the model's folder, if that cannot be read; versions start at 1."""

RETRY_S = 1.0
"""Seconds after which a request retries a version that failed to load, without waiting for the next refresh."""

_LONGEST_S = 60.0

_NOTHING = dict.fromkeys(
    ("version", "dtype", "event_shape", "data_shape", "axes", "deterministic", "path", "compute", "field", "sampling")
) | {"tuned": [], "tuned_fault": "", "conditions": {}}
"""The line of a model of which no version was loaded yet."""


@dataclass(frozen=True)
class LoadFault:
    """Why a version could not be loaded, or why its changed files are left alone.

    Attributes:
        reason: message for clients and the log.
        again_at: when it may be tried again, by the registry's clock.
        transient: whether the cause is outside the files (disk, permissions, memory, the engine), so that the
            same files may load later. Other faults stay until the files change.
        wait_s: seconds until then; each consecutive transient fault doubles them.
    """

    reason: str
    again_at: float
    transient: bool = False
    wait_s: float = RETRY_S


@dataclass(frozen=True)
class VersionState:
    """What the registry knows of one version.

    Attributes:
        model: the version, while it is in memory.
        facts: its line in the list and its full description, from when it was last in memory.
        fault: why it cannot be loaded, or why its changed files are left alone.
        signature: its files as they were when it was last tried.
    """

    model: ModelVersion | None = None
    facts: tuple[dict[str, Any], dict[str, Any]] | None = None
    fault: LoadFault | None = None
    signature: Signature | None = None

    @property
    def answers(self) -> bool:
        """Whether requests for it are answered, though it may have to be loaded again first."""
        return self.model is not None or (self.facts is not None and self.fault is None)


@dataclass(frozen=True)
class ModelEntry:
    """A model at one moment. It is replaced, never changed: readers on the event loop take no lock.

    Attributes:
        name: name of the model.
        versions: versions on disk, ascending.
        current: the version that answers requests without a version; it may have to be loaded first.
        states: the state of each version that was tried, and of `FOLDER`.
    """

    name: str
    versions: tuple[int, ...] = ()
    current: int | None = None
    states: Mapping[int, VersionState] = field(default_factory=dict)

    def state(self, version: int) -> VersionState:
        """The state of a version; an empty one if it was never tried."""
        return self.states.get(version) or VersionState()

    def with_state(self, version: int, **changes: Any) -> Self:
        """With these members of a version's state."""
        if (model := changes.get("model")) is not None:
            changes["facts"] = model.summary(), model.describe()
        return replace(self, states={**self.states, version: replace(self.state(version), **changes)})

    def with_fault(self, version: int, reason: str, now: float, transient: bool = False) -> Self:
        """With a fault; each consecutive transient one waits longer."""
        before, wait_s = self.state(version).fault, RETRY_S
        if transient and before is not None and before.transient:
            wait_s = min(2 * before.wait_s, _LONGEST_S)
        return self.with_state(version, fault=LoadFault(reason, now + wait_s, transient, wait_s))

    def with_versions(self, versions: Collection[int], stays: int | None = None) -> Self:
        """With these versions on disk; the states of others are forgotten, except of one that `stays` in memory."""
        states = {v: state for v, state in self.states.items() if v in versions or v == stays}
        current = self.current if self.current in versions or self.current == stays else None
        return replace(self, versions=tuple(versions), current=current, states=states)

    def untried(self, version: int) -> Self:
        """As if a version had never been tried."""
        states = {v: state for v, state in self.states.items() if v != version}
        return replace(self, current=None if self.current == version else self.current, states=states)

    @cached_property
    def loaded(self) -> dict[int, ModelVersion]:
        """The versions in memory."""
        return {v: state.model for v, state in self.states.items() if state.model is not None}

    @cached_property
    def broken(self) -> dict[int, LoadFault]:
        """Why versions cannot be loaded, or why their changed files are left alone."""
        return {v: state.fault for v, state in self.states.items() if state.fault is not None}

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

    def find(self, version: int | None) -> ModelVersion | None:
        """Return a version, or with None the current one, if it is in memory."""
        number = self.current if version is None else version
        return None if number is None else self.loaded.get(number)

    def can_load(self, version: int | None, now: float) -> bool:
        """Whether a version is not in memory but could be: it is untried, or due for another try."""
        if version is None and self.current is None:
            return self.pending or any(fault.again_at <= now for fault in self.broken.values())
        number = self.current if version is None else version
        fault = self.broken.get(number or FOLDER) or self.broken.get(FOLDER)
        exists = number in self.versions or (FOLDER in self.broken and not self.versions)
        return exists and number not in self.loaded and (fault is None or fault.again_at <= now)

    def summary(self) -> dict[str, Any]:
        """The line of ``GET /v1/models``."""
        facts = None if self.current is None else self.state(self.current).facts
        return {
            "name": self.name,
            "status": self.status,
            "fallback_from": self.fallback_from,
            "loaded": self.current in self.loaded,
            **(_NOTHING if facts is None else facts[0]),
        }

    def describe(self) -> dict[str, Any]:
        """The response of ``GET /v1/models/{name}``."""
        newest_first = sorted(self.states.items(), reverse=True)
        return {
            "name": self.name,
            "status": self.status,
            "serving": self.current,
            "fallback_from": self.fallback_from,
            "versions": list(self.versions),
            "served": [
                {**state.facts[1], "loaded": state.model is not None}
                | ({} if state.model is None else state.model.measured())
                for _, state in newest_first
                if state.facts is not None and state.answers
            ],
            "unavailable": [
                {"version": v or None, "reason": state.fault.reason}
                for v, state in newest_first
                if state.fault is not None
            ],
        }

    def absent(self, version: int | None, now: float) -> ProblemError:
        """The error for a request for an unavailable version."""
        at = version if version is not None else max(self.broken, default=FOLDER)
        at = at if at in self.broken else FOLDER
        fault = self.broken.get(at)
        if fault is None and version is not None and version not in self.versions:
            return ProblemError(
                Kind.UNKNOWN_VERSION,
                f"model {self.name!r} has no version {version}; available: {', '.join(map(str, self.versions))}",
                available=list(self.versions),
            )
        if fault is None or (version is None and self.pending):
            detail = f"model {self.name!r} is being loaded; try again in a few seconds"
            return ProblemError(Kind.NOT_READY, detail, retry_after_s=2)
        detail = f"model {self.name!r}{f' version {at}' if at else ''} cannot be served: {fault.reason}"
        if not fault.transient:
            return ProblemError(Kind.BROKEN_MODEL, detail)
        wait = max(1, math.ceil(fault.again_at - now))
        detail += f"; it will be tried again in {wait} s"
        return ProblemError(Kind.NOT_READY, detail, retry_after_s=wait)


@dataclass(frozen=True)
class Changes:
    """The difference between two tables of entries: (name, version) pairs, with a reason for refusals."""

    loaded: list[tuple[str, int]]
    unloaded: list[tuple[str, int]]
    refused: list[tuple[str, int, str]]

    @classmethod
    def between(cls, before: Mapping[str, ModelEntry], after: Mapping[str, ModelEntry], again: bool = False) -> Self:
        """Compare two tables.

        Args:
            before, after: the entries by name.
            again: whether a refusal for the same reason as before counts too.
        """
        loaded_before = {(name, v) for name, entry in before.items() for v in entry.loaded}
        loaded = {(name, v) for name, entry in after.items() for v in entry.loaded}
        reasons = {(name, v): fault.reason for name, entry in before.items() for v, fault in entry.broken.items()}
        refused = [
            (name, v, fault.reason)
            for name, entry in sorted(after.items())
            for v, fault in sorted(entry.broken.items())
            if again or fault.reason != reasons.get((name, v))
        ]
        return cls(sorted(loaded - loaded_before), sorted(loaded_before - loaded), refused)
