"""A run of a bulk job: missing shards go to the launcher, failed ones are retried, and those given up are reported."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pathline.bulk_folder import JobSpec
from tqdm import tqdm

from fleet.errors import TargetError
from fleet.launchers import Event, Launcher
from fleet.store import Target


@dataclass
class RunResult:
    """The outcome of a run.

    Attributes:
        made: shards that were made.
        failed: shards that could not be made, and why.
        left: shards without a receipt.
    """

    made: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    left: int = 0


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
        self._mine = set(range(spec.shards)) if mine is None else set(mine)
        self._quiet = quiet
        self._tried: dict[int, int] = {}
        self._in_progress: dict[int, int] = {}  # approximate rows done, by shard
        self._outcome = RunResult()

    def __call__(self) -> RunResult:
        """Make the missing shards; Ctrl-C stops the workers and leaves a job that can be resumed.

        Raises:
            TargetError: the target cannot be written, or the job cannot be done at all.
        """
        done, unfinished = self._target.done(), self._target.store.unfinished()  # of runs that were killed
        waiting = deque(sorted(self._mine - done))
        rows = sum(self._spec.range(shard)[1] for shard in self._mine)
        begun = rows - sum(self._spec.range(shard)[1] for shard in waiting)
        every = 0.5 if sys.stderr.isatty() else 30.0  # a log gets an occasional line
        shown: dict[str, Any] = {"unit": "sample", "unit_scale": True, "file": sys.stderr, "disable": self._quiet}
        with tqdm(total=rows, initial=begun, mininterval=every, maxinterval=every, **shown) as self._bar:
            try:
                self._make(waiting)
            finally:
                self._launcher.close()
        left = set(range(self._spec.shards)) - self._target.done()
        self._outcome.left = len(left)
        if not left:
            self._target.store.clear(unfinished)
        return self._outcome

    def _make(self, waiting: deque[int]) -> None:
        self._waiting = waiting
        while waiting or self._in_progress:
            while waiting and len(self._in_progress) < self._launcher.slots:
                shard = waiting.popleft()
                self._in_progress[shard] = 0
                self._launcher.begin(shard)
            self._launcher.wait(self._handle)

    def _handle(self, event: Event) -> None:
        shard, before = event.shard, self._in_progress.get(event.shard, 0)
        if event.kind == "progress":
            self._in_progress[shard] = max(before, event.rows)
            self._bar.update(self._in_progress[shard] - before)
            return
        self._in_progress.pop(shard, None)
        if event.kind == "done":
            self._outcome.made += 1
            self._bar.update(self._spec.range(shard)[1] - before)
            return
        self._bar.update(-before)
        if event.kind == "fatal":
            raise TargetError(event.error)
        self._tried[shard] = tried = self._tried.get(shard, 0) + 1
        if tried < self._tries:
            self._waiting.append(shard)  # after the others, which may succeed
            return
        self._outcome.failed[shard] = event.error
        self._target.note_failure(shard, event.error, tried)
