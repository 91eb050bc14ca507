"""A run of a bulk job: workers make missing shards, failed ones are retried, and those given up are reported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pathline._bulk_spec import JobSpec
from pathline._io import in_threads
from pathline.bulk_folder import ShardQueue
from tqdm import tqdm

from fleet.errors import TargetError
from fleet.store import Target
from fleet.workers import Worker


def run(
    spec: JobSpec,
    target: Target,
    workers: Sequence[Worker],
    tries: int = 3,
    mine: Iterable[int] | None = None,
    quiet: bool = False,
) -> ShardQueue:
    """Make the missing shards of a job; Ctrl-C stops the workers and leaves a job that can be resumed.

    Args:
        spec: the job.
        target: its folder.
        workers: each makes one shard at a time, in a thread of its own; one may stand for several threads.
        tries: attempts at each shard.
        mine: the shards of this run; all by default.
        quiet: whether to hide the progress bar.

    Returns:
        The queue, which knows the shards that were given up, and how many are left.

    Raises:
        TargetError: the target cannot be written, or the job cannot be done at all.
    """
    queue, stopped, lock = ShardQueue(target, spec, tries, mine), threading.Event(), threading.Lock()
    every = 0.5 if sys.stderr.isatty() else 30.0  # a log gets an occasional line
    shown: dict[str, Any] = {"unit": "sample", "unit_scale": True, "file": sys.stderr, "disable": quiet}

    def make(worker: Worker, shard: int) -> None:
        done = 0

        def tell(rows: int) -> None:
            nonlocal done
            with lock:
                bar.update(rows - done)
            done = rows

        error = worker.make(shard, lambda rows: tell(max(done, rows)))
        if stopped.is_set():
            return
        tell(spec.range(shard)[1] if error is None else 0)
        if isinstance(error, TargetError):
            raise error
        if error is not None:
            queue.retry(shard, str(error))

    def work(worker: Worker) -> None:
        while not stopped.is_set() and (shard := queue.take()) is not None:
            make(worker, shard)

    def stop() -> None:
        stopped.set()
        for worker in workers:
            worker.close()

    with tqdm(total=queue.rows, initial=queue.done, mininterval=every, maxinterval=every, **shown) as bar:
        try:
            in_threads([partial(work, worker) for worker in workers], stop)
        finally:
            stop()
    return queue
