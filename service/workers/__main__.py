"""The process of an HTTP worker, which the hub starts: ``python -m service.workers LINK JOBS LISTENING``.

The arguments are file descriptors: its ends of the two links, and the socket to accept connections from. It ends when
the engine's process tells it to, or ends itself.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import uvicorn
from starlette.types import Receive, Scope, Send

from service.app import create_app
from service.console import log_to_stderr
from service.http.connections import Connection
from service.ledger import CONDITIONS, Ledger
from service.metrics import Metrics
from service.registry.registry import Registry
from service.server import freeze, server_config, within_files
from service.settings import Settings, load_settings
from service.state import Service
from service.workers.calls import Outgoing
from service.workers.link import Arrays, Fields, Link, read_message
from service.workers.remote import RemoteEngine, RemoteModels
from service.workers.triage import Triage

_LINGER_S = 0.2
"""Time for clients to read the answer that the service was stopped."""


class WorkerService(Service):
    """The service as a worker sees it; the engine's process starts and stops what it is made of."""

    def start(self, in_thread: bool = False, on_loaded: Callable[[], None] = lambda: None) -> None:
        """Take requests from now on."""
        self.started = True

    def stop(self) -> None:
        """Do nothing."""


class _Server(uvicorn.Server):
    """The server of a worker, linked to the engine's process."""

    def __init__(self, settings: Settings, facts: Mapping[str, Any], link: socket.socket, jobs: socket.socket) -> None:
        self._settings, self._facts, self._socket, self._job_socket = settings, facts, link, jobs
        self._metrics = Metrics()
        super().__init__(server_config(self._answer, settings, self._metrics))
        self._app: Triage | None = None

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._app is not None  # noqa: S101  (made before the first connection)
        await self._app(scope, receive, send)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Connect to the engine's process, and accept connections."""
        link = Link(self._take, self._lose)
        models = RemoteModels(link)
        job_link = Link(self._take_outcome, self._lose)
        self._engine = engine = RemoteEngine(job_link, models, self._facts)
        settings = self._settings
        ledger = Ledger(settings.max_job_bytes, on_end=engine.release)
        conditions = Ledger(settings.max_condition_bytes, purpose=CONDITIONS)
        registry = cast(Registry, models)  # the only route that is served here takes leases and nothing else
        self._service = WorkerService(
            settings, engine, registry, self._metrics, ledger, Ledger(settings.max_job_bytes), conditions
        )
        app = create_app(settings, service=self._service)
        self._link, self._models, self._outgoing = link, models, Outgoing(link)
        self._app = Triage(app, self._outgoing, models, settings.root_path)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: job_link, sock=self._job_socket)
        await loop.create_unix_connection(lambda: link, sock=self._socket)
        freeze()
        await super().startup(sockets)
        link.send({"kind": "ready"})

    def _take_outcome(self, fields: Fields, arrays: Arrays) -> None:
        self._engine.take(fields, arrays)

    def _take(self, fields: Fields, arrays: Arrays) -> None:
        match fields["kind"]:
            case "model":
                self._models.put(fields, arrays)
            case "drop":
                self._models.drop(fields["model"])
            case "state":
                self._service.draining = fields["draining"]
                self._engine.hear(fields["turn_s"])
                self._link.send({"kind": "alive"})
            case "counts":
                counts = [(name, labels, value) for (name, labels), value in self._metrics.counts().items()]
                self._link.send({"kind": "counts", "counts": counts})
            case "finish":
                self.config.timeout_graceful_shutdown = max(1, round(fields["wait_s"]))
                self.should_exit = True
            case _:
                self._outgoing.take(fields, arrays)

    def _lose(self) -> None:
        """End now: the engine's process has ended."""
        if not self._engine.alive:
            return
        self._service.draining = True
        self._engine.lose()
        self._outgoing.lose()
        if not self.should_exit:
            asyncio.get_running_loop().call_later(_LINGER_S, self._exit_now)

    def _exit_now(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection):
                connection.farewell()
        os._exit(1)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ignore signals: a terminal and a supervisor send them to all processes, and the engine's process decides."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        yield


def main() -> int:
    """Run a worker until it is told to end; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    link, jobs, listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:4])
    log_to_stderr()
    hello = read_message(link)
    if hello is None:  # the engine's process has ended
        return 1
    settings = within_files(load_settings(**hello["settings"]))
    _Server(settings, hello["engine"], link, jobs).run(sockets=[listening])
    return 0


if __name__ == "__main__":
    sys.exit(main())
