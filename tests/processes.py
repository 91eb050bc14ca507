"""Processes that tests and benchmarks start: their environment, the wait until they are ready, and their end."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
SERVICE = (sys.executable, "-m", "service")


@dataclass(frozen=True)
class Running:
    """A process that is ready.

    Attributes:
        url: its address.
        process: the process.
        log: the file with its output and errors.
    """

    url: str
    process: "subprocess.Popen[str]"
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
    command: Sequence[str], environment: Mapping[str, str], url: str | None = None, seconds: float = 300
) -> Iterator[Running]:
    """Run a command in the root folder and kill it at the end, if it still runs.

    Args:
        command: the program and its arguments.
        environment: its environment variables.
        url: its address, which must be ready (``/readyz``) first; by default, the address that it prints when it is.
        seconds: the longest wait until it is ready.

    Raises:
        RuntimeError: it ended, or was not ready in time; the message has its last output.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "output.txt"
        with log.open("w") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
            )
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


def stop(process: "subprocess.Popen[str]", seconds: float = 60, number: int = signal.SIGTERM) -> int:
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


def _answering(url: str) -> str | None:
    try:
        return url if httpx.get(f"{url}/readyz", timeout=5, trust_env=False).status_code == 200 else None
    except httpx.HTTPError:
        return None
