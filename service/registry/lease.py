"""Leases: a request holds one until its response is out, and a version leaves memory when its last one is back."""

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from models.checkpoint.card import CheckpointError
from models.repository import Signature
from service.errors import Kind, ProblemError

if TYPE_CHECKING:
    from service.registry.registry import Registry
    from service.registry.version import ModelVersion

_log = logging.getLogger("pathline")


class Leases:
    """The leases of one loaded version: any thread takes and returns them, the registry retires the version.

    The lock is held for a few instructions, never while something is loaded or freed.

    Attributes:
        out: number of leases not yet returned.
        used: time of the last request for it, by the registry's clock.
        pinned: whether it was requested by number, so that a newer version does not replace it.
        freed: whether the version has been freed.
    """

    __slots__ = ("_free", "_lock", "_retired", "freed", "out", "pinned", "used")

    def __init__(self, free: Callable[[], None]) -> None:
        self._free, self._lock, self._retired = free, threading.Lock(), False
        self.out, self.used, self.pinned, self.freed = 0, 0.0, False, False

    def take(self, lease: "Lease") -> bool:
        """Count a lease; False if the version is gone, or the lease is already out."""
        with self._lock:
            if self.freed or lease.held:
                return False
            lease.held = True
            self.out += 1
            return True

    def give_back(self, lease: "Lease") -> None:
        """Stop counting a lease, once; the last one back frees a retired version."""
        with self._lock:
            if not lease.held:
                return
            lease.held = False
            self.out -= 1
            last = self._ends()
        if last:
            self._free()

    def retire(self, if_idle: bool = False) -> bool:
        """Free the version now, or when the last lease is back; with `if_idle`, return False while leases are out."""
        with self._lock:
            if if_idle and self.out:
                return False
            self._retired, self.pinned = True, False
            last = self._ends()
        if last:
            self._free()
        return True

    def restore(self) -> bool:
        """Undo `retire`; False if the version is gone."""
        with self._lock:
            self._retired = False
            return not self.freed

    def _ends(self) -> bool:
        ends = self._retired and not self.out and not self.freed
        self.freed = self.freed or ends
        return ends


class Lease:
    """The right to use one loaded version until it is returned.

    `Registry.lease` makes it empty; `acquire` or ``async with`` fill it. `release` returns it; further calls
    do nothing. A lease dropped without being returned is logged, and its version stays in memory, so that unloading
    never depends on garbage collection.

    Attributes:
        name, version: the requested model and version; None for the current one.
        deadline: end of the wait for loading, in `time.monotonic`.
        model: the leased version.
        fallback_from: the version that should have answered but cannot be loaded; usually None.
        held: whether it holds a version.
    """

    __slots__ = ("_registry", "deadline", "fallback_from", "held", "model", "name", "version")
    model: "ModelVersion"

    def __init__(self, registry: "Registry", name: str, version: int | None, deadline: float = math.inf) -> None:
        self._registry, self.name, self.version, self.deadline = registry, name, version, deadline
        self.fallback_from: int | None = None
        self.held = False

    async def acquire(self) -> "ModelVersion":
        """Fill the lease, loading the version off the event loop if needed.

        If no version was requested and the current one can no longer be loaded, the next lower one is leased.

        Raises:
            ProblemError: 404 for an unknown name or version, 503 for one that cannot be loaded, 429 if too many loads
                are pending or too many old versions in use, 504 at the deadline.
        """
        if not self._registry.fill(self):
            await self._registry.load(self)
        return self.model

    def take(self, model: "ModelVersion", fallback_from: int | None = None) -> bool:
        """Hold a version; False if it is already unloaded."""
        if not model.leases.take(self):
            return False
        self.model, self.fallback_from = model, fallback_from
        return True

    def release(self) -> None:
        """Return the lease, from any thread."""
        if self.held:
            self.model.leases.give_back(self)

    async def __aenter__(self) -> "ModelVersion":
        return await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self.held:
            message = "a lease of model %s version %d was dropped without being returned; the version stays in memory"
            _log.error(message, self.model.name, self.model.version)


class Memory:
    """All versions with memory not yet freed, those unloaded while leases are out included; for the loading thread."""

    def __init__(self, max_bytes: int, max_old: int) -> None:
        """Start empty, with maximum bytes of all weights (0 for no limit) and number of versions not current."""
        self._max_bytes, self._max_old = max_bytes, max_old
        self._versions: list[ModelVersion] = []

    def add(self, model: "ModelVersion") -> None:
        """Add a loaded version, or its new description, which has the same leases."""
        others = (other for other in self._versions if not other.leases.freed and other.leases is not model.leases)
        self._versions = [*others, model]

    def restored(self, name: str, version: int, signature: Signature) -> "ModelVersion | None":
        """Return a version that was unloaded with leases out and need not be loaded again."""
        for model in self._versions:
            if (model.name, model.version, model.signature) == (name, version, signature) and model.leases.restore():
                return model
        return None

    def make_room(
        self,
        label: str,
        needed: int,
        loaded: Iterable["ModelVersion"],
        unload: Callable[["ModelVersion"], None],
    ) -> None:
        """Unload the least recently used of the `loaded` versions, just enough for another.

        Raises:
            CheckpointError: it would not fit even alone.
        """
        if not self._max_bytes:
            return
        if needed > self._max_bytes:
            raise CheckpointError(
                f"{label}: its weights take {needed} bytes, over PATHLINE_MAX_MODEL_BYTES={self._max_bytes}; raise it"
            )
        models = sorted(loaded, key=lambda model: model.leases.used)
        excess = sum(model.bytes for model in models) + needed - self._max_bytes
        for model in models:
            if excess <= 0:
                return
            unload(model)
            excess -= model.bytes

    def make_room_among_old(
        self, current: Collection[tuple[str, int]], unload: Callable[["ModelVersion"], None]
    ) -> None:
        """Unload versions that are neither `current` nor leased, until one more may be loaded.

        Raises:
            ProblemError: 429; all of them are leased.
        """
        old = [m for m in self._versions if not m.leases.freed and (m.name, m.version) not in current]
        count = len(old)
        for model in sorted(old, key=lambda model: model.leases.used):
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
