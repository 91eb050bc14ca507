"""The models the service answers with: the repository as it is now, and which versions of it are in memory.

`refresh` brings the tables up to what is on disk; it is called when the service starts, by `service.registry.watch`
and by ``POST /v1/models:reload``. A version that is replaced or unloaded leaves the tables at once, and the device when
the last request that holds it is answered: `Served` is let go by whoever uses it, and the engine is told then.

One thread changes the tables and loads, one version after another. A refresh gives it one model at a time, so that what
a request asks for waits for no more than the load that runs. Nothing here takes a thread in which answers are encoded.
"""

import logging
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar

from models.checkpoint.loading import CheckpointError, UnreadableCheckpoint
from models.repository import Repository, RepositoryError, Signature, UnknownModel
from service.errors import Kind, ProblemError
from service.ports import Engine
from service.registry.loading import load_version
from service.registry.memory import give_way
from service.registry.served import Served
from service.registry.shelf import Changes, Shelf
from service.registry.stock import UNREADABLE, Stock
from service.settings import StartError

_log = logging.getLogger("pathline")

Key = tuple[str, int]
P = ParamSpec("P")
T = TypeVar("T")

_MOST_NAMED = 5
"""Things that are named where there is nothing to serve."""


class Models(Shelf):
    """All models of a repository. A version that cannot be loaded keeps its reason and stops nobody else.

    Attributes:
        complete: whether every model was tried once, so that what is not served then has a reason.
        load_s: seconds that a load took, about.
    """

    def __init__(
        self,
        root: Path,
        engine: Engine,
        max_bytes: int = 0,
        notify: Callable[[str, int, bool], None] = lambda name, version, loaded: None,
        allow_programs: bool = False,
        max_old: int = 8,
        notify_fallback: Callable[[str, bool], None] = lambda name, falls_back: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Look whether there is a repository.

        Args:
            root: the repository.
            engine: what solves.
            max_bytes: bytes of weights in memory; beyond it the least recently used are unloaded. 0 for any number.
            notify: told (name, version, whether it is loaded now) of each change.
            allow_programs: whether imported programs are served.
            max_old: versions in memory that only answer where they are asked for by number; beyond it the least
                recently used give way.
            notify_fallback: see `Shelf`.
            clock: seconds, of `time.monotonic` or of a test.

        Raises:
            StartError: the repository is missing or cannot be read.
        """
        super().__init__(notify, notify_fallback, clock)
        self._engine, self._max_bytes, self._allow_programs, self._max_old = engine, max_bytes, allow_programs, max_old
        self._alive: weakref.WeakValueDictionary[Key, Served] = weakref.WeakValueDictionary()
        self._loading = ThreadPoolExecutor(1, "pathline-loading")
        self._looking = ThreadPoolExecutor(1, "pathline-looking")
        self._looked_for: set[str] = set()
        self._closed = self.complete = False
        self.load_s = 1.0
        try:
            self._repository = Repository(root)
            self._repository.names()
        except RepositoryError as error:
            raise StartError(f"{error}; set PATHLINE_MODELS_DIR or run `make models`") from None

    # For those who start and stop.

    def open(self) -> None:
        """Learn what there is, loading nothing yet.

        Raises:
            StartError: there is no model.
        """
        self.run(self._scan, Changes()).result()
        if self._stock:
            return
        what = f"the model repository {self._repository.root}"
        if not self._passed_over:
            raise StartError(f"{what} is empty; run `make models`, or set PATHLINE_MODELS_DIR")
        named = "; ".join(f"{path}: {reason}" for path, reason in self._passed_over[:_MOST_NAMED])
        more = len(self._passed_over) - _MOST_NAMED
        raise StartError(f"{what} has no model: {named}" + (f"; and {more} more" if more > 0 else ""))

    def load_all(self) -> None:
        """Load the highest version of each model that loads.

        Raises:
            StartError: There is no model, or none can be loaded.
        """
        self.open()
        self.refresh()
        self.check_any()

    def check_any(self) -> None:
        """See whether there is anything to serve.

        Raises:
            StartError: no model can be loaded.
        """
        if not self.current():
            broken = self.broken().items()
            faults = [f"{name}/{v}: {why}" if v else why for name, found in broken for v, why in found.items()]
            raise StartError(f"no model of {self._repository.root} can be loaded: {'; '.join(faults)}")

    def close(self) -> None:
        """Load nothing more; who waits for a load is told, and one that runs is not waited for."""
        self._closed = True
        for pool in (self._looking, self._loading):
            pool.shutdown(wait=False, cancel_futures=True)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call something in the thread that loads, after what is waiting there already."""
        try:
            return self._loading.submit(function, *args, **kwargs)
        except RuntimeError:  # it was shut down
            cancelled: Future[T] = Future()
            cancelled.cancel()
            return cancelled

    # For requests.

    def find(self, name: str, version: int | None = None) -> Served:
        """Return a version like `get`, loading it where needed; this takes time, so not on the event loop.

        Where none is asked for and the one that answered cannot be loaded any more, the next lower one is.

        Raises:
            ProblemError: As `get`; 429 where as many old versions as may be are in use.
        """
        return self.run(self.find_now, name, version).result()

    def look_soon(self, name: str) -> None:
        """Where an older version answers, try the better one again beside the requests if the time has come."""
        stock = self._stock.get(name)
        better = None if stock is None else stock.fallback_from
        if stock is None or better is None or name in self._looked_for or stock.broken[better].again_at > self._clock():
            return
        self._looked_for.add(name)
        self.run(self._refresh, name, Changes()).add_done_callback(lambda _: self._looked_for.discard(name))

    # For the administrator and the watch.

    def unload(self, name: str) -> list[int]:
        """Free the memory of a model; the next request for it loads it again.

        Returns:
            The versions that were in memory.

        Raises:
            ProblemError: 404 for an unknown name.
        """
        return self.run(self.unload_now, name).result()

    def unload_now(self, name: str) -> list[int]:
        """Do what `unload` does, in the thread that loads."""
        versions = sorted(self._known(name).served)
        for version in versions:
            self._unload(name, version, Changes())
        return versions

    def reload(self) -> Future[Changes]:
        """Refresh in a thread of its own, trying also what has failed."""
        return self._looking.submit(self.refresh, anew=True)

    def refresh(self, anew: bool = False) -> Changes:
        """Bring the tables up to what is on disk: new models and versions are loaded, removed ones are let go.

        The highest version that can be loaded answers from then on. Versions are not meant to change: if the files of
        a loaded one do, what was loaded goes on, and the change is told.

        Args:
            anew: try also what failed and has not changed since.

        Raises:
            RepositoryError: the repository cannot be read; all goes on as before.
        """
        changes = Changes()
        for name in self._wait(self.run(self._scan, changes)) or ():
            try:
                self._wait(self.run(self._refresh, name, changes, anew))
            except Exception as error:  # of one model, which must not keep the others from being looked at
                _log.exception("looking at model %s failed", name)
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                self._wait(self.run(self._refuse, name, UNREADABLE, said, None, changes, transient=True))
        self.complete = self.complete or not self._closed
        return changes

    @staticmethod
    def _wait(future: Future[T]) -> T | None:
        """Return a result, or None where all is being closed."""
        try:
            return future.result()
        except CancelledError:
            return None

    # In the thread that loads.

    def _scan(self, changes: Changes) -> list[str]:
        """See which models there are, so that their names are known before the first is loaded."""
        found = self._repository.names()
        odd = self._repository.passed_over()
        self._tell_passed_over([(self._repository.within(path), reason) for path, reason in odd])
        for name in [name for name in self._stock if name not in found]:
            self._put(name, self._stock[name].on_disk(()), changes)
        for name in found:
            if name not in self._stock:
                self._read_versions(name, changes)
        return found

    def _read_versions(self, name: str, changes: Changes) -> tuple[int, ...] | None:
        """Bring the versions of a model up to date; the one that answers stays until another does in its place."""
        stock = self._stock.get(name, Stock(name))
        try:
            versions = tuple(sorted(self._repository.versions(name)))
        except UnknownModel:
            versions = ()
        except RepositoryError as error:
            self._refuse(name, UNREADABLE, str(error), None, changes, transient=True)
            return None
        stays = stock.current if versions and stock.current in stock.served else None
        self._put(name, stock.on_disk(versions, stays), changes)
        return versions

    def _refresh(self, name: str, changes: Changes, anew: bool = False, load: bool = False) -> None:
        """Bring one model up to date; with `load` what answers is in memory afterwards."""
        versions = () if self._closed else self._read_versions(name, changes)
        if not versions:
            return
        for version in versions:
            self._compare(name, version, changes, anew)
        before = self._stock[name].current
        current = next((version for version in reversed(versions) if self._answers(name, version, changes, load)), None)
        self._put(name, replace(self._stock[name], current=current).on_disk(versions), changes)
        if before in versions and before != current and (name, before) not in self._pinned:
            self._unload(name, before, changes)

    def _answers(self, name: str, version: int, changes: Changes, load: bool) -> bool:
        """Whether a version is in memory, or can be: it is tried, unless it was and is only not needed now."""
        stock = self._stock[name]
        if version in stock.served:
            return True
        fault = stock.broken.get(version)
        if fault is not None and not (fault.transient and fault.again_at <= self._clock()):
            return False
        if version == stock.current and fault is None and not load:
            return True
        return self._try(name, version, changes)

    def _compare(self, name: str, version: int, changes: Changes, anew: bool) -> None:
        """See whether the files of a version that was tried are still the same."""
        stock = self._stock[name]
        fault, tried = stock.broken.get(version), stock.signatures.get(version)
        if version not in stock.served and fault is not None and anew:
            self._put(name, stock.forgotten(version), changes)
            return
        if tried is None:
            return
        try:
            same = self._repository.signature(name, version) == tried
        except (RepositoryError, LookupError) as error:
            if version in stock.served:
                self._refuse(name, version, f"{error}; what was loaded is served on", None, changes)
            return
        if version in stock.served and not same:
            reason = f"{name}/{version}: was changed after it was loaded; what was loaded is served on"
            self._refuse(name, version, f"{reason}; put changes into a new version, or restart", None, changes)
        elif version in stock.served:
            self._put(name, stock.forgiven(version), changes)
        elif not same:
            self._put(name, stock.forgotten(version), changes)
        elif fault is not None and not fault.transient:  # looked at now; not again at once
            self._refuse(name, version, fault.reason, None, changes)

    def find_now(self, name: str, version: int | None) -> Served:
        """Do what `find` does, in the thread that loads."""
        served = self.get(name, version)
        if served is not None:
            return served
        changes = Changes()
        self._refresh(name, changes, load=version is None)
        if version is not None and self._can_load(name, version):
            self._try(name, version, changes, by_number=(name, version) not in self.current())
        stock, now = self._known(name), self._clock()
        wanted = stock.current if version is None else version
        served = None if wanted is None else stock.served.get(wanted)
        if served is None:
            raise stock.absent(version, now)
        return served

    def _can_load(self, name: str, version: int) -> bool:
        stock = self._known(name)
        return version in stock.versions and stock.can_load(version, self._clock())

    def _try(self, name: str, version: int, changes: Changes, by_number: bool = False) -> bool:
        """Load a version, for a request that names it or for all; whether that went well.

        Only what is wrong with the files themselves is kept until they change. All else (disk, rights, memory, the
        engine) may pass, and is tried again.
        """
        signature: Signature | None = None
        transient = True
        try:
            signature = self._repository.signature(name, version)
            served = self._in_use(name, version, signature) or self._load(name, version, changes, by_number)
        except ProblemError:  # no room for it now, which says nothing of it
            raise
        except (UnreadableCheckpoint, RepositoryError, LookupError) as error:
            said = str(error)
        except CheckpointError as error:
            said, transient = str(error), False
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            if not self._closed and not isinstance(error, OSError | MemoryError):
                _log.exception("loading model %s version %d failed", name, version)
        else:
            self._add(served, signature, changes)
            return True
        if not self._closed:
            self._refuse(name, version, said, signature, changes, transient)
        return False

    def _load(self, name: str, version: int, changes: Changes, by_number: bool) -> Served:
        begun = self._clock()
        folder = self._repository.resolve(name, version)
        if by_number:
            self._make_room_among_old(changes)
        self._make_room(name, version, self._repository.weight_bytes(name, version), changes)
        served = load_version(self._engine, name, version, folder, self._allow_programs)
        self._alive[name, version] = served
        self.load_s += (self._clock() - begun - self.load_s) / 4
        return served

    def _in_use(self, name: str, version: int, signature: Signature) -> Served | None:
        """Return a version that was unloaded while requests hold it, which need not be loaded again."""
        served = self._alive.get((name, version))
        return served if self._stock[name].signatures.get(version) == signature else None

    def _make_room(self, name: str, version: int, needed: int, changes: Changes) -> None:
        if 0 < self._max_bytes < needed:
            raise CheckpointError(
                f"{name}/{version}: its weights take {needed} bytes, over PATHLINE_MAX_MODEL_BYTES={self._max_bytes}"
            )
        sizes = {(served.name, served.version): served.bytes for served in self.served()}
        for other in give_way(sizes, self._used, needed, self._max_bytes):
            self._unload(*other, changes)

    def _make_room_among_old(self, changes: Changes) -> None:
        """Unload old versions that no request holds until one more may be loaded.

        Raises:
            ProblemError: 429; requests hold all of them.
        """
        current = set(self.current())
        old = [key for key in list(self._alive) if key not in current]
        count = len(old)
        for key in sorted(old, key=lambda each: self._used.get(each, 0.0)):
            if count < self._max_old:
                return
            count -= self._unload_idle(*key, changes)
        if count >= self._max_old:
            raise ProblemError(
                Kind.OVERLOADED,
                f"{count} older versions are in use, the limit is {self._max_old} (PATHLINE_MAX_OLD_VERSIONS); leave "
                "version out, or try again in a second",
                headers={"Retry-After": "1"},
                retry_after_s=1,
            )

    def _unload_idle(self, name: str, version: int, changes: Changes) -> bool:
        """Unload a version unless requests hold it: it is taken from the tables, and put back if it is still there.

        No caller may hold its `Stock`, which holds what is in memory.
        """
        if name not in self._stock or version not in self._stock[name].served:
            return False  # it was unloaded, and goes when the last request lets it go
        without = self._stock[name].unloaded(version)
        self._stock = {**self._stock, name: without}
        held = self._alive.get((name, version))
        if held is None:
            self._tell_unloaded(name, version, changes)
            return True
        self._stock = {**self._stock, name: replace(without, served={**without.served, version: held})}
        return False

    def _unload(self, name: str, version: int, changes: Changes) -> None:
        self._put(name, self._stock[name].unloaded(version), changes)

    def _refuse(
        self,
        name: str,
        version: int,
        reason: str,
        signature: Signature | None,
        changes: Changes,
        transient: bool = False,
    ) -> None:
        """Keep a reason without where the repository lies, which clients need not know."""
        super()._refuse(name, version, reason.replace(f"{self._repository.root}/", ""), signature, changes, transient)
