"""Processes to measure: a service, nginx in front of it, and the same service on Ray Serve."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[2]
RAY = ROOT / ".venv" / "fleet" / "bin" / "python"
NGINX = Path("/usr/sbin/nginx")
CONF = ROOT / "deploy" / "nginx" / "pathline.conf"

_START_S = 120.0


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**settings: str) -> dict[str, str]:
    """Return the environment of a service: one thread, and none of the caller's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PATHLINE_")}
    ours = {"MODELS_DIR": str(ROOT / "checkpoints"), "THREADS": "1", "DEVICE": "cpu", **settings}
    return kept | {"OMP_NUM_THREADS": "1"} | {f"PATHLINE_{name}": value for name, value in ours.items()}


@contextmanager
def _process(command: list[str], ready: str, env: Mapping[str, str]) -> Iterator[None]:
    with tempfile.TemporaryFile("w+") as log:
        running = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, text=True)
        try:
            end = time.monotonic() + _START_S
            while not _answers(ready):
                if running.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise SystemExit(f"{' '.join(command)} did not start:\n{log.read()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(60)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:  # noqa: S310  (ours)
            return answer.status == 200
    except OSError:
        return False


@contextmanager
def service() -> Iterator[str]:
    """Run one service; yield its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _process([sys.executable, "-m", "service"], f"{url}/readyz", environment(PORT=str(port))):
        yield url


@contextmanager
def nginx(behind: str) -> Iterator[str]:
    """Run nginx, configured as in deploy/nginx, in front of a service; yield its address."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        conf = CONF.read_text().replace("server replica:8000", f"server {behind.removeprefix('http://')}")
        conf = conf.replace("listen 8080;", f"listen 127.0.0.1:{port};")
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "".join(f"{kind}_temp_path {name}/{kind};" for kind in kinds)
        file = Path(name) / "nginx.conf"
        file.write_text(
            f"daemon off; worker_processes 1; pid {name}/pid; error_log {name}/error.log;\n"
            f"events {{ worker_connections 1024; }}\nhttp {{ access_log off; {paths}\n{conf}\n}}\n"
        )
        url = f"http://127.0.0.1:{port}"
        with _process([str(NGINX), "-p", name, "-c", str(file)], f"{url}/readyz", os.environ):
            yield url


@contextmanager
def ray(haproxy: bool, route_by: str = "work") -> Iterator[str]:
    """Run one replica on Ray Serve behind Ray's own proxy, or HAProxy in Ray's fastest mode; yield its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    modes = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED")
    env = environment(PORT=str(port)) | {name: str(int(haproxy)) for name in modes}
    command = [str(RAY), "-m", "fleet", "serve", "--replicas", "1", "--route-by", route_by]
    with _process(command, f"{url}/readyz", env):
        yield url


def version(command: list[str]) -> str:
    """Return the version that a program reports."""
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+[.\d]*", said.stdout + said.stderr)
    return found.group() if found else "?"
