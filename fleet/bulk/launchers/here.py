"""The launcher that makes shards in the current process, one at a time."""

from __future__ import annotations

from fleet.bulk.launchers import Event, Tell
from fleet.bulk.launchers.worker import Worker


class Here:
    """Makes shards with a worker in this process."""

    slots = 1

    def __init__(self, worker: Worker) -> None:
        self._worker, self._shard = worker, -1

    def begin(self, shard: int) -> None:
        """Remember the shard; `wait` makes it."""
        self._shard = shard

    def wait(self, tell: Tell) -> None:
        """Make the shard."""
        shard = self._shard
        tell(self._worker.event(shard, lambda rows: tell(Event(shard, "progress", rows))))

    def close(self) -> None:
        """Unload the model."""
        self._worker.close()
