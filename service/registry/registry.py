"""The model registry: the models of a repository, the current version of each, and the versions in memory.

`refresh` brings it up to date with the disk: at startup, at intervals, and for ``POST /v1/models:reload``. A version
that is replaced or unloaded is no longer leased, and leaves the device when its last lease is back.

One thread changes the entries and loads versions, one after another; models take turns. A refresh hands it one model at
a time, so that a requested load waits for at most the one in progress and one of each other model. Readers take no
lock.
"""

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial

import torch

from engine.arena import Arena
from engine.engine import Engine
from engine.job import SAMPLE, Draining, Operation, Sizes
from models.checkpoint.card import CheckpointError, UnreadableCheckpoint, read_card
from models.checkpoint.plans import tuned_plans
from models.messages import first_line, typed_line
from models.repository import Repository, RepositoryError, Signature, UnknownModel
from service.errors import Kind, ProblemError, invalid, shutting_down
from service.metrics import Metrics
from service.registry.entry import FOLDER, Changes, ModelEntry
from service.registry.lease import Lease
from service.registry.loading import Loads
from service.registry.version import ModelVersion, load_version
from service.settings import Settings, StartError

_log = logging.getLogger("pathline")

_ALL = ""
"""Whose turn it is in the loading thread while all models are refreshed, in place of a model's name."""

MAX_PASSED_OVER = 50
"""Maximum number of passed-over entries to report."""

_MAX_NAMED = 5
"""Maximum number of entries named in the error for a repository without models."""


class Registry:
    """All models of a repository. A version that cannot be loaded is recorded with its reason and blocks no other.

    Attributes:
        repository: the folder of the models.
        complete: whether every model has been tried once, so that a model without an answering version has a reason.
        passed_over: path and reason of each entry of the repository that is not a model.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check that the repository can be read; raise a StartError if not."""
        self._settings, self._engine, self._clock = settings, engine, clock
        self._metrics = Metrics() if metrics is None else metrics
        self.repository = Repository(settings.models_dir)
        self._table: dict[str, ModelEntry] = {}  # replaced, never changed
        self._leaving: list[tuple[ModelVersion, Signature | None]] = []  # unloaded with leases out, and their files
        self.passed_over: list[tuple[str, str]] = []
        self._loads, self.complete = Loads(), False
        try:
            self.repository.names()
        except RepositoryError as error:
            raise StartError(f"{error}; set PATHLINE_MODELS_DIR or run `make models`") from None

    # Start and stop.

    def open(self) -> None:
        """List the models of the repository without loading any; raise a StartError if it has none."""
        self._loads.run(_ALL, self._scan).result()
        if self._table:
            return
        what = f"the model repository {self.repository.root}"
        if not self.passed_over:
            raise StartError(f"{what} is empty; run `make models`, or set PATHLINE_MODELS_DIR")
        named = "; ".join(f"{path}: {reason}" for path, reason in self.passed_over[:_MAX_NAMED])
        more = len(self.passed_over) - _MAX_NAMED
        raise StartError(f"{what} has no model: {named}" + (f"; and {more} more" if more > 0 else ""))

    def load_all(self) -> None:
        """Load the highest version of each model that loads; raise a StartError if none does."""
        self.open()
        self.refresh()
        self.check_any()

    def check_any(self) -> None:
        """Raise a StartError if no model can be served."""
        if not self.current():
            broken = self.broken().items()
            faults = [f"{name}/{v}: {why}" if v else why for name, reasons in broken for v, why in reasons.items()]
            raise StartError(f"no model in {self.repository.root} can be loaded: {'; '.join(faults)}")

    def close(self) -> None:
        """Stop loading: requests that wait for a load fail, and a running load is not waited for."""
        self._loads.close()

    # Reading the entries.

    def entries(self) -> list[ModelEntry]:
        """Return the entries of all models, served or broken, by name."""
        return [entry for _, entry in sorted(self._table.items())]

    def current(self) -> list[tuple[str, int]]:
        """Return (name, version) of each model's current version."""
        return [(entry.name, entry.current) for entry in self.entries() if entry.current is not None]

    def broken(self) -> dict[str, dict[int, str]]:
        """Return name -> version -> why it cannot be loaded; version 0 means a folder that cannot be read."""
        return {e.name: {v: fault.reason for v, fault in e.broken.items()} for e in self.entries() if e.broken}

    def pending(self) -> list[str]:
        """Return the names of models without an answering version yet, but with an untried one."""
        return [entry.name for entry in self.entries() if entry.pending]

    def entry(self, name: str) -> ModelEntry:
        """Return the entry of a model; raise a 404 for an unknown name."""
        entry = self._table.get(name)
        if entry is None:
            available = sorted(self._table)
            detail = f"model {name!r} is unknown; available: {', '.join(available)}"
            raise ProblemError(Kind.UNKNOWN_MODEL, detail, available=available)
        return entry

    def check_ready(self, name: str, version: int | None = None) -> None:
        """Raise a 404 or 503 if a model cannot be leased; a version that must be loaded first can."""
        if self._find(name, version) is None and self.entry(name).pending:
            raise _being_loaded(name)

    def _find(self, name: str, version: int | None, tried: bool = False) -> ModelVersion | None:
        """Return a version, or with None the current one, if it is in memory; an error if it cannot be loaded."""
        entry = self._table.get(name) or self.entry(name)
        model = entry.loaded.get((entry.current if version is None else version) or FOLDER)
        if model is None and (refusal := entry.refusal(version, self._clock(), tried)) is not None:
            raise refusal
        return model

    # For requests.

    async def lease(self, name: str, version: int | None = None, deadline: float = math.inf) -> Lease:
        """Return a lease of a model, or of one of its versions, which is loaded off the event loop if needed.

        If no version is requested and the current one can no longer be loaded, the next lower one is leased.

        Args:
            name, version: of the model; None for its current version.
            deadline: end of the wait for loading, in `time.monotonic`.

        Raises:
            ProblemError: 404 for an unknown name or version, 503 for one that cannot be loaded, 429 if too many loads
                are pending or too many old versions in use, 504 at the deadline.
        """
        model = self._find(name, version)
        if model is not None and (lease := self._leased(model, version)) is not None:
            return lease
        late = f"model {name!r} was still loading when timeout_s ended; try again, or raise timeout_s"
        return await self._loads.wait((name, version), partial(self._load, name, version), deadline, late)

    def _leased(self, model: ModelVersion, version: int | None) -> Lease | None:
        """Return a lease for a request for a version, or with None the current one; None if the model is gone.

        If it answers in place of a better version that is due for another try, that is tried.
        """
        now, entry = self._clock(), self._table.get(model.name) or ModelEntry(model.name)
        model.leases.used, better = now, entry.fallback_from
        if better is None or version is not None or entry.current != model.version:
            return Lease.of(model)
        if entry.broken[better].again_at <= now and all(load.name != entry.name for load in self._loads.pending()):
            self._loads.run(entry.name, partial(self._refresh, entry.name))
        return Lease.of(model, better)

    async def prepare(self, model: ModelVersion, operation: Operation, deadline: float, sizes: Sizes = ()) -> bool:
        """Prepare an operation of a leased version, once for all waiting requests; usually it is ready already.

        Returns whether its results are deterministic, including decoding.

        Args:
            model, operation, sizes: the version, what it shall compute, and at which sizes of its free axes.
            deadline: of the request, in `time.monotonic`.

        Raises:
            ProblemError: 422 for a network without derivatives, 500 if memory runs out, 429, 503, 504.
        """
        key = model.name, model.version, operation, sizes
        arena = self._engine.prepared(*key)
        late = f"preparing model {model.name!r} for the first time took longer than timeout_s; try again, or raise it"
        if arena is None:
            arena = await self._loads.wait(key, partial(self._prepare, model, operation, sizes), deadline, late)
        return model.deterministic and arena.deterministic

    # For the administrator and the service.

    def unload(self, name: str) -> Future[list[int]]:
        """Free the memory of a model once its leases are back; the next lease loads it again.

        The future has the versions that were in memory, or a 404 for an unknown name.
        """

        def unload() -> list[int]:
            entry = self.entry(name)
            self._put(entry.without(entry.loaded))
            return sorted(entry.loaded)

        return self._loads.run(name, unload)

    def refresh(self, retry_failed: bool = False) -> Changes:
        """Bring the entries up to date with the disk: load new models and versions, unload removed ones.

        The highest version that can be loaded answers from then on. Versions are not meant to change: if the files of
        a loaded one do, the loaded version stays in use, and the change is reported.

        Args:
            retry_failed: also retry failed versions that have not changed since.

        Raises:
            RepositoryError: the repository cannot be read; nothing changes then.
        """
        before = self._table
        with suppress(ProblemError):  # the registry is closed meanwhile
            for name in self._loads.run(_ALL, self._scan).result():
                self._loads.run(_ALL, partial(self._refresh, name, retry_failed)).result()
            self.complete = True
        return Changes.between(before, self._table, again=retry_failed)

    # In the thread that loads: entries.

    def _scan(self) -> list[str]:
        """List the models, so that their names are known before the first is loaded."""
        names = self.repository.names()
        before = self.passed_over
        self.passed_over = [(self.repository.within(path), why) for path, why in self.repository.passed_over()]
        new = [odd for odd in self.passed_over if odd not in before]
        for path, reason in new[:MAX_PASSED_OVER]:
            _log.warning("%s: %s", path, reason)
        if len(new) > MAX_PASSED_OVER:
            _log.warning("%d more are passed over; `python -m models list` shows all", len(new) - MAX_PASSED_OVER)
        for name in self._table.keys() - set(names):
            self._put(self._table[name].with_versions(()))
        for name in names:
            if name not in self._table:
                self._read_versions(name)
        return names

    def _read_versions(self, name: str) -> list[int]:
        """Return the versions on disk. The entry forgets others, but the current one only once another answers."""
        entry = self._entry(name)
        try:
            versions = self.repository.versions(name)
        except UnknownModel:
            versions = []
        except RepositoryError as error:
            self._refuse(name, FOLDER, error)
            return []
        stays = [entry.current] if versions and entry.current in entry.loaded else []
        self._put(entry.with_versions([*versions, *stays]))
        return versions

    def _refresh(self, name: str, retry_failed: bool = False, load: bool = False) -> None:
        """Bring one model up to date; with `load`, also load its current version. A fault in it stops no other."""
        try:
            versions = self._read_versions(name)
            for version in versions:
                self._compare(name, version, retry_failed)
                self._refresh_plans(name, version)
            stays = None if load else self._entry(name).current  # it answers, though it may be unloaded
            if any(self._answers(name, version, stays) for version in reversed(versions)):
                self._put(self._table[name].with_versions(versions))
        except Exception as error:
            self._refuse(name, FOLDER, error)

    def _answers(self, name: str, version: int, stays: int | None) -> bool:
        """Whether a version is in memory or can be; unless it `stays` as it is, it is loaded to find out."""
        state = self._table[name].state(version)
        if state.model is not None:
            return True
        if state.fault is not None and not (state.fault.transient and state.fault.again_at <= self._clock()):
            return False
        return (version == stays and state.signature is not None) or self._try(name, version)

    def _compare(self, name: str, version: int, retry_failed: bool) -> None:
        """Note whether the files of a version have changed since it was tried."""
        entry = self._table[name]
        state = entry.state(version)
        if state.model is None and state.fault is not None and retry_failed:
            self._put(entry.untried(version))
            return
        if state.signature is None:
            return
        try:
            signature = self.repository.signature(name, version)
        except (RepositoryError, UnknownModel) as error:
            if state.model is not None:
                self._refuse(name, version, CheckpointError(f"{error}; the loaded version stays in use"))
            return
        if state.model is None:
            if signature != state.signature:
                self._put(entry.untried(version))
            elif state.fault is not None and not state.fault.transient:  # just checked; no need to check again at once
                self._put(entry.with_fault(version, state.fault.reason, self._clock()))
        elif signature == state.signature or self._is_copy(state.model, state.signature, signature):
            self._put(entry.with_state(version, signature=signature, fault=None))
        else:
            reason = f"{name}/{version}: was changed after it was loaded; the loaded version stays in use"
            self._refuse(name, version, CheckpointError(f"{reason}; put changes into a new version, or restart"))

    def _is_copy(self, model: ModelVersion, before: Signature, now: Signature) -> bool:
        """Whether files that are not the loaded ones have their sizes, and a card with the same digest.

        So it is after `touch`, when a linked checkout is replaced by an equal one, and on mounts that renumber files.
        """
        if [file and file[1] for file in before] != [file and file[1] for file in now]:
            return False
        try:
            card = read_card(self.repository.resolve(model.name, model.version))
        except CheckpointError:
            return False
        return card.card_sha256 == model.card.card_sha256

    def _refresh_plans(self, name: str, version: int) -> None:
        """Reload the tuned plans of a loaded version if the file has changed."""
        model = self._table[name].loaded.get(version)
        if model is None or (signature := self.repository.plans_signature(name, version)) == model.plans_signature:
            return
        plans = tuned_plans(self.repository.resolve(name, version), model.card.weights_sha256)
        model = model.with_plans(*plans, signature)
        self._put(self._table[name].with_state(version, model=model))
        texts = [] if model.plans is None else model.plans.texts
        _log.info("model %s version %d: tuned plans are now %s", name, version, texts)

    def _refuse(self, name: str, version: int, error: Exception) -> None:
        """Record why a version cannot be loaded; clients need not know the path of the repository.

        A fault in the files themselves stays until they change. Any other fault (disk, permissions, memory, the engine)
        may pass, so loading is retried.
        """
        explained = isinstance(error, CheckpointError | RepositoryError | UnknownModel)
        if not explained and not isinstance(error, OSError | MemoryError):
            _log.error("loading %s failed", _label(name, version), exc_info=error)
        reason = str(error) if explained else typed_line(error)
        reason = reason.replace(f"{self.repository.root}/", "").replace(f" {self.repository.root}", "")
        transient = isinstance(error, UnreadableCheckpoint) or not isinstance(error, CheckpointError)
        self._put(self._entry(name).with_fault(version, reason, self._clock(), transient))

    def _forget(self, model: ModelVersion) -> None:
        """Stop leasing a version; it is loaded again on request."""
        self._put(self._entry(model.name).without([model.version]))

    def _entry(self, name: str) -> ModelEntry:
        return self._table.get(name) or ModelEntry(name)

    def _put(self, entry: ModelEntry) -> None:
        """Replace the entry of a model, return the leases of versions no longer in it, and report the changes."""
        name, before = entry.name, self._entry(entry.name)
        table = {**self._table, name: entry}
        if not entry.states:
            del table[name]
        self._table = table
        changes = Changes.between({name: before}, {name: entry})
        for _, version in changes.loaded:
            self._metrics.model_is_loaded(name, version, True, entry.loaded[version].path)
        for _, version in changes.unloaded:
            model = before.loaded[version]
            model.leases.give_back()
            self._leaving.append((model, before.state(version).signature))
            self._metrics.model_is_loaded(name, version, False, model.path)
            _log.info("model %s version %d was unloaded", name, version)
        self._leaving = [pair for pair in self._leaving if not pair[0].leases.freed]
        for _, version, reason in changes.refused:
            stays = entry.loaded if version == FOLDER else version in entry.loaded
            how = "stays in use as it was loaded" if stays else "is not served"
            how += ", and will be tried again" if entry.broken[version].transient else ""
            _log.error("%s %s: %s", _label(name, version), how, reason)
        if before.fallback_from != (better := entry.fallback_from):
            self._metrics.falls_back(name, better is not None)
            if better is not None:
                message = "model %s: version %s answers instead of version %d, which cannot be loaded: %s"
                _log.warning(message, name, entry.current, better, entry.broken[better].reason)

    # In the thread that loads: versions.

    def _load(self, name: str, version: int | None) -> Callable[[], Lease | None]:
        """Load a version if needed; return what leases it."""
        if (model := self._find(name, version)) is None:
            self._refresh(name, load=version is None)
            entry = self.entry(name)
            if version in entry.versions and self._find(name, version) is None:
                self._try(name, version, by_number=version != entry.current)
            if (model := self._find(name, version, tried=True)) is None:
                raise _being_loaded(name)
        return partial(self._leased, model, version)

    def _try(self, name: str, version: int, by_number: bool = False) -> bool:
        """Load a version, for a request by number or for all requests; return whether it was loaded.

        If it answers from now on, the one that answered before leaves memory.
        """
        model: ModelVersion | None = None
        try:
            signature = self.repository.signature(name, version)
            self._put(self._table[name].with_state(version, signature=signature))
            model = self._leaving_version(name, version, signature) or self._load_files(name, version, by_number)
            model.leases.used = self._clock()
            before = self._table[name].current
            entry = self._table[name].with_state(version, model=model, fault=None)
        except ProblemError:  # no room now, which is not a fault of the version
            raise
        except Exception as error:
            if model is not None:  # it cannot be described
                model.leases.give_back()
            if not self._loads.closed:
                self._refuse(name, version, error)
            return False
        self._put(entry if before in (None, entry.current) else entry.without([before]))
        return True

    def _leaving_version(self, name: str, version: int, signature: Signature) -> ModelVersion | None:
        """Return a version that was unloaded while leases were out and need not be loaded again.

        Raises:
            RepositoryError: its files were changed; the engine would use the new ones for later jobs of those leases.
        """
        for pair in self._leaving:
            model, files = pair
            if (model.name, model.version) == (name, version) and model.leases.take():
                if files == signature or self._is_copy(model, files or (), signature):
                    self._leaving.remove(pair)
                    return model
                model.leases.give_back()
                raise RepositoryError(f"{name}/{version}: was changed, and requests still use it as it was before")
        return None

    def _load_files(self, name: str, version: int, by_number: bool) -> ModelVersion:
        folder = self.repository.resolve(name, version)
        if by_number:
            self._make_room_among_old()
        self._make_room(f"{name}/{version}", self.repository.weight_bytes(name, version))
        plans = self.repository.plans_signature(name, version)
        return load_version(self._engine, self._settings, name, version, folder, plans)

    def _by_use(self) -> list[ModelVersion]:
        """The versions that can be leased, the least recently used first."""
        models = (model for entry in self._table.values() for model in entry.loaded.values())
        return sorted(models, key=lambda model: model.leases.used)

    def _make_room(self, label: str, needed: int) -> None:
        """Unload the least recently used versions, just enough for another; a CheckpointError if it never fits."""
        limit, models = self._settings.max_model_bytes, self._by_use()
        if limit and needed > limit:
            raise CheckpointError(
                f"{label}: its weights take {needed} bytes, over PATHLINE_MAX_MODEL_BYTES={limit}; raise it"
            )
        while limit and models and sum(model.bytes for model in models) + needed > limit:
            self._forget(models.pop(0))

    def _make_room_among_old(self) -> None:
        """Unload versions that are neither current nor leased, until one more may be loaded, or raise a 429."""
        current, limit = self.current(), self._settings.max_old_versions
        leaving = [model for model, _ in self._leaving if not model.leases.freed]
        in_use = sum((model.name, model.version) not in current for model in (*leaving, *self._by_use()))
        for model in self._by_use():
            idle = model.leases.out == 1  # the registry's own
            if in_use >= limit and idle and (model.name, model.version) not in current:
                self._forget(model)
                in_use -= model.leases.freed  # unless it was leased meanwhile
        if in_use >= limit:
            raise ProblemError(
                Kind.OVERLOADED,
                f"{in_use} older versions are in use, the limit is {limit} (PATHLINE_MAX_OLD_VERSIONS); leave version "
                "out, or try again in a second",
                retry_after_s=1,
            )

    def _prepare(self, model: ModelVersion, operation: Operation, sizes: Sizes) -> Callable[[], Arena]:
        """Prepare an operation of a version, which is leased until then."""
        with Lease.of(model) or nullcontext():
            try:
                arena = self._engine.prepare(model.name, model.version, operation, sizes)
            except Exception as error:
                raise _unready(model, operation, sizes, error) from None
        return lambda: arena


def _label(name: str, version: int) -> str:
    """Return how logs name a version, or a model whose folder cannot be read."""
    return f"model {name}" if version == FOLDER else f"model {name} version {version}"


def _being_loaded(name: str) -> ProblemError:
    detail = f"model {name!r} is being loaded; try again in a few seconds"
    return ProblemError(Kind.NOT_READY, detail, retry_after_s=2)


def _unready(model: ModelVersion, operation: Operation, sizes: Sizes, error: Exception) -> ProblemError:
    """Return what a request is told when an operation of a model cannot be prepared."""
    if isinstance(error, Draining):
        return shutting_down()
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return ProblemError(Kind.ENGINE, f"the engine failed on this request: {first_line(error)}")
    _log.error("model %s version %d is not ready for %s", model.name, model.version, operation.name, exc_info=error)
    if operation is SAMPLE:
        shape = ", ".join(f"{axis} = {size}" for axis, size in sizes)
        return invalid("shape", f"model {model.name!r} cannot be evaluated at {shape}: {typed_line(error)}")
    return invalid("name", f"the network of model {model.name!r} has no derivative to use: {typed_line(error)}")
