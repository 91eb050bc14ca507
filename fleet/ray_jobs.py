"""The worker that makes shards as Ray tasks: Ray places each, and a process keeps its loaded model for the next one.

Ray Core, not Ray Data: a shard commits itself, so Ray need only place and watch processes.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import wait
from functools import lru_cache
from typing import Any

from fleet.errors import FleetError, missing
from fleet.workers import InProcess, Tell, failure

_CHECK_S = 10.0


@lru_cache(maxsize=1)
def _worker(url: str, options: tuple[tuple[str, Any], ...], device: str) -> InProcess:
    return InProcess(url, dict(options), device=device)


def make(url: str, options: tuple[tuple[str, Any], ...], device: str, shard: int) -> FleetError | None:
    """Make a shard, in a Ray process."""
    return _worker(url, options, device).make(shard, lambda rows: None)


class OnRay:
    """A worker that stands for several threads: each shard is a task in the cluster at RAY_ADDRESS, or a local one.

    Args:
        url, options: those of the target, which all machines must reach.
        workers: number of shards made at a time.
        threads: cores for each.
        gpu: whether each needs a GPU.

    Raises:
        FleetError: Ray is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any], workers: int, threads: int, gpu: bool) -> None:
        self._ray = ray = _ray()
        self._place = (url, tuple(sorted(options.items())), "cuda:0" if gpu else "")
        self._joined = not ray.is_initialized()
        if self._joined:
            join(workers * threads)
        # Ray's own retries are off: `fleet.run` counts tries, and names the shard that fails.
        self._make = ray.remote(num_cpus=threads, num_gpus=1 if gpu else 0, max_retries=0)(make)
        self._tasks, self._lock, self._closed = set[Any](), threading.Lock(), False
        self._node, self._checked = ray.get_runtime_context().get_node_id(), time.monotonic()

    def make(self, shard: int, tell: Tell) -> FleetError | None:
        """Submit a shard, and wait for it.

        Raises:
            FleetError: Ray has died on this machine.
        """
        with self._lock:
            if self._closed:
                return FleetError("it was stopped")
            task = self._make.remote(*self._place, shard)
            self._tasks.add(task)
        made = task.future()
        try:
            while not self._closed:
                if wait([made], timeout=1).done:
                    return made.result()
                self._check()
        except self._ray.exceptions.RayError as error:
            return FleetError(str(failure(error)).splitlines()[0])
        finally:
            self._tasks.discard(task)
        return FleetError("it was stopped")

    def _check(self) -> None:
        """Check now and then that this machine's node lives: without it, Ray never reports the end of a task."""
        if time.monotonic() < self._checked + _CHECK_S:
            return
        self._checked = time.monotonic()
        if not any(node["Alive"] for node in self._ray.nodes() if node["NodeID"] == self._node):
            self._tasks.clear()  # they cannot be cancelled either
            raise FleetError("Ray has died on this machine; run this again to make the other shards")

    def close(self) -> None:
        """Cancel running tasks, and leave a cluster that was joined; a new one ends."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for task in list(self._tasks):  # other threads remove theirs
                self._ray.cancel(task, force=True)
            if self._joined:
                self._ray.shutdown()


_REACH_S = 10.0


def _ray() -> Any:
    """Return the module; raise a FleetError if it is not installed."""
    try:
        import ray  # pyright: ignore[reportMissingImports]  (an extra)
    except ImportError as error:
        raise missing("ray", error) from None
    return ray


def join(cores: int | None = None) -> Any:
    """Return the `ray` module, connected to the cluster at RAY_ADDRESS or to a new local one.

    A new cluster binds to 127.0.0.1 only, has no dashboard and sends no usage reports. Start a cluster of several
    machines with `ray start`; see docs/scale.md.

    Args:
        cores: number of cores for a new cluster; all by default.

    Raises:
        FleetError: Ray is not installed, the cluster at RAY_ADDRESS cannot be joined, or a new one did not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = _ray()
    if address := os.environ.get("RAY_ADDRESS"):
        _reach(address)
    try:
        if address:
            ray.init(log_to_driver=False)
        else:
            ray.init(
                num_cpus=cores,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                configure_logging=False,
            )
    except Exception as error:  # Ray also raises a plain Exception
        reason = (str(error) or type(error).__name__).splitlines()[0]
        if address:
            raise FleetError(f"cannot join the Ray cluster at RAY_ADDRESS={address}: {reason}") from error
        raise FleetError(f"Ray did not start on this machine: {reason} Run this again.") from error
    return ray


def _reach(address: str) -> None:
    """Raise a FleetError if nothing listens at HOST:PORT; Ray would try for ten minutes."""
    if not (parts := re.fullmatch(r"([^:/]+):(\d+)", address)):
        return  # such as "auto"
    try:
        socket.create_connection((parts[1], int(parts[2])), _REACH_S).close()
    except (OSError, OverflowError) as error:
        raise FleetError(f"cannot reach the Ray cluster at RAY_ADDRESS={address}: {error}") from None
