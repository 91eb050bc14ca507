"""The worker: a loaded model in its own process, making one shard after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from pathline.bulk_folder import JobSpec, Receipt

from fleet.bulk.launchers import Event, ended
from fleet.bulk.maker import Maker
from fleet.bulk.store import Target
from service.settings import Settings, load_settings


class Worker:
    """Makes shards of the job at an address; the model is loaded for the first one."""

    def __init__(
        self, url: str, options: Mapping[str, Any], settings: Settings | None = None, device: str = ""
    ) -> None:
        self.target = Target(url, options)
        self._settings, self._device = settings or load_settings(), device
        self._maker: Maker | None = None
        self._spec: JobSpec | None = None

    def make(self, shard: int, tell: Callable[[int], None]) -> Receipt:
        """Make a shard and commit it; one that has a receipt is made again, with the same rows.

        Args:
            shard: which one.
            tell: called from another thread with the approximate number of rows done.

        Raises:
            FleetError: it cannot be made.
        """
        spec, maker = self._loaded()
        begin = time.monotonic()
        rows = maker.make_shard(spec, shard, self._conditions, tell)
        receipt = Receipt.of(spec, shard, rows, maker.model.deterministic, time.monotonic() - begin)
        self.target.commit(spec, rows, receipt)
        return receipt

    def event(self, shard: int, tell: Callable[[int], None]) -> Event:
        """Make a shard and return its final event."""
        try:
            return Event(shard, "done", receipt=self.make(shard, tell))
        except Exception as error:
            return ended(shard, error)

    def close(self) -> None:
        """Unload the model."""
        if self._maker is not None:
            self._maker.close()
            self._maker = None

    def _loaded(self) -> tuple[JobSpec, Maker]:
        if self._spec is None or self._maker is None:
            self._spec = self.target.job()
            self._conditions = self.target.conditions(self._spec)
            self._maker = Maker.of(self._spec, self._settings, self._conditions, self._device)
        return self._spec, self._maker
