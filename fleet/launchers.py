"""Launchers make the shards of a job; `fleet.run` decides which, and handles failures."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pathline._bulk_spec import JobSpec, Receipt
from pathline.errors import BulkConflict

from fleet.errors import CommandError, FleetError, TargetError
from fleet.store import Target
from service.settings import Settings, load_settings

if TYPE_CHECKING:
    from fleet.maker import Maker


@dataclass(frozen=True)
class Event:
    """An event in the making of a shard.

    Attributes:
        shard: which one.
        kind: `progress`: about `rows` of its rows are done; `done`: it has its receipt; `failed`: it could not be made,
            and may be retried; `fatal`: no shard can be made.
        rows: rows done of a shard in progress.
        error: the error.
    """

    shard: int
    kind: Literal["progress", "done", "failed", "fatal"]
    rows: int = 0
    error: str = ""


Tell = Callable[[Event], None]


class Launcher(Protocol):
    """Makes shards, several at a time."""

    @property
    def slots(self) -> int:
        """Number of shards that can be made at the same time."""
        ...

    def begin(self, shard: int) -> None:
        """Start to make a shard; at most `slots` at a time."""
        ...

    def wait(self, tell: Tell) -> None:
        """Wait for events, for a second at most, and report them."""
        ...

    def close(self) -> None:
        """Stop all workers immediately."""
        ...


def ended(shard: int, error: BaseException) -> Event:
    """Return the event for an exception in making a shard; it is fatal if the target or the job is at fault."""
    fatal = isinstance(error, TargetError | CommandError | BulkConflict)
    message = str(error) if isinstance(error, FleetError | BulkConflict) else f"{type(error).__name__}: {error}"
    return Event(shard, "fatal" if fatal else "failed", error=message)


class Worker:
    """Makes shards of the job at an address; the model is loaded for the first one."""

    def __init__(
        self, url: str, options: Mapping[str, Any], settings: Settings | None = None, device: str = ""
    ) -> None:
        self.target = Target(url, options)
        self._settings, self._device = settings or load_settings(), device
        self._maker: Maker | None = None
        self._spec: JobSpec | None = None

    def event(self, shard: int, tell: Callable[[int], None]) -> Event:
        """Make a shard, commit it and return its final event; one that has a receipt gets the same rows again.

        Args:
            shard: which one.
            tell: called from another thread with the approximate number of rows done.
        """
        try:
            spec, maker = self._loaded()
            begin = time.monotonic()
            rows = maker.make(*spec.range(shard), tell)
            receipt = Receipt.of(spec, shard, rows, maker.model.deterministic, time.monotonic() - begin)
            self.target.commit(spec, rows, receipt)
        except Exception as error:
            return ended(shard, error)
        return Event(shard, "done")

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


class InProcess:
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


Entry = Callable[[Connection, str, dict[str, Any], str], None]
"""The main function of a worker process: (pipe to the driver, address, options of its file system, device)."""

_STOP_S = 5.0


@dataclass
class _Slot:
    """A place for a worker.

    Attributes:
        device: device of the worker.
        process, pipe: the worker, once it has started.
        shard: in progress, or None.
    """

    device: str
    process: BaseProcess | None = None
    pipe: Connection | None = None
    shard: int | None = None


class Local:
    """Worker processes on this machine."""

    def __init__(
        self, url: str, options: Mapping[str, Any], workers: int, devices: Sequence[str], entry: Entry | None = None
    ) -> None:
        """Prepare slots for workers; each worker starts with its first shard.

        Args:
            url, options: of the target.
            workers: number of workers.
            devices: devices of the workers, assigned in turn.
            entry: main function of a worker; replaced in tests.
        """
        self._url, self._options, self._entry = url, dict(options), entry or work
        self._context = multiprocessing.get_context("spawn")
        self._places = [_Slot(devices[number % len(devices)]) for number in range(workers)]

    @property
    def slots(self) -> int:
        """The number of workers."""
        return len(self._places)

    def begin(self, shard: int) -> None:
        """Give a shard to an idle worker."""
        place = next(place for place in self._places if place.shard is None)
        place.shard = shard
        if place.process is None or not place.process.is_alive():
            self._start(place)
        with contextlib.suppress(OSError):  # it has died, which `wait` will notice
            place.pipe.send(shard) if place.pipe else None

    def _start(self, place: _Slot) -> None:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(
            target=self._entry, args=(theirs, self._url, self._options, place.device), daemon=True
        )
        process.start()
        theirs.close()
        place.process, place.pipe = process, mine

    def wait(self, tell: Tell) -> None:
        """Wait for events, for a second at most, and report them."""
        busy = [place for place in self._places if place.shard is not None]
        ready = wait(
            [end for place in busy for end in (place.pipe, place.process and place.process.sentinel) if end], 1
        )
        for place in busy:
            if place.pipe in ready:
                self._read(place, tell)
            elif place.process is not None and place.process.sentinel in ready:
                self._died(place, tell)

    def _read(self, place: _Slot, tell: Tell) -> None:
        assert place.pipe is not None  # noqa: S101  (it was waited for)
        try:
            event: Event = place.pipe.recv()
        except (EOFError, OSError):
            self._died(place, tell)
            return
        if event.kind != "progress":
            place.shard = None
        tell(event)

    def _died(self, place: _Slot, tell: Tell) -> None:
        shard, process = place.shard, place.process
        assert shard is not None and process is not None  # noqa: S101, PT018  (it was busy)
        process.join()
        if place.pipe is not None:
            place.pipe.close()
        place.process = place.pipe = place.shard = None
        tell(Event(shard, "failed", error=f"its worker died ({_cause(process.exitcode)})"))

    def close(self) -> None:
        """Stop all workers."""
        for place in self._places:
            if place.process is not None and place.shard is not None:
                place.process.terminate()
            if place.pipe is not None:
                place.pipe.close()  # an idle worker exits when its pipe closes
        running = [place.process for place in self._places if place.process is not None]
        for process in running:
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
        for place in self._places:
            place.process = place.pipe = place.shard = None


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

    def send(event: Event) -> None:
        try:
            with lock:
                pipe.send(event)
        except OSError:
            os._exit(1)  # the driver is gone, and this may be the engine's thread

    try:
        worker = Worker(url, options, device=device)
        with contextlib.suppress(EOFError, OSError):
            while True:
                shard: int = pipe.recv()
                send(worker.event(shard, lambda rows, shard=shard: send(Event(shard, "progress", rows))))
        worker.close()
    except SystemExit:
        code = 1
    # Files are removed by now. Python must not be finalized while threads of an engine or a store run: C++ would abort.
    os._exit(code)
