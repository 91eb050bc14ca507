"""The HTTP server: its socket, its limits, its signals, and the end of the process."""

import contextlib
import errno
import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from service.console import flush
from service.http.connections import RESERVED, Slots, protocol
from service.settings import Settings, StartError
from service.state import Service

_BACKLOG = 2048
_ARMED_EVERY = 10  # turns of uvicorn's main loop, of 0.1 s each
_OWN_FILES = 64  # of the process itself: models, logs, threads, closing sockets
_LET_GO_S = 5.0  # for the engine to give up, which it does after the current network call
_LAST_S = 10.0  # for the cleanup after the last response
_NEVER_S = 10**9
_FAILED = 1
_log = logging.getLogger("pathline")


def listen(settings: Settings) -> list[socket.socket]:
    """Bind the addresses of the settings, so that a port in use is reported before models are loaded.

    Returns:
        A socket for each address of the host, with the same port: localhost, for example, is 127.0.0.1 and ::1.

    Raises:
        StartError: no address can be bound, or one is in use; the message says why and what to do.
    """
    if settings.uds:
        return [_listen_on_file(Path(settings.uds))]
    host, port = settings.host, settings.port
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        raise StartError(
            f"PATHLINE_HOST={host!r} is not an address of this machine; try 127.0.0.1 or 0.0.0.0"
        ) from None
    bound: list[socket.socket] = []
    faults: list[OSError] = []
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in addresses):
        try:
            bound.append(_bind(family, (address[0], port, *address[2:])))
        except OSError as error:
            faults.append(error)
        else:
            port = bound[0].getsockname()[1]
    in_use = [fault for fault in faults if fault.errno == errno.EADDRINUSE]
    if in_use or not bound:
        for listener in bound:
            listener.close()
        raise StartError(f"cannot listen on {host} port {port}: {_advice((in_use or faults)[0])}")
    return bound


def _bind(family: int, address: Any) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # :: takes IPv4 too, whatever the system's default
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _advice(error: OSError) -> str:
    return {
        errno.EADDRINUSE: "something else uses it; stop that or set PATHLINE_PORT to another port",
        errno.EACCES: "this user may not use it; set PATHLINE_PORT to 1024 or above",
        errno.EADDRNOTAVAIL: "it is not an address of this machine; set PATHLINE_HOST",
        errno.EAFNOSUPPORT: "this machine has no such addresses; set PATHLINE_HOST",
    }.get(error.errno or 0, str(error))


def _listen_on_file(path: Path) -> socket.socket:
    """Bind a Unix socket for this user and group; one that a killed service left is replaced.

    Raises:
        StartError: a service listens there, it is another kind of file, or it cannot be made.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
                if other.connect_ex(str(path)) == 0:
                    raise OSError(errno.EADDRINUSE, "another service listens there; stop it or choose another path")
            path.unlink()
        bound.bind(str(path))
        path.chmod(0o660)
    except OSError as error:
        bound.close()
        why = "something that is no socket is there" if error.errno == errno.EADDRINUSE and not path.is_socket() else ""
        raise StartError(f"cannot listen on PATHLINE_UDS={path}: {why or error.strerror or error}") from None
    return bound


def url(bound: socket.socket) -> str:
    """Return the URL for clients on this machine; that of a Unix socket has no meaning without its path."""
    if bound.family == socket.AF_UNIX:
        return "http://localhost"
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104  (a comparison, not a binding)
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # noqa: S104
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def freeze() -> None:
    """Exempt the objects that exist now from garbage collection.

    Modules and models stay for good. Traversing their 300,000 objects would stop all threads for 0.2 s each time; from
    now on the collector traverses only what requests leave behind.
    """
    gc.collect()
    gc.freeze()


def within_files(settings: Settings) -> Settings:
    """Raise the limit of open files as far as needed; return the settings with the connections that fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.max_connections + RESERVED + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings
    if hard == resource.RLIM_INFINITY or hard > soft:
        raised = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft >= needed:
        return settings
    fitting = max(1, soft - RESERVED - _OWN_FILES)
    _log.warning(
        "the limit of %d open files is too low for PATHLINE_MAX_CONNECTIONS=%d, so at most %d connections are "
        "accepted; raise the limit to %d (ulimit -n) or lower the setting",
        *(soft, settings.max_connections, fitting, needed),
    )
    return settings.model_copy(update={"max_connections": fitting})


def run(
    app: FastAPI,
    settings: Settings,
    bound: Sequence[socket.socket],
    on_ready: Callable[[], None],
) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP; requests in progress then have `drain_s` seconds to finish.

    From the signal on /readyz answers 503 and new work is refused; the socket stays open. A second signal ends the
    process at once, and so does a part that hangs during shutdown. A dead engine ends the process, too, so that a
    supervisor restarts it.

    Args:
        app: the application, its service started.
        settings: limits of the server.
        bound: from `listen`.
        on_ready: called once connections are accepted.

    Returns:
        The exit code: 0 after a signal, 1 if the engine has died.

    Raises:
        StartError: none of the models, which are loaded while the service answers, can be loaded.
    """
    service: Service = app.state.service
    settings = within_files(settings)
    connections = protocol(settings, service.metrics)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http=connections,
        ws="none",
        log_config=None,  # log like the rest of the service
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing depends on a client's address or on the scheme
        date_header=True,
        timeout_keep_alive=_NEVER_S,  # `Connection` closes idle connections
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        backlog=_BACKLOG,
    )
    server = _Server(config, service, on_ready, connections.slots)
    server.run(sockets=list(bound))
    if service.failed is not None:
        raise service.failed
    return server.code


def end_unless_called_again(seconds: float) -> None:
    """End the process with a traceback of each thread after this time, unless this is called again before.

    The timer is a thread outside Python, so that it also ends a process in which some code does not let go of Python's
    lock, and no other thread could.
    """
    if sys.__stderr__ is None:
        return
    with contextlib.suppress(ValueError, OSError, RuntimeError):  # it may be closed
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)


class _Server(uvicorn.Server):
    """uvicorn's server with our signal handling: its own would close the socket first and exit with 143."""

    def __init__(
        self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None], slots: Sequence[Slots] = ()
    ) -> None:
        super().__init__(config)
        self._service, self._drain_s, self._stall_s = service, service.settings.drain_s, service.settings.stall_s
        self._on_ready, self._slots = on_ready, slots
        self._drained_by: float | None = None
        self._gave_up = False
        self.code = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        freeze()
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup asks for
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drained_by is not None:
            self._exit_now(128 + sig, f"{signal.Signals(sig).name} again: ending at once")
            return
        _log.info("%s: finishing running requests, for at most %g s", signal.Signals(sig).name, self._drain_s)
        self._drained_by = time.monotonic() + self._drain_s
        self._service.drain()

    async def on_tick(self, counter: int) -> bool:
        if self._service.failed is not None:
            self.should_exit = True
        if not self.should_exit:
            self._check()
        if counter % _ARMED_EVERY == 0:
            end_unless_called_again(2 * self._stall_s)
        return await super().on_tick(counter)

    def _check(self) -> None:
        """End the process if it is time to."""
        engine, now = self._service.engine, time.monotonic()
        if self._service.started and not engine.alive:
            _log.error("the engine has stopped; the process ends so that it can be restarted")
            self.code = _FAILED
            self._end(_LET_GO_S)
        elif engine.turn_s > 2 * self._stall_s:
            self._exit_now(_FAILED, f"a network call has not ended for {engine.turn_s:.0f} s; the process ends")
        elif self._drained_by is None:
            return
        elif engine.active_jobs == 0:  # uvicorn still waits for responses being sent
            self._end(1 if self._gave_up else self._drain_s)  # but not for one that its client does not read
        elif now > self._drained_by + _LET_GO_S:
            self._exit_now(_FAILED, "the engine does not stop its work; the process ends")
        elif now > self._drained_by and not self._gave_up:
            self._gave_up = True
            engine.give_up()

    def _end(self, wait_s: float) -> None:
        """Shut down, waiting `wait_s` for responses; a part that hangs after that does not keep the process alive."""
        self.should_exit = True
        self.config.timeout_graceful_shutdown = max(1, round(wait_s))
        _light_fuse(wait_s + _LAST_S, self._exit_now, self.code or _FAILED, "shutdown hangs")

    def _exit_now(self, code: int, why: str) -> None:
        """End the process now, whatever its threads are doing, after telling waiting clients."""
        _light_fuse(2.0, os._exit, code)  # sending may hang as well
        _log.error(why)
        for connection in [*chain.from_iterable(slots.held for slots in self._slots)]:
            connection.farewell()
        flush()
        os._exit(code)


def _light_fuse(seconds: float, then: Callable[..., object], *arguments: object) -> None:
    fuse = threading.Timer(seconds, then, arguments)
    fuse.daemon = True
    fuse.start()
