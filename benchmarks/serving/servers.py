"""The two services as processes on a core of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PATHLINE_THREADS": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(kind: str, checkpoint: Path, core: int) -> Iterator[str]:
    """Run `pathline` or `plain` with a checkpoint on a core; gives its address.

    Raises:
        RuntimeError: it did not become ready in two minutes.
    """
    port = _free_port()
    environment = {**os.environ, **ONE_THREAD}
    if kind == "pathline":
        # <repository>/<name>/<version>
        environment |= {"PATHLINE_MODELS_DIR": str(checkpoint.parents[1]), "PATHLINE_PORT": str(port)}
        command = [sys.executable, "-m", "service"]
    else:
        command = [sys.executable, "-m", "benchmarks.serving.plain", str(checkpoint), str(port)]
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(running.pid, {core})
        url = f"http://127.0.0.1:{port}"
        _wait(url, running)
        for task in Path(f"/proc/{running.pid}/task").iterdir():  # threads that began before the line above
            os.sched_setaffinity(int(task.name), {core})
        yield url
    finally:
        running.terminate()
        running.wait()


def _wait(url: str, running: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and running.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{running.args} did not become ready")
