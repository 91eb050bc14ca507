"""Leases: a request holds one until its response is out, and a version leaves memory when its last one is back."""

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable

from models.checkpoint.card import CheckpointError
from models.repository import Signature
from service.errors import Kind, ProblemError
from service.registry.version import Leases, ModelVersion

_log = logging.getLogger("pathline")


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
    """

    __slots__ = ("_fill", "_load", "_out", "deadline", "fallback_from", "model", "name", "version")
    model: ModelVersion

    def __init__(
        self,
        fill: Callable[["Lease"], bool],
        load: Callable[["Lease"], Awaitable[None]],
        name: str,
        version: int | None,
        deadline: float = math.inf,
    ) -> None:
        self._fill, self._load = fill, load
        self.name, self.version, self.deadline = name, version, deadline
        self.fallback_from: int | None = None
        self._out: list[Leases] = []  # one while it holds a version; `pop` takes it once, whichever threads release it

    async def acquire(self) -> ModelVersion:
        """Fill the lease, loading the version off the event loop if needed.

        If no version was requested and the current one can no longer be loaded, the next lower one is leased.

        Raises:
            ProblemError: 404 for an unknown name or version, 503 for one that cannot be loaded, 429 if too many loads
                are pending or too many old versions in use, 504 at the deadline.
        """
        if not self._fill(self):
            await self._load(self)
        return self.model

    def take(self, model: ModelVersion, fallback_from: int | None = None) -> bool:
        """Hold a version; False if it is already unloaded, or this lease holds one."""
        if self._out or not model.leases.take():
            return False
        self.model, self.fallback_from = model, fallback_from
        self._out.append(model.leases)
        return True

    def release(self) -> None:
        """Return the lease, from any thread."""
        try:
            leases = self._out.pop()
        except IndexError:
            return
        leases.give_back()

    async def __aenter__(self) -> ModelVersion:
        return await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if self._out:
            message = "a lease of model %s version %d was dropped without being returned; the version stays in memory"
            _log.error(message, self.model.name, self.model.version)


class Memory:
    """All versions with memory not yet freed, those unloaded while leases are out included; for the loading thread."""

    def __init__(self, max_bytes: int, max_old: int) -> None:
        """Start empty, with maximum bytes of all weights (0 for no limit) and number of versions not current."""
        self._max_bytes, self._max_old = max_bytes, max_old
        self._versions: list[ModelVersion] = []

    def add(self, model: ModelVersion) -> None:
        """Add a loaded version, or its new description, which has the same leases."""
        versions = (other for other in self._versions if not other.leases.freed and other.leases is not model.leases)
        self._versions = [*versions, model]

    def restored(self, name: str, version: int, signature: Signature) -> ModelVersion | None:
        """Return a version that was unloaded with leases out and need not be loaded again."""
        for model in self._versions:
            if (model.name, model.version, model.signature) == (name, version, signature) and model.leases.restore():
                return model
        return None

    def make_room(
        self,
        label: str,
        needed: int,
        loaded: Iterable[ModelVersion],
        unload: Callable[[ModelVersion], None],
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

    def make_room_among_old(self, current: Collection[tuple[str, int]], unload: Callable[[ModelVersion], None]) -> None:
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
                retry_after_s=1,
            )
