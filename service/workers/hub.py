"""The hub: starts the HTTP workers of a service, and gives them models, results, and answers to what they pass on.

The engine's process holds everything that exists once: the engine, the registry, the ledgers, the metrics. It accepts
no connections itself. A worker that ends is replaced; its jobs are cancelled, and what it held is released.
"""

import asyncio
import logging
import math
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from starlette.types import ASGIApp

from service.metrics import Counts, added
from service.state import Service
from service.workers.attached import AttachedWorker, deliver_jobs
from service.workers.link import write_message
from service.workers.messages import can_serve

_END_S = 5.0  # for a worker to end, beyond the time for responses being sent
_MAX_FAILED_STARTS = 5

_log = logging.getLogger("pathline")


class Hub:
    """The HTTP workers of one service; used on the event loop of the engine's process, except `spawn`.

    Args:
        app: answers the requests that workers pass on.
        service: the service.
        sockets: one for each worker, bound to the address of the service.

    Attributes:
        failed: whether workers cannot be started.
    """

    def __init__(self, app: ASGIApp, service: Service, sockets: Sequence[socket.socket]) -> None:
        self._app, self._service, self._sockets = app, service, sockets
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers: list[AttachedWorker] = []
        self._past: Counts = {}  # metrics of workers that have ended
        self._failed_starts = 0
        self._start_again_at = 0.0
        self._closing = False
        self.failed = False

    def spawn(self) -> None:
        """Start the processes, which need seconds until they accept connections."""
        self._workers = [self._start(place) for place in range(len(self._sockets))]

    def _start(self, place: int) -> AttachedWorker:
        """Start one process.

        Raises:
            OSError: the system refuses.
        """
        (ours, theirs), (our_jobs, their_jobs) = socket.socketpair(), socket.socketpair()
        given = [each.fileno() for each in (theirs, their_jobs, self._sockets[place])]
        command = [sys.executable, "-m", "service.workers", *map(str, given)]
        try:
            process = subprocess.Popen(  # noqa: S603  (our own module)
                command,
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                process_group=0,  # a terminal's Ctrl-C is not for it
            )
        except OSError:
            ours.close()
            our_jobs.close()
            raise
        finally:
            theirs.close()
            their_jobs.close()
        engine, settings = self._service.engine, self._service.settings
        connections = math.ceil(settings.max_connections / len(self._sockets))
        facts = {"device": str(engine.device), "device_name": engine.device_name, "threads": engine.threads}
        write_message(ours, {"settings": settings.as_arguments() | {"max_connections": connections}, "engine": facts})
        return AttachedWorker(place, process, ours, our_jobs)

    async def open(self, tasks: set[asyncio.Task[None]]) -> None:
        """Connect the workers.

        Args:
            tasks: the server's tasks, which it waits for when it ends.
        """
        self._tasks = tasks
        loop = asyncio.get_running_loop()
        self._service.engine.deliver_on(loop, deliver_jobs)
        self._service.registry.call_on_change(lambda: loop.call_soon_threadsafe(self._publish))
        self._service.worker_counts = self.counts
        for worker in self._workers:
            await self._connect(worker)

    async def _connect(self, worker: AttachedWorker) -> None:
        worker.open(self._service, self._app, self._tasks, self._publish)
        await asyncio.get_running_loop().create_unix_connection(lambda: worker.link, sock=worker.socket)

    @property
    def ready(self) -> bool:
        """Whether all workers accept connections."""
        return all(worker.ready for worker in self._workers)

    def _publish(self) -> None:
        """Bring the models of all workers up to date."""
        if self._closing:
            return
        wanted = [model for model in self._service.registry.answering() if can_serve(model)]
        for worker in self._workers:
            worker.set_models(wanted)

    def tick(self) -> None:
        """Tell the workers the state of the service, and replace those that have ended; called often."""
        service, now = self._service, time.monotonic()
        for worker in self._workers:
            worker.tell_state(service.draining, service.engine.turn_s)
            if worker.silent_s > service.settings.stall_s and not worker.lost:
                _log.error("HTTP worker %d has been silent for %.0f s and is killed", worker.place, worker.silent_s)
                worker.end()
            if worker.lost and not self._closing and now >= self._start_again_at:
                self._replace(worker, now)

    def _replace(self, worker: AttachedWorker, now: float) -> None:
        code = worker.end()
        self._past, worker.counts = added(self._past, worker.counts), {}
        self._failed_starts = 0 if worker.ready else self._failed_starts + 1
        self._start_again_at = now + self._failed_starts
        if self._failed_starts >= _MAX_FAILED_STARTS:
            if not self.failed:
                _log.error("HTTP workers end before they are ready (exit code %s); the service ends", code)
            self.failed = True
            return
        _log.error("HTTP worker %d has ended with exit code %s; another one starts", worker.place, code)
        try:
            another = self._workers[worker.place] = self._start(worker.place)
        except OSError as error:
            worker.ready = False  # the next try counts as a failed start
            _log.error("HTTP worker %d cannot be started: %s", worker.place, error)
            return
        task = asyncio.ensure_future(self._connect(another))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def counts(self) -> list[Counts]:
        """Return the metrics that all workers have counted, those that have ended included."""
        await asyncio.gather(*(worker.ask_counts() for worker in self._workers if worker.ready and not worker.lost))
        return [self._past, *(worker.counts for worker in self._workers)]

    async def close(self, wait_s: float) -> None:
        """End all workers, which have `wait_s` seconds for responses being sent."""
        self._closing = True
        for worker in self._workers:
            worker.finish(wait_s)
        until = time.monotonic() + wait_s + _END_S
        while any(worker.process.poll() is None for worker in self._workers) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        for worker in self._workers:
            worker.end()
