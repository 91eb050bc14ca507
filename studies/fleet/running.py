"""Processes to measure: a service, nginx in front of it, and the same service on Ray Serve."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import processes
from tests.processes import ROOT, SERVICE, free_port, stop

RAY = ROOT / ".venv" / "fleet" / "bin" / "python"
NGINX = Path("/usr/sbin/nginx")
CONF = ROOT / "deploy" / "nginx" / "pathline.conf"

_START_S = 120.0


def environment(**settings: object) -> dict[str, str]:
    """Return the environment of a service on a CPU: one thread, and none of the caller's settings."""
    return processes.environment(ROOT / "checkpoints", device="cpu", **settings) | {"OMP_NUM_THREADS": "1"}


@contextmanager
def _running(command: Sequence[str], env: Mapping[str, str], url: str | None = None) -> Iterator[str]:
    with processes.running(command, env, url, _START_S) as found:
        try:
            yield found.url
        finally:
            stop(found.process)


@contextmanager
def service() -> Iterator[str]:
    """Run one service; yield its address."""
    with _running(SERVICE, environment()) as url:
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
        command = [str(NGINX), "-p", name, "-c", str(file)]
        with _running(command, os.environ, f"http://127.0.0.1:{port}") as url:
            yield url


@contextmanager
def ray(haproxy: bool, route_by: str = "work") -> Iterator[str]:
    """Run one replica on Ray Serve behind Ray's own proxy, or HAProxy in Ray's fastest mode; yield its address."""
    port = free_port()
    modes = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_THROUGHPUT_OPTIMIZED")
    env = environment(port=port) | {name: str(int(haproxy)) for name in modes}
    command = [str(RAY), "-m", "fleet", "serve", "--replicas", "1", "--route-by", route_by]
    with _running(command, env, f"http://127.0.0.1:{port}") as url:
        yield url


def version(command: list[str]) -> str:
    """Return the version that a program reports."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+[.\d]*", done.stdout + done.stderr)
    return found.group() if found else "?"
