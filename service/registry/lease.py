"""A lease: a request holds one until its response is out, and a version leaves memory when its last one is back."""

import logging
from typing import Self

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
