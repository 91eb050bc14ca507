"""The model registry: the models of a repository, the current version of each, and the versions in memory.

`refresh` brings it up to date with the disk. It is called at startup, by `service.registry.disk.Watch` and for ``POST
/v1/models:reload``. A version that is replaced or unloaded is no longer leased, and leaves the device when its last
lease is back.

One thread changes the entries and loads versions, one after another; models take turns. A refresh hands it one model at
a time, so that a requested load waits for at most the one in progress and one of each other model. Readers take no
lock.
"""

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from engine.job import SAMPLE, Draining, Operation, Sizes
from models.repository import RepositoryError
from service.errors import Kind, ProblemError, invalid, shutting_down
from service.ports import Engine
from service.registry.disk import Disk
from service.registry.entries import Entries, Key, Memory
from service.registry.entry import UNREADABLE, Changes, ModelEntry
from service.registry.loading import Loads
from service.registry.version import Lease, ModelVersion
from service.settings import StartError

_log = logging.getLogger("pathline")

T = TypeVar("T")

_ALL = ""
"""Whose turn it is in the loading thread while all models are refreshed, in place of a model's name."""

_MAX_NAMED = 5
"""Maximum number of entries named in the error for a repository without models."""


class Registry:
    """All models of a repository. A version that cannot be loaded is recorded with its reason and blocks no other.

    Attributes:
        complete: whether every model has been tried once, so that a model without an answering version has a reason.
    """

    def __init__(
        self,
        root: Path,
        engine: Engine,
        max_bytes: int = 0,
        notify: Callable[[str, int, bool, str], None] = lambda name, version, loaded, path: None,
        allow_programs: bool = False,
        max_old: int = 8,
        notify_fallback: Callable[[str, bool], None] = lambda name, falls_back: None,
        clock: Callable[[], float] = time.monotonic,
        compute: Literal["auto", "float32"] = "auto",
    ) -> None:
        """Check that the repository can be read.

        Args:
            root: the repository.
            engine: the engine that evaluates the models.
            max_bytes: maximum bytes of weights in memory; beyond it the least recently used are unloaded. 0 for no
                limit.
            notify: called with (name, version, whether it is loaded now) for each change.
            allow_programs: whether imported programs are served.
            max_old: maximum number of versions in memory that answer only by number; beyond it the least recently used
                are unloaded.
            notify_fallback: called with (name, whether) when an older version starts or stops answering for a model
                with a highest version that cannot be loaded.
            clock: `time.monotonic`, or a simulated one.
            compute: precision of networks: that of their cards, or float32.

        Raises:
            StartError: the repository is missing or cannot be read.
        """
        self._engine, self._clock = engine, clock
        self._retried: set[str] = set()  # models with a better version about to be retried
        self._loads = Loads()
        self._refresher = ThreadPoolExecutor(1, "pathline-refresh")
        self.complete = False
        try:
            self._disk = Disk(root)
        except RepositoryError as error:
            raise StartError(f"{error}; set PATHLINE_MODELS_DIR or run `make models`") from None
        memory = Memory(max_bytes, max_old)
        self._entries = Entries(self._disk, memory, engine, allow_programs, notify, notify_fallback, clock, compute)

    # Start and stop.

    def open(self) -> None:
        """List the models of the repository without loading any.

        Raises:
            StartError: the repository has no model.
        """
        self._loads.run(_ALL, partial(self._entries.scan, Changes())).result()
        if self._entries.table:
            return
        what = f"the model repository {self._disk.repository.root}"
        if not self._disk.passed_over:
            raise StartError(f"{what} is empty; run `make models`, or set PATHLINE_MODELS_DIR")
        named = "; ".join(f"{path}: {reason}" for path, reason in self._disk.passed_over[:_MAX_NAMED])
        more = len(self._disk.passed_over) - _MAX_NAMED
        raise StartError(f"{what} has no model: {named}" + (f"; and {more} more" if more > 0 else ""))

    def load_all(self) -> None:
        """Load the highest version of each model that loads.

        Raises:
            StartError: there is no model, or none can be loaded.
        """
        self.open()
        self.refresh()
        self.check_any()

    def check_any(self) -> None:
        """Check that at least one model can be served.

        Raises:
            StartError: no model can be loaded.
        """
        if not self.current():
            broken = self.broken().items()
            faults = [f"{name}/{v}: {why}" if v else why for name, found in broken for v, why in found.items()]
            root = self._disk.repository.root
            raise StartError(f"no model in {root} can be loaded: {'; '.join(faults)}")

    def close(self) -> None:
        """Stop loading: requests that wait for a load fail, and a running load is not waited for."""
        self._entries.closed = True
        self._loads.close()
        self._refresher.shutdown(wait=False, cancel_futures=True)

    # Reading the entries.

    def names(self) -> list[str]:
        """Return the names of all models, served or broken."""
        return sorted(self._entries.table)

    def current(self) -> list[Key]:
        """Return (name, version) of each model's current version."""
        return self._entries.current()

    def loaded(self) -> list[ModelVersion]:
        """Return every version that can be leased without loading it."""
        return self._entries.loaded()

    def broken(self) -> dict[str, dict[int, str]]:
        """Return name -> version -> why it cannot be loaded; version 0 means a folder that cannot be read."""
        entries = self._entries.table.items()
        return {name: {v: fault.reason for v, fault in entry.broken.items()} for name, entry in entries if entry.broken}

    def pending(self) -> list[str]:
        """Return the names of models without an answering version yet, but with an untried one."""
        return [name for name, entry in sorted(self._entries.table.items()) if entry.pending]

    def passed_over(self) -> dict[str, Any]:
        """Return the members of ``GET /v1/models`` about entries of the repository that are not models."""
        return self._disk.summary()

    def summary(self, name: str) -> dict[str, Any]:
        """Return the line of ``GET /v1/models`` about a model of `names`."""
        return self._entries.entry(name).summary()

    def describe(self, name: str) -> dict[str, Any]:
        """Return the response of ``GET /v1/models/{name}``.

        Raises:
            ProblemError: 404 for an unknown name.
        """
        return self._entries.known(name).describe()

    def check_ready(self, name: str, version: int | None = None) -> None:
        """Check that a model could be leased, even if no version of it has been loaded yet.

        Raises:
            ProblemError: 404 or 503.
        """
        entry, model = self._entries.find(name, version)
        if model is None and entry.pending:
            raise entry.absent(None, self._clock())

    # Leases.

    def lease(self, name: str, version: int | None = None, deadline: float = math.inf) -> Lease:
        """Return a lease to be filled: by ``await lease.acquire()``, ``async with`` or, blocking, ``with``.

        If no version is given and the current one can no longer be loaded, the next lower one is leased.

        Args:
            name: name of the model.
            version: its version; None for the current one.
            deadline: end of the wait for loading, in `time.monotonic`.
        """
        return Lease(self, name, version, deadline)

    def fill(self, lease: Lease) -> bool:
        """Fill a lease with a version in memory; False if it must be loaded first.

        Raises:
            ProblemError: 404 for an unknown name or version, 503 for one that cannot be loaded.
        """
        entry, model = self._entries.find(lease.name, lease.version)
        return model is not None and self._give(lease, entry, model)

    def load(self, lease: Lease) -> None:
        """Fill a lease, loading the version first; this blocks, so do not call it on the event loop.

        Raises:
            ProblemError: as in `fill`; 429 if the maximum number of old versions is in use.
        """
        loaded = self._loads.run(lease.name, partial(self._loaded, lease.name, lease.version)).result()
        self._give(lease, self._entries.entry(lease.name), loaded.model)
        loaded.release()

    async def load_async(self, lease: Lease) -> None:
        """Like `load`, but in the loading thread, once for all requests that wait for the same version.

        Raises:
            ProblemError: as in `load`; 429 if too many loads are pending; 504 at the lease's deadline.
        """
        name, version = lease.name, lease.version
        late = f"model {name!r} was still loading when timeout_s ended; try again, or raise timeout_s"

        def load() -> Lease:
            return self._loaded(name, version)

        def then(loaded: Lease) -> None:
            self._give(lease, self._entries.entry(name), loaded.model)

        await self._loads.once((name, version), load, then, lease.deadline, late)

    async def ready(self, model: ModelVersion, operation: Operation, deadline: float, sizes: Sizes = ()) -> bool:
        """Prepare an operation of a leased version, once for all waiting requests; usually it is ready already.

        Args:
            model: the version.
            operation: the operation to prepare.
            deadline: deadline of the request, in `time.monotonic`.
            sizes: sizes of the free axes.

        Returns:
            Whether its results are deterministic, including decoding.

        Raises:
            ProblemError: 422 for a network without derivatives, 500 if memory runs out, 429, 503, 504.
        """
        key = (model.name, model.version, operation, *((sizes,) if sizes else ()))
        if (arena := self._engine.prepared(*key)) is not None:
            return model.deterministic and arena.deterministic
        late = f"preparing model {model.name!r} for the first time took longer than timeout_s; try again, or raise it"

        def prepare() -> Lease:
            return self._prepare(model, operation, sizes)

        await self._loads.once(key, prepare, lambda _: None, deadline, late)
        arena = self._engine.prepared(*key)
        assert arena is not None  # noqa: S101  (prepared, and the caller's lease keeps it)
        return model.deterministic and arena.deterministic

    def _give(self, lease: Lease, entry: ModelEntry, model: ModelVersion) -> bool:
        """Fill a lease with a version that answers according to its entry."""
        better = entry.fallback_from
        if better is None or lease.version is not None or entry.current != model.version:
            return lease.take(model)
        if entry.name not in self._retried and entry.broken[better].again_at <= self._clock():
            self._try_better(entry.name)
        return lease.take(model, better)

    def _try_better(self, name: str) -> None:
        """If an older version answers, retry the better one in the background."""
        self._retried.add(name)
        refreshed = self._loads.run(name, partial(self._entries.refresh, name, Changes()))
        refreshed.add_done_callback(lambda _: self._retried.discard(name))

    # For the administrator and the watch.

    def unload(self, name: str) -> Future[list[int]]:
        """Free the memory of a model once its leases are back; the next lease loads it again.

        Returns:
            A future of the versions that were in memory, or of a `ProblemError` (404) for an unknown name.
        """
        return self._loads.run(name, partial(self._entries.unload, name))

    def reload(self) -> Future[Changes]:
        """Refresh in another thread, and retry failed versions."""
        return self._refresher.submit(self.refresh, retry_failed=True)

    def refresh(self, retry_failed: bool = False) -> Changes:
        """Bring the entries up to date with the disk: load new models and versions, unload removed ones.

        The highest version that can be loaded answers from then on. Versions are not meant to change: if the files of
        a loaded one do, the loaded version stays in use, and the change is reported.

        Args:
            retry_failed: also retry failed versions that have not changed since.

        Raises:
            RepositoryError: the repository cannot be read; nothing changes then.
        """
        changes = Changes()
        for name in self._wait(_ALL, partial(self._entries.scan, changes)) or ():
            try:
                self._wait(_ALL, partial(self._entries.refresh, name, changes, retry_failed))
            except Exception as error:  # a fault in one model must not keep the others from being refreshed
                _log.exception("refreshing model %s failed", name)
                message = f"{type(error).__name__}: {error}".splitlines()[0]
                self._wait(_ALL, partial(self._entries.refuse, name, UNREADABLE, message, changes, transient=True))
        self.complete = self.complete or not self._entries.closed
        return changes

    def _wait(self, name: str, call: Callable[[], T]) -> T | None:
        """Return the result of a call in the loading thread, or None while the registry closes."""
        try:
            return self._loads.run(name, call).result()
        except CancelledError:
            return None

    # In the thread that loads.

    def _loaded(self, name: str, version: int | None) -> Lease:
        """Return a lease of a version, loading it if needed. Errors as in `load`."""
        lease = self.lease(name, version)
        model = self._entries.load(name, version)
        lease.take(model)  # it is in the entries, and only this thread removes it
        return lease

    def _prepare(self, model: ModelVersion, operation: Operation, sizes: Sizes) -> Lease:
        """Prepare an operation of a version, leased meanwhile. Errors as in `ready`."""
        lease = self.lease(model.name, model.version)
        lease.take(model)
        with ExitStack() as failing:
            failing.callback(lease.release)
            try:
                self._engine.prepare(model.name, model.version, operation, *((sizes,) if sizes else ()))
            except Draining:
                raise shutting_down() from None
            except (MemoryError, torch.OutOfMemoryError) as error:
                message = str(error).partition("\n")[0]
                raise ProblemError(Kind.ENGINE, f"the engine failed on this request: {message}") from None
            except Exception as error:
                _log.exception(
                    "model %s version %d could not be prepared for %s", model.name, model.version, operation.name
                )
                message = f"{type(error).__name__}: {error}".partition("\n")[0]
                if operation is SAMPLE:
                    shape = ", ".join(f"{axis} = {size}" for axis, size in sizes)
                    raise invalid("shape", f"model {model.name!r} cannot be evaluated at {shape}: {message}") from None
                raise invalid(
                    "name", f"the network of model {model.name!r} has no derivative to use: {message}"
                ) from None
            failing.pop_all()
        return lease
