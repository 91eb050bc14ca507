"""Processes that tests and benchmarks start: their environment, the wait until they are ready, and their end."""

import multiprocessing
import os
import re
import runpy
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

ROOT = Path(__file__).parents[1]
SERVICE = (sys.executable, "-m", "service")


FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["service.__main__", "training.fit", "sklearn.datasets", "torch._dynamo"])
"""Starts processes from one that has imported torch and the packages, which saves three seconds for each."""


class Process(Protocol):
    """What tests need of a process: of `subprocess.Popen`, or of one that is forked."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def redirect(output: Path) -> None:
    """Send output and errors of this process to a file, below Python's own streams too."""
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def _run_python(arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    redirect(output)
    how, what, *rest = arguments
    sys.argv = [how, *rest]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(what, {"__name__": "__main__"})  # noqa: S102


class Forked:
    """``python -m MODULE ...`` or ``python -c CODE ...`` in the root folder, with the methods of `subprocess.Popen`.

    Args:
        arguments: those after the interpreter.
        environment: its whole environment. Variables that libraries read when they are imported come too late.
        output: the file of its output and errors.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self._process = FORK.Process(target=_run_python, args=(list(arguments), dict(environment), output))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def forked(code: str, *arguments: str) -> tuple[int, str]:
    """Run code as `Forked`; return its exit status, and its output and errors."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.txt"
        status = Forked(["-c", code, *arguments], os.environ, output).wait(300)
        return status, output.read_text()


@dataclass(frozen=True)
class Running:
    """A process that is ready.

    Attributes:
        url: its address.
        process: the process.
        log: the file with its output and errors.
    """

    url: str
    process: Process
    log: Path


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def environment(repository: Path, **settings: object) -> dict[str, str]:
    """Return an environment with these settings of the service and none of the caller's; one thread by default."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PATHLINE_")}
    given = {"models_dir": repository, "port": 0, "threads": 1} | settings
    return kept | {f"PATHLINE_{name.upper()}": str(value) for name, value in given.items()}


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    url: str | None = None,
    seconds: float = 300,
    *,
    forked: bool = False,
) -> Iterator[Running]:
    """Run a command in the root folder and kill it at the end, if it still runs.

    Args:
        command: the program and its arguments.
        environment: its environment variables.
        url: its address, which must be ready (``/readyz``) first; by default, the address that it prints when it is.
        seconds: the longest wait until it is ready.
        forked: the command is of this interpreter, and may be `Forked`.

    Raises:
        RuntimeError: it ended, or was not ready in time; the message has its last output.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output.txt"
        log.touch()
        if forked:
            process: Process = Forked(command[1:], environment, log)
        else:
            with log.open("w") as output:
                process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + seconds
            while (ready := _printed(log) if url is None else _answering(url)) is None:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{' '.join(command)} did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield Running(ready, process, log)
        finally:
            process.kill()
            process.wait()


def start(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Start a command in the root folder, in a session of its own; its output and errors come as text."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def stop(process: Process, seconds: float = 60, number: int = signal.SIGTERM) -> int:
    """Send a signal to a process, wait for its end, and return its exit status; kill it if it takes longer."""
    process.send_signal(number)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _printed(log: Path) -> str | None:
    found = re.search(r" on (http://[\d.]+:\d+)\S*\s", log.read_text(errors="replace"))
    return found and found.group(1)


_NO_TRUST = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # each question would read the certificates of all authorities


def _answering(url: str) -> str | None:
    try:
        answer = httpx.get(f"{url}/readyz", timeout=5, trust_env=False, verify=_NO_TRUST)
        return url if answer.status_code == 200 else None
    except httpx.HTTPError:
        return None
