"""The HTTP server: its socket, its limits, and the one function that runs it until it is told to stop."""

import contextlib
import errno
import gc
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.connections import protocol
from service.settings import Settings, StartError
from service.state import Service

_BACKLOG = 2048
_log = logging.getLogger("pathline")


def listen(settings: Settings) -> socket.socket:
    """Bind the address of the settings, so that a port in use is known before models are loaded.

    Raises:
        StartError: The address cannot be bound; the message says why and what to do.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise StartError(f"PATHLINE_HOST={host!r} is no address of this machine; use 127.0.0.1 or 0.0.0.0") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        advice = {
            errno.EADDRINUSE: "something else uses it; stop that or set PATHLINE_PORT to another port",
            errno.EACCES: "this user may not use it; set PATHLINE_PORT to 1024 or above",
            errno.EADDRNOTAVAIL: "it is no address of this machine; set PATHLINE_HOST",
        }.get(error.errno or 0, str(error))
        raise StartError(f"cannot listen on {host} port {port}: {advice}") from None
    return bound


def url(bound: socket.socket) -> str:
    """Return the address that clients on this machine use."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104  (a comparison, not a binding)
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, settings: Settings, bound: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests that run then have `drain_s` seconds to finish.

    From the signal on /readyz answers 503 and new work is refused, while the socket stays open for those who ask. A
    second signal ends it at once.

    Args:
        app: The application, its service started.
        settings: Limits of the server.
        bound: From `listen`.
        on_ready: Called once connections are taken.
    """
    config = uvicorn.Config(
        app,
        http=protocol(settings, app.state.service.metrics),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        backlog=_BACKLOG,
    )
    _Server(config, app.state.service, settings.drain_s, on_ready).run(sockets=[bound])


class _Server(uvicorn.Server):
    """uvicorn's server with signals of our own: its handler would close the socket first and exit with 143."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_s: float, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._drain_s, self._on_ready = service, drain_s, on_ready
        self._drained_by: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Modules and models stay for good. Looking through their 300,000 objects would stop all threads for 0.2 s,
        # again and again; once frozen, the collector looks at what requests leave alone.
        gc.collect()
        gc.freeze()
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drained_by is not None:
            self.should_exit = self.force_exit = True
            return
        _log.info("%s: finishing what runs, for at most %g s", signal.Signals(sig).name, self._drain_s)
        self._drained_by = time.monotonic() + self._drain_s
        self._service.drain()

    async def on_tick(self, counter: int) -> bool:
        if self._drained_by is not None and not self.should_exit:
            if time.monotonic() > self._drained_by:
                self._drained_by = math.inf
                self._service.engine.give_up()
                self.config.timeout_graceful_shutdown = 1  # an answer that nobody reads is not waited for
            # When the engine is empty, uvicorn still waits for answers that are on their way.
            self.should_exit = self._service.engine.active_jobs == 0
        return await super().on_tick(counter)
