"""The image's healthcheck, run against servers with various answers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

Stages = list[list[tuple[str, str]]]


@pytest.fixture
def command(stages: Stages) -> list[str]:
    """Return the arguments of the `python` that the image runs as its healthcheck."""
    (check,) = [rest for word, rest in stages[-1] if word == "HEALTHCHECK"]
    program, *arguments = json.loads(check[check.index("CMD") + len("CMD") :])
    assert program == "python"
    return arguments


@contextmanager
def server_that_answers(status: int) -> Iterator[tuple[int, list[str]]]:
    """Run an HTTP server on a free port; yield the port and the list of requested paths."""
    urls: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            urls.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, urls
        finally:
            server.shutdown()
            thread.join()


def run(command: list[str], port: int) -> int:
    # a proxy in the environment must not be used for 127.0.0.1
    env = {"PATHLINE_PORT": str(port), "http_proxy": "http://127.0.0.1:9", "PATH": os.environ["PATH"]}
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, timeout=30).returncode


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (404, False)])
def test_it_follows_readyz(command: list[str], status: int, healthy: bool) -> None:
    with server_that_answers(status) as (port, urls):
        assert (run(command, port) == 0) == healthy
    assert urls == ["/readyz"]


def test_it_fails_where_nothing_listens(command: list[str]) -> None:
    with server_that_answers(200) as (port, _):
        pass
    assert run(command, port) != 0
