"""A run of a bulk job: missing shards go to the launcher, failed ones are retried, and those given up are reported."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pathline._bulk_spec import JobSpec
from pathline.bulk_folder import ShardQueue
from tqdm import tqdm

from fleet.errors import TargetError
from fleet.launchers import Event, Launcher
from fleet.store import Target


@dataclass(frozen=True)
class RunResult:
    """The outcome of a run.

    Attributes:
        made: shards that were made.
        failed: shards that could not be made, and why.
        left: shards without a receipt.
    """

    made: int
    failed: dict[int, str]
    left: int


class Run:
    """Makes the missing shards of a job.

    Args:
        spec: the job.
        target: its folder.
        launcher: makes the shards.
        tries: attempts at each shard.
        mine: the shards of this run; all by default.
        quiet: whether to hide the progress bar.
    """

    def __init__(
        self,
        spec: JobSpec,
        target: Target,
        launcher: Launcher,
        tries: int = 3,
        mine: Iterable[int] | None = None,
        quiet: bool = False,
    ) -> None:
        self._spec, self._target, self._launcher, self._tries = spec, target, launcher, tries
        self._mine, self._quiet = mine, quiet
        self._in_progress: dict[int, int] = {}  # approximate rows done, by shard
        self._made = 0

    def __call__(self) -> RunResult:
        """Make the missing shards; Ctrl-C stops the workers and leaves a job that can be resumed.

        Raises:
            TargetError: the target cannot be written, or the job cannot be done at all.
        """
        self._queue = queue = ShardQueue(self._target, self._spec, self._tries, self._mine)
        every = 0.5 if sys.stderr.isatty() else 30.0  # a log gets an occasional line
        shown: dict[str, Any] = {"unit": "sample", "unit_scale": True, "file": sys.stderr, "disable": self._quiet}
        with tqdm(total=queue.rows, initial=queue.done, mininterval=every, maxinterval=every, **shown) as self._bar:
            try:
                while queue or self._in_progress:
                    self._fill()
                    self._launcher.wait(self._handle)
            finally:
                self._launcher.close()
        return RunResult(self._made, queue.failed, queue.left())

    def _fill(self) -> None:
        while len(self._in_progress) < self._launcher.slots and (shard := self._queue.take()) is not None:
            self._in_progress[shard] = 0
            self._launcher.begin(shard)

    def _handle(self, event: Event) -> None:
        shard, before = event.shard, self._in_progress.get(event.shard, 0)
        if event.kind == "progress":
            self._in_progress[shard] = max(before, event.rows)
            self._bar.update(self._in_progress[shard] - before)
            return
        self._in_progress.pop(shard, None)
        if event.kind == "done":
            self._made += 1
            self._bar.update(self._spec.range(shard)[1] - before)
            return
        self._bar.update(-before)
        if event.kind == "fatal":
            raise TargetError(event.error)
        self._queue.retry(shard, event.error)
