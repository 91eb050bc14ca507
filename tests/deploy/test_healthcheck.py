"""The image's healthcheck, run against servers with various answers."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

ROOT = Path(__file__).parents[2]

Stages = list[list[tuple[str, str]]]


@pytest.fixture
def command(stages: Stages) -> list[str]:
    """Return the arguments of the `python` that the image runs as its healthcheck."""
    (check,) = [rest for word, rest in stages[-1] if word == "HEALTHCHECK"]
    program, *arguments = json.loads(check[check.index("CMD") + len("CMD") :])
    assert program == "python"
    return arguments


class _Server(HTTPServer):
    def __init__(self, address: "tuple[str, int] | str", handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = (
            socket.AF_UNIX if isinstance(address, str) else socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        )
        super().__init__(address, handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_port = 0 if isinstance(self.server_address, str) else self.socket.getsockname()[1]


@contextmanager
def server_that_answers(
    status: int, key: str = "", address: "tuple[str, int] | str" = ("127.0.0.1", 0)
) -> Iterator[tuple[int, list[str]]]:
    """Run an HTTP server; yield the port and the list of requested paths.

    Args:
        status: of all responses, but 401 without the key.
        key: if requests need one.
        address: host and port (0: a free one), or the path of a Unix socket.
    """
    urls: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            urls.append(self.path)
            self.send_response(status if self.headers.get("X-API-Key", "") in (key, key or "any") else 401)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
            """Say nothing."""

        def address_string(self) -> str:
            return ""

    with _Server(address, Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, urls
        finally:
            server.shutdown()
            thread.join()


def run(command: list[str], port: int, **settings: str) -> int:
    # a proxy in the environment must not be used for 127.0.0.1
    env = {"PATHLINE_PORT": str(port), "http_proxy": "http://127.0.0.1:9", "PATH": os.environ["PATH"]}
    env |= {f"PATHLINE_{name}": value for name, value in settings.items()}
    program = [sys.executable, "-S", *command]  # nothing but the standard library
    return subprocess.run(program, cwd=ROOT, env=env, capture_output=True, timeout=30).returncode


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (404, False)])
def test_it_follows_readyz(command: list[str], status: int, healthy: bool) -> None:
    with server_that_answers(status) as (port, urls):
        assert (run(command, port) == 0) == healthy
    assert urls == ["/readyz"]


def test_it_fails_where_nothing_listens(command: list[str]) -> None:
    with server_that_answers(200) as (port, _):
        pass
    assert run(command, port) != 0


@pytest.mark.parametrize(
    ("status", "settings", "healthy"),
    [
        (200, {"API_KEYS": "k1,k2"}, True),
        (503, {"API_KEYS": '"k1","k2"'}, False),
        (200, {"ADMIN_KEY": "k1"}, True),
        (200, {}, True),  # the key is in a settings file: it answers, and more cannot be known
        (200, {"API_KEYS": "another"}, False),
    ],
)
def test_where_health_needs_a_key(command: list[str], status: int, settings: dict[str, str], healthy: bool) -> None:
    with server_that_answers(status, key="k1") as (port, _):
        assert (run(command, port, **settings) == 0) == healthy


def test_it_goes_where_the_service_listens(command: list[str], tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with server_that_answers(200, address=path) as (_, urls):
        assert run(command, 1, UDS=path) == 0
        assert urls == ["/readyz"]
    with server_that_answers(200, address=("::1", 0)) as (port, _):
        assert [run(command, port, HOST=host) for host in ("::", "::1", "0.0.0.0")] == [0, 0, 1]  # noqa: S104
