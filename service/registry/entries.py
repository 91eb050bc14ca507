"""The entries of all models, each with its current version, kept up to date with the disk by one thread.

`Memory` limits the versions in memory by unloading the least recently used.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Literal

from models.checkpoint.card import CheckpointError, UnreadableCheckpoint
from models.repository import RepositoryError, Signature
from service.errors import Kind, ProblemError
from service.ports import Engine
from service.registry.disk import Disk
from service.registry.entry import UNREADABLE, Changes, ModelEntry
from service.registry.loading import load_version
from service.registry.version import ModelVersion, PlansFile

_log = logging.getLogger("pathline")

Key = tuple[str, int]
Unload = Callable[[ModelVersion], None]


class Memory:
    """All versions with memory not yet freed, including those unloaded while leases are out.

    Used only by the loading thread, except for `used`, which any thread may set.

    Attributes:
        used: time of the last request for each version.
    """

    def __init__(self, max_bytes: int, max_old: int) -> None:
        """Start empty.

        Args:
            max_bytes: maximum bytes of all weights; 0 for no limit.
            max_old: maximum number of versions that answer only by number.
        """
        self.used: dict[Key, float] = {}
        self._max_bytes, self._max_old = max_bytes, max_old
        self._held: list[ModelVersion] = []

    def add(self, model: ModelVersion) -> None:
        """Add a loaded version."""
        self._held = [each for each in self._held if not each.leases.freed] + [model]

    def replace(self, before: ModelVersion, after: ModelVersion) -> None:
        """Replace the description of a version; its leases stay the same."""
        self._held = [after if each is before else each for each in self._held]

    def restored(self, name: str, version: int, signature: Signature) -> ModelVersion | None:
        """Return a version that was unloaded with leases out and need not be loaded again."""
        for model in self._held:
            if (model.name, model.version, model.signature) == (name, version, signature) and model.leases.restore():
                return model
        return None

    def make_room(self, key: Key, needed: int, loaded: Iterable[ModelVersion], unload: Unload) -> None:
        """Unload the least recently used of the `loaded` versions, just enough to make room for another.

        Raises:
            CheckpointError: it would not fit even alone.
        """
        if not self._max_bytes:
            return
        if needed > self._max_bytes:
            which = f"{key[0]}/{key[1]}"
            raise CheckpointError(
                f"{which}: its weights take {needed} bytes, over PATHLINE_MAX_MODEL_BYTES={self._max_bytes}; raise it"
            )
        models = sorted(loaded, key=self._last_used)
        excess = sum(model.bytes for model in models) + needed - self._max_bytes
        for model in models:
            if excess <= 0:
                return
            unload(model)
            excess -= model.bytes

    def make_room_among_old(self, current: Collection[Key], unload: Unload) -> None:
        """Unload versions that are neither `current` nor leased, until one more may be loaded.

        Raises:
            ProblemError: 429; all of them are leased.
        """
        old = [each for each in self._held if not each.leases.freed and (each.name, each.version) not in current]
        count = len(old)
        for model in sorted(old, key=self._last_used):
            if count < self._max_old:
                return
            if model.leases.retire(if_idle=True):
                unload(model)
                count -= 1
        if count >= self._max_old:
            raise ProblemError(
                Kind.OVERLOADED,
                f"{count} older versions are in use, the limit is {self._max_old} (PATHLINE_MAX_OLD_VERSIONS); leave "
                "version out, or try again in a second",
                headers={"Retry-After": "1"},
                retry_after_s=1,
            )

    def _last_used(self, model: ModelVersion) -> float:
        return self.used.get((model.name, model.version), 0.0)


class Entries:
    """The entries, by name. `known` and `find` are for any thread and take no lock; the rest is for the loading thread.

    Attributes:
        table: the entries; replaced, never changed.
        closed: if set, nothing more is loaded.
    """

    def __init__(
        self,
        disk: Disk,
        memory: Memory,
        engine: Engine,
        allow_programs: bool,
        notify: Callable[[str, int, bool, str], None],
        notify_fallback: Callable[[str, bool], None],
        clock: Callable[[], float],
        compute: Literal["auto", "float32"] = "auto",
    ) -> None:
        """Start without entries; for the arguments see `Registry`."""
        self._disk, self._memory, self._engine, self._allow_programs = disk, memory, engine, allow_programs
        self._compute: Literal["auto", "float32"] = compute
        self._notify, self._notify_fallback, self._clock = notify, notify_fallback, clock
        self.table: dict[str, ModelEntry] = {}
        self._pinned: set[Key] = set()  # requested by number: a newer version does not replace them
        self.closed = False

    def current(self) -> list[Key]:
        """(name, version) of each model's current version."""
        return [(name, entry.current) for name, entry in sorted(self.table.items()) if entry.current is not None]

    def loaded(self) -> list[ModelVersion]:
        """Every version that can be leased without loading it."""
        return [model for entry in self.table.values() for model in entry.loaded.values()]

    def entry(self, name: str) -> ModelEntry:
        """The entry of a model; an empty one if there is none."""
        return self.table.get(name) or ModelEntry(name)

    def known(self, name: str) -> ModelEntry:
        """The entry of a model.

        Raises:
            ProblemError: 404 for an unknown name.
        """
        entry = self.table.get(name)
        if entry is None:
            available = sorted(self.table)
            detail = f"model {name!r} is unknown; available: {', '.join(available)}"
            raise ProblemError(Kind.UNKNOWN_MODEL, detail, available=available)
        return entry

    def find(self, name: str, version: int | None) -> tuple[ModelEntry, ModelVersion | None]:
        """The entry of a model, and a version of it (None for the current one) if that is in memory.

        Raises:
            ProblemError: 404 for an unknown name or version, 503 for one that cannot be loaded.
        """
        entry, now = self.known(name), self._clock()
        wanted = entry.current if version is None else version
        model = None if wanted is None else entry.loaded.get(wanted)
        if model is None and not entry.can_load(version, now):
            raise entry.absent(version, now)
        if wanted is not None:
            self._memory.used[name, wanted] = now
            if version is not None and version != entry.current:
                self._pinned.add((name, version))
        return entry, model

    def scan(self, changes: Changes) -> list[str]:
        """List the models, so that their names are known before the first is loaded."""
        found = self._disk.names()
        for name in [name for name in self.table if name not in found]:
            self._put(self.table[name].with_versions(()), changes)
        for name in found:
            if name not in self.table:
                self._read_versions(name, changes)
        return found

    def _read_versions(self, name: str, changes: Changes) -> tuple[int, ...]:
        try:
            entry = self._disk.with_versions(self.entry(name))
        except RepositoryError as error:
            self.refuse(name, UNREADABLE, str(error), changes, transient=True)
            return ()
        self._put(entry, changes)
        return entry.versions

    def refresh(self, name: str, changes: Changes, retry_failed: bool = False, load: bool = False) -> None:
        """Bring one model up to date; with `load`, also load its current version."""
        versions = () if self.closed else self._read_versions(name, changes)
        if not versions:
            return
        for version in versions:
            self._put(self._disk.compared(self.table[name], version, self._clock(), retry_failed), changes)
            self._refresh_plans(name, version, changes)
        before = self.table[name].current
        current = next((version for version in reversed(versions) if self._answers(name, version, changes, load)), None)
        self._put(replace(self.table[name], current=current).with_versions(versions), changes)
        if before in versions and before != current and (name, before) not in self._pinned:
            self._put(self.table[name].without_loaded(before), changes)

    def _refresh_plans(self, name: str, version: int, changes: Changes) -> None:
        """Reload the tuned plans of a loaded version if the file has changed."""
        model = self.table[name].loaded.get(version)
        signature = self._disk.repository.plans_signature(name, version)
        if model is None or signature == model.plans_file.signature:
            return
        folder = self._disk.repository.resolve(name, version)
        after = replace(model, plans_file=PlansFile.read(name, version, folder, model.card.weights_sha256, signature))
        self._memory.replace(model, after)
        self._put(self.table[name].with_plans(after), changes)
        _log.info("model %s version %d: tuned plans are now %s", name, version, after.plans_file.describe()["tuned"])

    def _answers(self, name: str, version: int, changes: Changes, load: bool) -> bool:
        """Whether a version is in memory or can be; an untried version is loaded to find out."""
        entry = self.table[name]
        if version in entry.loaded:
            return True
        fault = entry.broken.get(version)
        if fault is not None and not (fault.transient and fault.again_at <= self._clock()):
            return False
        if version == entry.current and fault is None and not load:
            return True
        return self._try(name, version, changes)

    def _try(self, name: str, version: int, changes: Changes, by_number: bool = False) -> bool:
        """Load a version, for a request by number or for all requests; return whether it was loaded.

        A fault in the files themselves stays until they change. Any other fault (disk, permissions, memory, the engine)
        may pass, so loading is retried.
        """
        signature: Signature | None = None
        transient = True
        try:
            signature = self._disk.repository.signature(name, version)
            model = self._memory.restored(name, version, signature)
            if model is None:
                model = self._load(name, version, signature, changes, by_number)
        except ProblemError:  # no room now, which is not a fault of the version
            raise
        except (UnreadableCheckpoint, RepositoryError, LookupError) as error:
            message = str(error)
        except CheckpointError as error:
            message, transient = str(error), False
        except Exception as error:
            message = f"{type(error).__name__}: {error}".splitlines()[0]
            if not self.closed and not isinstance(error, OSError | MemoryError):
                _log.exception("loading model %s version %d failed", name, version)
        else:
            self._put(self.table[name].with_loaded(model), changes)
            return True
        if not self.closed:
            self.refuse(name, version, message, changes, transient, signature)
        return False

    def _load(self, name: str, version: int, signature: Signature, changes: Changes, by_number: bool) -> ModelVersion:
        folder = self._disk.repository.resolve(name, version)
        unload = partial(self._forget, changes=changes)
        if by_number:
            self._memory.make_room_among_old(self.current(), unload)
        needed = self._disk.repository.weight_bytes(name, version)
        self._memory.make_room((name, version), needed, self.loaded(), unload)
        plans = self._disk.repository.plans_signature(name, version)
        allowed, compute = self._allow_programs, self._compute
        model = load_version(self._engine, name, version, folder, allowed, signature, plans, compute)
        self._memory.add(model)
        return model

    def load(self, name: str, version: int | None) -> ModelVersion:
        """Return a version, loading it if needed.

        Raises:
            ProblemError: as in `find`; 429 if the maximum number of old versions is in use.
        """
        _, model = self.find(name, version)
        if model is not None:
            return model
        changes = Changes()
        self.refresh(name, changes, load=version is None)
        entry = self.known(name)
        if version in entry.versions and entry.can_load(version, self._clock()):
            self._try(name, version, changes, by_number=(name, version) not in self.current())
        entry = self.known(name)
        wanted = entry.current if version is None else version
        model = None if wanted is None else entry.loaded.get(wanted)
        if model is None:
            raise entry.absent(version, self._clock())
        return model

    def unload(self, name: str) -> list[int]:
        """Stop leasing the versions of a model; return those that were in memory. Errors as in `known`."""
        models = self.known(name).loaded
        for model in models.values():
            self._forget(model, Changes())
        return sorted(models)

    def _forget(self, model: ModelVersion, changes: Changes) -> None:
        """Stop leasing a version."""
        entry = self.table.get(model.name)
        if entry is not None and entry.loaded.get(model.version) is model:
            self._put(entry.without_loaded(model.version), changes)

    def refuse(
        self,
        name: str,
        version: int,
        reason: str,
        changes: Changes,
        transient: bool = False,
        signature: Signature | None = None,
    ) -> None:
        """Record why a version cannot be loaded."""
        entry = self.entry(name)
        self._put(entry.with_fault(version, self._disk.reason(reason), self._clock(), transient, signature), changes)

    def _put(self, entry: ModelEntry, changes: Changes) -> None:
        """Replace the entry of a model, retire versions no longer in it, and report the changes."""
        name = entry.name
        before = self.entry(name)
        self.table = {each: known for each, known in {**self.table, name: entry}.items() if not known.empty}
        new = Changes.between(before, entry)
        changes.add(new)
        for _, version in new.loaded:
            self._memory.used.setdefault((name, version), self._clock())
            self._notify(name, version, True, entry.loaded[version].path)
        for _, version in new.unloaded:
            before.loaded[version].leases.retire()
            self._memory.used.pop((name, version), None)
            self._pinned.discard((name, version))
            self._notify(name, version, False, before.loaded[version].path)
            _log.info("model %s version %d was unloaded", name, version)
        for _, version, reason in new.refused:
            how = "stays in use as it was loaded" if version in entry.loaded else "is not served"
            how += ", and will be tried again" if entry.broken[version].transient else ""
            _log.error("model %s version %d %s: %s", name, version, how, reason)
        if before.fallback_from != entry.fallback_from:
            self._tell_fallback(entry)

    def _tell_fallback(self, entry: ModelEntry) -> None:
        better = entry.fallback_from
        self._notify_fallback(entry.name, better is not None)
        if better is not None:
            message = "model %s: version %s answers instead of version %d, which cannot be loaded: %s"
            _log.warning(message, entry.name, entry.current, better, entry.broken[better].reason)
