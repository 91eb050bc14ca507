"""Workers make the shards of a job, each one shard at a time; `fleet.run` decides which, and handles failures."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Protocol

from pathline._bulk_spec import JobSpec, Receipt
from pathline.errors import BulkConflict

from fleet.errors import CommandError, FleetError, TargetError
from fleet.store import Target
from service.settings import Settings, load_settings

if TYPE_CHECKING:
    from fleet.maker import Maker

Tell = Callable[[int], None]
"""Called, perhaps from another thread, with the approximate number of rows of a shard that are done."""


class Worker(Protocol):
    """Makes shards of the job at an address; a thread waits for each of them."""

    def make(self, shard: int, tell: Tell) -> FleetError | None:
        """Make a shard and commit it; one that has a receipt gets the same rows again.

        Returns:
            Why it could not be made: a TargetError if no shard can be, another error if a retry may succeed.
        """
        ...

    def close(self) -> None:
        """Stop immediately, also while another thread waits for a shard, which then cannot be made."""
        ...


def failure(error: BaseException) -> FleetError:
    """Return an exception in making a shard as `Worker.make` does: the target or the job may be at fault."""
    fatal = isinstance(error, TargetError | CommandError | BulkConflict)
    message = str(error) if isinstance(error, FleetError | BulkConflict) else f"{type(error).__name__}: {error}"
    return TargetError(message) if fatal else FleetError(message)


class InProcess:
    """A worker in this process; the model is loaded for the first shard."""

    def __init__(
        self, url: str, options: Mapping[str, Any], settings: Settings | None = None, device: str = ""
    ) -> None:
        self.target = Target(url, options)
        self._settings, self._device = settings or load_settings(), device
        self._maker: Maker | None = None
        self._spec: JobSpec | None = None

    def make(self, shard: int, tell: Tell) -> FleetError | None:
        """Make a shard."""
        try:
            spec, maker = self._loaded()
            begin = time.monotonic()
            rows = maker.make(*spec.range(shard), tell)
            receipt = Receipt.of(spec, shard, rows, maker.model.deterministic, time.monotonic() - begin)
            self.target.commit(spec, rows, receipt)
        except Exception as error:
            return failure(error)
        return None

    def close(self) -> None:
        """Unload the model."""
        if self._maker is not None:
            self._maker.close()
            self._maker = None

    def _loaded(self) -> tuple[JobSpec, Maker]:
        from fleet.maker import Maker  # imports torch

        if self._spec is None or self._maker is None:
            self._spec = self.target.job()
            self._maker = Maker.of(self._spec, self._settings, self.target.conditions(self._spec), self._device)
        return self._spec, self._maker


Entry = Callable[[Connection, str, dict[str, Any], str], None]
"""The main function of a worker process: (pipe to the driver, address, options of its file system, device)."""

_STOP_S = 5.0


class Local:
    """A worker process on this machine; it starts with the first shard, and again after it has died.

    Args:
        url, options: of the target.
        device: of the network.
        entry: main function of the process; replaced in tests.
    """

    def __init__(self, url: str, options: Mapping[str, Any], device: str, entry: Entry | None = None) -> None:
        self._arguments, self._entry = (url, dict(options), device), entry or work
        self._running: tuple[BaseProcess, Connection] | None = None
        self._lock, self._closed = threading.Lock(), False

    def make(self, shard: int, tell: Tell) -> FleetError | None:
        """Send a shard to the process, and wait for what it sends back: numbers of rows, and in the end the outcome."""
        with self._lock:
            if self._closed:
                return FleetError("it was stopped")
            process, pipe = self._running = self._running or self._start()
        with contextlib.suppress(EOFError, OSError):  # it has died
            pipe.send(shard)
            while pipe in wait([pipe, process.sentinel]):
                outcome: int | FleetError | None = pipe.recv()
                if not isinstance(outcome, int):
                    return outcome
                tell(outcome)
        process.join()
        pipe.close()
        self._running = None
        return FleetError(f"its worker died ({_cause(process.exitcode)})")

    def _start(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=self._entry, args=(theirs, *self._arguments), daemon=True)
        process.start()
        theirs.close()
        return process, mine

    def close(self) -> None:
        """Stop the process; its pipe is left to a thread that may be reading from it."""
        with self._lock:
            self._closed, running = True, self._running
        if running is not None:
            process, _ = running
            process.terminate()
            if not wait([process.sentinel], _STOP_S):
                process.kill()
                process.join()


def _cause(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}{', perhaps out of memory' if code == -9 else ''}"
    return f"signal {-code}"


def work(pipe: Connection, url: str, options: dict[str, Any], device: str) -> None:
    """Make the shards received through the pipe until it closes; a worker does not outlive its driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the driver, which stops its workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    lock, code = threading.Lock(), 0

    def send(outcome: int | FleetError | None) -> None:
        try:
            with lock:
                pipe.send(outcome)
        except OSError:
            os._exit(1)  # the driver is gone, and this may be the engine's thread

    try:
        worker = InProcess(url, options, device=device)
        with contextlib.suppress(EOFError, OSError):
            while True:
                send(worker.make(pipe.recv(), send))
        worker.close()
    except SystemExit:
        code = 1
    # Files are removed by now. Python must not be finalized while threads of an engine or a store run: C++ would abort.
    os._exit(code)
