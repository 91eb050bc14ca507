"""The models the service answers with: loaded from the repository, each version with its state or its fault."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from models.checkpoint import CheckpointError, load
from models.repository import Repository, RepositoryError
from service.errors import Kind, ProblemError
from service.ports import Engine
from service.served import Served
from service.settings import StartError

_UNKNOWN = 0  # in place of a version where a model's folder cannot be read; versions begin at 1

_log = logging.getLogger("pathline")


class Models:
    """All models of a repository. A version that cannot be loaded keeps its reason and stops nobody else."""

    def __init__(self, root: Path, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._served: dict[str, dict[int, Served]] = {}
        self._broken: dict[str, dict[int, str]] = {}
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
        names = self._repository.names()
        if not names:
            raise StartError(
                f"the model repository {self._repository.root} is empty; run `make models`, or set PATHLINE_MODELS_DIR"
            )
        for name in names:
            self._load_highest(name)
        if not self._served:
            faults = [
                f"{name}/{v}: {why}" if v else why for name, found in self._broken.items() for v, why in found.items()
            ]
            raise StartError(f"no model of {self._repository.root} can be loaded: {'; '.join(faults)}")

    def names(self) -> list[str]:
        """Return the names of all models, served or broken."""
        return sorted(self._served.keys() | self._broken.keys())

    def served(self) -> list[Served]:
        """Return every loaded version."""
        return [version for versions in self._served.values() for version in versions.values()]

    def broken(self) -> dict[str, dict[int, str]]:
        """Return name -> version -> why it cannot be loaded; version 0 is a model whose folder cannot be read."""
        return self._broken

    def get(self, name: str, version: int | None = None) -> Served:
        """Return a version that is loaded; the highest one for None.

        Raises:
            ProblemError: 404 for a name or version there is not, 503 for one that cannot be loaded.
        """
        versions = self._served.get(name, {})
        if version is None and versions:
            return versions[max(versions)]
        if version in versions:
            return versions[version]
        raise self._absent(name, version)

    def find(self, name: str, version: int | None = None) -> Served:
        """Return a version like `get`, loading an older one on first use; this takes time, so not on the event loop.

        Raises:
            ProblemError: As `get`.
        """
        with self._lock:
            known = version in self._served.get(name, {}) or version in self._broken.get(name, {})
            if version is not None and not known and version in self._versions(name):
                self._try(name, version)
        return self.get(name, version)

    def current(self) -> list[Served]:
        """Return the version of each model that answers where none is asked for."""
        return [versions[max(versions)] for versions in self._served.values()]

    def summary(self, name: str) -> dict[str, Any]:
        """Return the line of ``GET /v1/models`` about a model of `names`."""
        versions = self._served.get(name)
        if not versions:
            nothing = dict.fromkeys(("version", "dtype", "event_shape", "data_shape", "deterministic"))
            return {"name": name, "status": "unavailable", **nothing}
        return {"name": name, "status": "served", **versions[max(versions)].summary()}

    def describe(self, name: str) -> dict[str, Any]:
        """Return what ``GET /v1/models/{name}`` answers.

        Raises:
            ProblemError: 404 for an unknown name.
        """
        if name not in self.names():
            raise self._absent(name, None)
        served, broken = self._served.get(name, {}), self._broken.get(name, {})
        return {
            "name": name,
            "status": "served" if served else "unavailable",
            "serving": max(served) if served else None,
            "versions": self._versions(name),
            "served": [served[version].describe() for version in sorted(served, reverse=True)],
            "unavailable": [{"version": v or None, "reason": broken[v]} for v in sorted(broken, reverse=True)],
        }

    def _versions(self, name: str) -> Sequence[int]:
        try:
            return sorted(self._repository.versions(name))
        except (LookupError, RepositoryError):
            return sorted(self._served.get(name, {}))

    def _load_highest(self, name: str) -> None:
        """Load versions from the highest down until one works, so that a bad upload does not take a model away."""
        try:
            versions = sorted(self._repository.versions(name), reverse=True)
        except RepositoryError as error:
            self._refuse(name, _UNKNOWN, str(error))
            return
        except LookupError as error:
            _log.error("model %s is not served: %s", name, error)
            return
        for version in versions:
            if self._try(name, version):
                return

    def _try(self, name: str, version: int) -> bool:
        try:
            checkpoint = load(self._repository.resolve(name, version), self._engine.device)
            loaded = self._engine.load(name, version, checkpoint)
            served = Served.of(name, version, checkpoint, loaded.deterministic)
        except (CheckpointError, RepositoryError, LookupError) as error:
            return self._refuse(name, version, str(error))
        except Exception as error:
            _log.exception("loading model %s version %d failed", name, version)
            return self._refuse(name, version, f"{type(error).__name__}: {error}".splitlines()[0])
        # The tables are replaced, never changed: readers on the event loop take no lock.
        self._served = {**self._served, name: {**self._served.get(name, {}), version: served}}
        return True

    def _refuse(self, name: str, version: int, reason: str) -> bool:
        _log.error("model %s version %d is not served: %s", name, version, reason)
        reason = reason.replace(f"{self._repository.root}/", "")  # clients need not know where it lies
        self._broken = {**self._broken, name: {**self._broken.get(name, {}), version: reason}}
        return False

    def _absent(self, name: str, version: int | None) -> ProblemError:
        if name not in self.names():
            listed = ", ".join(self.names())
            return ProblemError(
                Kind.UNKNOWN_MODEL, f"model {name!r} is unknown; available: {listed}", available=self.names()
            )
        faults = self._broken.get(name, {})
        if version is None or version in faults:
            at = max(faults) if version is None else version
            which = f"model {name!r}" + (f" version {at}" if at else "")
            return ProblemError(Kind.BROKEN_MODEL, f"{which} cannot be served: {faults[at]}")
        there = list(self._versions(name))
        return ProblemError(
            Kind.UNKNOWN_VERSION,
            f"model {name!r} has no version {version}; available: {', '.join(map(str, there))}",
            available=there,
        )
