"""Fake workers that make nothing and import little, so that they start quickly."""

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fleet import workers
from fleet.workers import work


def pretend(pipe: Connection, url: str, options: dict[str, Any], device: str) -> None:
    """A fake worker that makes nothing; shard 1 always kills it, and shard 2 once."""
    while True:
        try:
            shard = pipe.recv()
        except EOFError:
            return
        mark = Path(url) / f"tried-{shard}"
        if shard == 1 or (shard == 2 and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (Path(url) / f"by-{shard}-{device}").touch()
        pipe.send(None)


def slow_to_stop(pipe: Connection, url: str, options: dict[str, Any], device: str) -> None:
    """A fake worker whose shards never end; it ends when three workers have been told to stop."""

    def stop(*_: Any) -> None:
        (Path(url) / f"told-{os.getpid()}").touch()
        while len(list(Path(url).glob("told-*"))) < 3:
            time.sleep(0.01)
        (Path(url) / f"ended-{os.getpid()}").touch()
        os._exit(1)

    signal.signal(signal.SIGTERM, stop)
    pipe.recv()
    (Path(url) / f"began-{os.getpid()}").touch()
    while True:
        time.sleep(1)


def never_done(pipe: Connection, url: str, options: dict[str, Any], device: str) -> None:
    """A real worker whose shards never end; files show how it stops: `unwound`, and `finalized` if Python is."""

    class InProcess:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def make(self, shard: int, tell: Callable[[int], None]) -> None:
            try:
                tell(1)
                threading.Event().wait()
            finally:
                (Path(url) / "unwound").touch()

    workers.InProcess = InProcess  # type: ignore[misc]
    atexit.register((Path(url) / "finalized").touch)
    work(pipe, url, options, device)
