"""The models the service answers with: the repository as it is now, and which versions of it are in memory.

`refresh` brings the tables up to what is on disk; it is called when the service starts, by `service.watch` and by
``POST /v1/models:reload``. A version that is replaced or unloaded leaves the tables at once, and the device when the
last request that holds it is answered: `Served` is let go by whoever uses it, and the engine is told then.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from models.checkpoint import CheckpointError
from models.repository import Repository, RepositoryError, Signature, UnknownModel
from service.loading import load_version
from service.memory import give_way
from service.ports import Engine
from service.served import Served
from service.settings import StartError
from service.shelf import Changes, Shelf
from service.stock import UNREADABLE, Stock

_log = logging.getLogger("pathline")


class Models(Shelf):
    """All models of a repository. A version that cannot be loaded keeps its reason and stops nobody else."""

    def __init__(
        self,
        root: Path,
        engine: Engine,
        max_bytes: int = 0,
        notify: Callable[[str, int, bool], None] = lambda name, version, loaded: None,
        allow_programs: bool = False,
    ) -> None:
        """Look whether there is a repository.

        Args:
            root: the repository.
            engine: what solves.
            max_bytes: bytes of weights in memory; beyond it the least recently used are unloaded. 0 for any number.
            allow_programs: whether imported programs are served.
            notify: told (name, version, whether it is loaded now) of each change.

        Raises:
            StartError: the repository is missing or cannot be read.
        """
        super().__init__(notify)
        self._engine, self._max_bytes, self._allow_programs = engine, max_bytes, allow_programs
        self._lock = threading.RLock()
        try:
            self._repository = Repository(root)
            self._repository.names()
        except RepositoryError as error:
            raise StartError(f"{error}; set PATHLINE_MODELS_DIR or run `make models`") from None

    def load_all(self) -> None:
        """Load the highest version of each model that loads.

        Raises:
            StartError: There is no model, or none can be loaded.
        """
        self.refresh()
        if not self._stock:
            raise StartError(
                f"the model repository {self._repository.root} is empty; run `make models`, or set PATHLINE_MODELS_DIR"
            )
        if not self.current():
            broken = self.broken().items()
            faults = [f"{name}/{v}: {why}" if v else why for name, found in broken for v, why in found.items()]
            raise StartError(f"no model of {self._repository.root} can be loaded: {'; '.join(faults)}")

    def find(self, name: str, version: int | None = None) -> Served:
        """Return a version like `get`, loading it where needed; this takes time, so not on the event loop.

        Raises:
            ProblemError: As `get`.
        """
        with self._lock:
            served = self.get(name, version)
            if served is None:
                stock = self._stock[name]
                self._try(name, (stock.current or 0) if version is None else version, Changes())
                served = self.get(name, version)
            if served is None:
                raise self._stock[name].absent(version)
            return served

    def unload(self, name: str) -> list[int]:
        """Free the memory of a model; the next request for it loads it again.

        Returns:
            The versions that were in memory.

        Raises:
            ProblemError: 404 for an unknown name.
        """
        with self._lock:
            versions = sorted(self._known(name).served)
            for version in versions:
                self._unload(name, version, Changes())
            return versions

    def refresh(self) -> Changes:
        """Bring the tables up to what is on disk: new models and versions are loaded, removed ones are let go.

        The highest version that can be loaded answers from then on. Versions are not meant to change: if the files of
        a loaded one do, what was loaded goes on, and the change is told.

        Raises:
            RepositoryError: the repository cannot be read; all goes on as before.
        """
        with self._lock:
            changes = Changes()
            found = self._repository.names()
            for name in [name for name in self._stock if name not in found]:
                self._put(name, self._stock[name].on_disk(()), changes)
            for name in found:
                self._refresh(name, changes)
            return changes

    def _refresh(self, name: str, changes: Changes) -> None:
        stock = self._stock.get(name, Stock(name))
        try:
            versions = tuple(sorted(self._repository.versions(name)))
        except RepositoryError as error:
            self._refuse(name, UNREADABLE, str(error), None, changes)
            return
        except UnknownModel:  # gone since the names were read; the next look sees it
            return
        self._put(name, stock.on_disk(versions), changes)
        for version in versions:
            self._compare(name, version, changes)
        before = self._stock[name].current
        for version in reversed(versions):
            stock = self._stock[name]
            if version in stock.broken and version not in stock.served:
                continue
            if version == before or version in stock.served or self._try(name, version, changes):
                self._put(name, replace(self._stock[name], current=version), changes)
                if before not in (None, version) and (name, before) not in self._pinned:
                    self._unload(name, before or 0, changes)
                return
        self._put(name, replace(self._stock[name], current=None), changes)

    def _compare(self, name: str, version: int, changes: Changes) -> None:
        """See whether the files of a version that was tried are still the same."""
        stock = self._stock[name]
        tried = stock.signatures.get(version)
        if tried is None:
            return
        same = self._repository.signature(name, version) == tried
        if version in stock.served and not same:
            reason = f"{name}/{version}: was changed after it was loaded; what was loaded is served on"
            self._refuse(name, version, f"{reason}; put changes into a new version, or restart", None, changes)
        elif version in stock.served:
            self._put(name, stock.forgiven(version), changes)
        elif not same:
            self._put(name, stock.forgotten(version), changes)

    def _try(self, name: str, version: int, changes: Changes) -> bool:
        """Load a version; whether that went well."""
        signature: Signature | None = None
        try:
            signature = self._repository.signature(name, version)
            folder = self._repository.resolve(name, version)
            self._make_room(name, version, self._repository.weight_bytes(name, version), changes)
            served = load_version(self._engine, name, version, folder, self._allow_programs)
        except (CheckpointError, RepositoryError, LookupError) as error:
            said = str(error)
        except Exception as error:
            _log.exception("loading model %s version %d failed", name, version)
            said = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            self._add(served, signature, changes)
            return True
        self._refuse(name, version, said, signature, changes)
        return False

    def _make_room(self, name: str, version: int, needed: int, changes: Changes) -> None:
        if 0 < self._max_bytes < needed:
            raise CheckpointError(
                f"{name}/{version}: its weights take {needed} bytes, over PATHLINE_MAX_MODEL_BYTES={self._max_bytes}"
            )
        sizes = {(served.name, served.version): served.bytes for served in self.served()}
        for other in give_way(sizes, self._used, needed, self._max_bytes):
            self._unload(*other, changes)

    def _unload(self, name: str, version: int, changes: Changes) -> None:
        self._put(name, self._stock[name].unloaded(version), changes)

    def _refuse(self, name: str, version: int, reason: str, signature: Signature | None, changes: Changes) -> None:
        """Keep a reason without where the repository lies, which clients need not know."""
        super()._refuse(name, version, reason.replace(f"{self._repository.root}/", ""), signature, changes)
