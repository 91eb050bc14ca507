"""A run of a bulk job: missing shards go to the launcher, failed ones are retried, and those given up are reported."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from pathline._bulk_spec import JobSpec
from pathline.bulk_folder import ShardQueue
from tqdm import tqdm

from fleet.errors import TargetError
from fleet.launchers import Event, Launcher
from fleet.store import Target


def run(
    spec: JobSpec,
    target: Target,
    launcher: Launcher,
    tries: int = 3,
    mine: Iterable[int] | None = None,
    quiet: bool = False,
) -> ShardQueue:
    """Make the missing shards of a job; Ctrl-C stops the workers and leaves a job that can be resumed.

    Args:
        spec: the job.
        target: its folder.
        launcher: makes the shards.
        tries: attempts at each shard.
        mine: the shards of this run; all by default.
        quiet: whether to hide the progress bar.

    Returns:
        The queue, which knows the shards that were given up, and how many are left.

    Raises:
        TargetError: the target cannot be written, or the job cannot be done at all.
    """
    queue = ShardQueue(target, spec, tries, mine)
    in_progress: dict[int, int] = {}  # approximate rows done, by shard

    def handle(event: Event) -> None:
        shard, before = event.shard, in_progress.get(event.shard, 0)
        if event.kind == "progress":
            in_progress[shard] = max(before, event.rows)
            bar.update(in_progress[shard] - before)
            return
        in_progress.pop(shard, None)
        if event.kind == "done":
            bar.update(spec.range(shard)[1] - before)
            return
        bar.update(-before)
        if event.kind == "fatal":
            raise TargetError(event.error)
        queue.retry(shard, event.error)

    every = 0.5 if sys.stderr.isatty() else 30.0  # a log gets an occasional line
    shown: dict[str, Any] = {"unit": "sample", "unit_scale": True, "file": sys.stderr, "disable": quiet}
    with tqdm(total=queue.rows, initial=queue.done, mininterval=every, maxinterval=every, **shown) as bar:
        try:
            while queue or in_progress:
                while len(in_progress) < launcher.slots and (shard := queue.take()) is not None:
                    in_progress[shard] = 0
                    launcher.begin(shard)
                launcher.wait(handle)
        finally:
            launcher.close()
    return queue
