"""A run of a bulk job: workers make missing shards, failed ones are retried, and those given up are reported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from pathline._io import in_threads
from pathline.bulk_folder import ShardQueue
from tqdm import tqdm

from fleet.errors import TargetError
from fleet.workers import Worker


def run(queue: ShardQueue, workers: Sequence[Worker], quiet: bool = False) -> None:
    """Make the missing shards of a job; Ctrl-C stops the workers and leaves a job that can be resumed.

    Args:
        queue: the shards; it knows afterwards which were given up, and how many are left.
        workers: each makes one shard at a time, several in threads of their own; one may stand for several threads.
        quiet: whether to hide the progress bar.

    Raises:
        TargetError: the target cannot be written, or the job cannot be done at all.
    """
    every, lock = 0.5 if sys.stderr.isatty() else 30.0, threading.Lock()  # a log gets an occasional line
    shown: dict[str, Any] = {"unit": "sample", "unit_scale": True, "file": sys.stderr, "disable": quiet}

    def make(worker: Worker, shard: int) -> None:
        done = 0

        def tell(rows: int) -> None:
            nonlocal done
            with lock:
                bar.update(rows - done)
            done = rows

        error = worker.make(shard, lambda rows: tell(max(done, rows)))
        if queue.stopped:
            return
        tell(queue.spec.range(shard)[1] if error is None else 0)
        if isinstance(error, TargetError):
            raise error
        if error is not None:
            queue.retry(shard, str(error))

    def work(worker: Worker) -> None:
        while (shard := queue.take()) is not None:
            make(worker, shard)

    def stop() -> None:
        queue.stop()
        in_threads([worker.close for worker in set(workers)], lambda: None)  # at once: each may take seconds

    with tqdm(total=queue.rows, initial=queue.done, mininterval=every, maxinterval=every, **shown) as bar:
        try:
            if len(workers) == 1:  # in this thread: Ctrl-C ends what it makes, and unfinished files are removed
                work(workers[0])
            else:
                in_threads([partial(work, worker) for worker in workers], stop)
        finally:
            stop()
