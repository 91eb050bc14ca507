"""The versions in memory and the limits on them: the least recently used give way."""

from collections.abc import Callable, Collection, Iterable

from models.checkpoint.card import CheckpointError
from models.repository import Signature
from service.errors import Kind, ProblemError
from service.registry.version import ModelVersion

Key = tuple[str, int]
Unload = Callable[[ModelVersion], None]


class Memory:
    """Every version whose memory is not freed yet, also those that were unloaded with leases out.

    Of the thread that loads, but for `used`, which any thread sets.

    Attributes:
        used: when each version was asked for last.
    """

    def __init__(self, max_bytes: int, max_old: int) -> None:
        """Begin empty.

        Args:
            max_bytes: bytes of all weights; 0 for any number.
            max_old: versions that answer by number only.
        """
        self.used: dict[Key, float] = {}
        self._max_bytes, self._max_old = max_bytes, max_old
        self._held: list[ModelVersion] = []

    def add(self, model: ModelVersion) -> None:
        """Take in a version that was loaded."""
        self._held = [each for each in self._held if not each.leases.freed] + [model]

    def restored(self, name: str, version: int, signature: Signature) -> ModelVersion | None:
        """Return a version that was unloaded with leases out, which need not be loaded again."""
        for model in self._held:
            if (model.name, model.version, model.signature) == (name, version, signature) and model.leases.restore():
                return model
        return None

    def make_room(self, key: Key, needed: int, loaded: Iterable[ModelVersion], unload: Unload) -> None:
        """Unload the least recently used of what is `loaded`, as few as make room for a version.

        Raises:
            CheckpointError: it does not fit into all of the memory.
        """
        if not self._max_bytes:
            return
        if needed > self._max_bytes:
            which = f"{key[0]}/{key[1]}"
            raise CheckpointError(
                f"{which}: its weights take {needed} bytes, over PATHLINE_MAX_MODEL_BYTES={self._max_bytes}"
            )
        models = sorted(loaded, key=self._last_used)
        excess = sum(model.bytes for model in models) + needed - self._max_bytes
        for model in models:
            if excess <= 0:
                return
            unload(model)
            excess -= model.bytes

    def make_room_among_old(self, current: Collection[Key], unload: Unload) -> None:
        """Unload versions that are not `current` and that nobody leases, until one more may be loaded.

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
