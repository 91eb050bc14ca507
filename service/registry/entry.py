"""The registry's entry of one model: its versions on disk and in memory, and why others cannot be served."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

from models.repository import Signature
from service.errors import Kind, ProblemError
from service.registry.version import ModelVersion

FOLDER = 0
"""In place of a version: the model's folder, if that cannot be read; versions start at 1."""

RETRY_S = 1.0
"""Seconds after which a request retries a version that failed to load, without waiting for the next refresh."""

_LONGEST_S = 60.0


@dataclass(frozen=True)
class LoadFault:
    """Why a version could not be loaded, or why its changed files are left alone.

    Attributes:
        reason: message for clients and the log.
        again_at: when it may be tried again, by the registry's clock.
        transient: whether the cause is outside the files (disk, permissions, memory, the engine), so that the
            same files may load later. Other faults stay until the files change.
        wait_s: seconds from the failure to `again_at`; each consecutive transient fault doubles them.
    """

    reason: str
    again_at: float
    transient: bool = False
    wait_s: float = RETRY_S


@dataclass(frozen=True)
class VersionState:
    """What the registry knows of one version.

    It is untried (it has nothing), loaded (it has a model), unloaded (it has facts alone) or broken (it has a fault).
    Loading makes a version loaded or broken. If its files change, an unloaded or broken one is untried again, and a
    loaded one stays loaded, with a fault that reports it.

    Attributes:
        model: the version, while it is in memory.
        facts: its description, from when it was last in memory.
        fault: why it cannot be loaded, or why its changed files are left alone.
        signature: its files as they were when it was last tried; None if it is to be tried.
    """

    model: ModelVersion | None = None
    facts: dict[str, Any] | None = None
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
        states: the state of each version on disk, of a deleted one until another answers, and of `FOLDER`; the highest
            version comes first.
    """

    name: str
    states: Mapping[int, VersionState] = field(default_factory=dict)

    def state(self, version: int) -> VersionState:
        """The state of a version; an empty one if it is unknown."""
        return self.states.get(version) or VersionState()

    def with_state(self, version: int, **changes: Any) -> Self:
        """With these members of a version's state."""
        if (model := changes.get("model")) is not None:
            changes["facts"] = model.describe()
        return replace(self, states={**self.states, version: replace(self.state(version), **changes)})

    def with_fault(self, version: int, reason: str, now: float, transient: bool = False) -> Self:
        """With a fault; each consecutive transient one waits longer."""
        before, wait_s = self.state(version).fault, RETRY_S
        if transient and before is not None and before.transient:
            wait_s = min(2 * before.wait_s, _LONGEST_S)
        return self.with_state(version, fault=LoadFault(reason, now + wait_s, transient, wait_s))

    def without(self, versions: Iterable[int]) -> Self:
        """With versions out of memory. If their files were changed, that is no longer a fault: they are loaded next."""
        unloaded = {version: replace(self.state(version), model=None, fault=None) for version in versions}
        return replace(self, states={**self.states, **unloaded})

    def with_versions(self, versions: Collection[int]) -> Self:
        """With these versions; the states of others are forgotten."""
        return replace(self, states={version: self.state(version) for version in sorted(versions, reverse=True)})

    def untried(self, version: int) -> Self:
        """As if a version had never been tried; the current one stays current, so that requests wait for it."""
        facts = self.state(version).facts if version == self.current else None
        return replace(self, states={**self.states, version: VersionState(facts=facts)})

    @cached_property
    def versions(self) -> list[int]:
        """The versions, ascending."""
        return sorted(self.states.keys() - {FOLDER})

    @cached_property
    def current(self) -> int | None:
        """The version that answers requests without a version: the highest that can. It may have to be loaded first."""
        return max((version for version, state in self.states.items() if state.answers), default=None)

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
    def status(self) -> Literal["served", "loading", "unavailable"]:
        """`served` if a version answers, `loading` if one may once it is tried, or `unavailable`."""
        return "served" if self.current is not None else "loading" if self.pending else "unavailable"

    @cached_property
    def fallback_from(self) -> int | None:
        """The highest version that should answer but cannot be loaded, so that an older one does; or None."""
        current = self.current
        return None if current is None else max((v for v in self.broken if v > current), default=None)

    def refusal(self, version: int | None, now: float, tried: bool = False) -> ProblemError | None:
        """The error for a version that is not in memory; None if it can be loaded: it is untried, or due for a try.

        If it was `tried` a moment ago, it is not due, however long that took.
        """
        due = {at for at, fault in self.broken.items() if fault.again_at <= now and not tried}
        number = self.current if version is None else version
        if number is None and (self.pending or due):
            return None
        at = max(self.broken, default=FOLDER) if number is None else number
        at = at if at in self.broken else FOLDER
        fault = self.broken.get(at)
        if fault is None and number not in self.versions:
            detail = f"model {self.name!r} has no version {number}; available: {', '.join(map(str, self.versions))}"
            return ProblemError(Kind.UNKNOWN_VERSION, detail, available=self.versions)
        if fault is None or at in due:
            return None
        detail = f"model {self.name!r}{f' version {at}' if at else ''} cannot be served: {fault.reason}"
        if not fault.transient:
            return ProblemError(Kind.BROKEN_MODEL, detail)
        wait = max(1, math.ceil(fault.again_at - now))
        detail += f"; it will be tried again in {wait} s"
        return ProblemError(Kind.NOT_READY, detail, retry_after_s=wait)


class Changes(NamedTuple):
    """The difference between two tables of entries: (name, version) pairs, with a reason for refusals."""

    loaded: list[tuple[str, int]]
    unloaded: list[tuple[str, int]]
    refused: list[tuple[str, int, str]]

    @classmethod
    def between(cls, before: Mapping[str, ModelEntry], after: Mapping[str, ModelEntry], again: bool = False) -> Self:
        """Compare two tables; with `again`, a refusal for the same reason as before counts too."""
        (loaded_before, refused_before), (loaded, refused) = (
            (
                {(name, v) for name, entry in table.items() for v in entry.loaded},
                {(name, v, fault.reason) for name, entry in table.items() for v, fault in entry.broken.items()},
            )
            for table in (before, after)
        )
        refused = refused if again else refused - refused_before
        return cls(sorted(loaded - loaded_before), sorted(loaded_before - loaded), sorted(refused))
