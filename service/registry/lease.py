"""Leases: a request holds one until its response is out, and a version leaves memory when its last one is back."""

import logging
from collections.abc import Callable, Collection
from typing import Self

from models.checkpoint.card import CheckpointError
from models.repository import Signature
from service.errors import Kind, ProblemError
from service.registry.version import Leases, ModelVersion

_log = logging.getLogger("pathline")


class Lease:
    """The right to use one loaded version until it is returned, by `release` or at the end of a ``with`` block.

    A lease dropped without being returned is logged, and its version stays in memory, so that unloading never depends
    on garbage collection.

    Attributes:
        model: the leased version.
        fallback_from: the version that should have answered but cannot be loaded; usually None.
    """

    __slots__ = ("_out", "fallback_from", "model")

    def __init__(self, model: ModelVersion, fallback_from: int | None = None) -> None:
        """Take over a lease that `Leases.take` has counted."""
        self.model, self.fallback_from = model, fallback_from
        self._out: list[Leases] = [model.leases]  # `pop` takes it once, whichever threads release it

    @classmethod
    def of(cls, model: ModelVersion, fallback_from: int | None = None) -> Self | None:
        """Return a lease of a version; None if it is already freed."""
        return cls(model, fallback_from) if model.leases.take() else None

    def release(self) -> None:
        """Return the lease, from any thread; further calls do nothing."""
        try:
            leases = self._out.pop()
        except IndexError:
            return
        leases.give_back()

    def __enter__(self) -> ModelVersion:
        return self.model

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self._out:
            message = "a lease of model %s version %d was dropped without being returned; the version stays in memory"
            _log.error(message, self.model.name, self.model.version)


class Memory:
    """All versions with memory not yet freed, those unloaded while leases are out included; for the loading thread."""

    def __init__(self, max_bytes: int, max_old: int, unload: Callable[[ModelVersion], None]) -> None:
        """Start empty, with maximum bytes of all weights (0 for no limit) and number of versions not current."""
        self._max_bytes, self._max_old, self._unload = max_bytes, max_old, unload
        self._versions: list[ModelVersion] = []

    def add(self, model: ModelVersion) -> None:
        """Add a loaded version, or its new description, which has the same leases."""
        self._versions = [*(other for other in self._by_use() if other.leases is not model.leases), model]

    def restored(self, name: str, version: int, signature: Signature) -> ModelVersion | None:
        """Return a version that was unloaded with leases out and need not be loaded again."""
        for model in self._versions:
            if (model.name, model.version, model.signature) == (name, version, signature) and model.leases.restore():
                return model
        return None

    def make_room(self, label: str, needed: int) -> None:
        """Unload the least recently used versions, just enough for another.

        Raises:
            CheckpointError: it would not fit even alone.
        """
        if not self._max_bytes:
            return
        if needed > self._max_bytes:
            raise CheckpointError(
                f"{label}: its weights take {needed} bytes, over PATHLINE_MAX_MODEL_BYTES={self._max_bytes}; raise it"
            )
        models = [model for model in self._by_use() if not model.leases.retired]
        excess = sum(model.bytes for model in models) + needed - self._max_bytes
        for model in models:
            if excess <= 0:
                return
            self._unload(model)
            excess -= model.bytes

    def make_room_among_old(self, current: Collection[tuple[str, int]]) -> None:
        """Unload versions that are neither `current` nor leased, until one more may be loaded.

        Raises:
            ProblemError: 429; all of them are leased.
        """
        old = [model for model in self._by_use() if (model.name, model.version) not in current]
        count = len(old)
        for model in old:
            if count < self._max_old:
                return
            if model.leases.retire(if_idle=True):
                self._unload(model)
                count -= 1
        if count >= self._max_old:
            raise ProblemError(
                Kind.OVERLOADED,
                f"{count} older versions are in use, the limit is {self._max_old} (PATHLINE_MAX_OLD_VERSIONS); leave "
                "version out, or try again in a second",
                retry_after_s=1,
            )

    def _by_use(self) -> list[ModelVersion]:
        """The versions in memory, the least recently used first."""
        return sorted((m for m in self._versions if not m.leases.freed), key=lambda model: model.leases.used)
