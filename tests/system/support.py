"""Shared parts of the system tests."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

ENDLESS = {
    "num_samples": 20_000,
    "solver": "rk4-10000",
    "max_nfe": 40_000,
    "timeout_s": 600,
    "on_timeout": "partial",  # so that it is never refused as too slow
    "trace": "none",
}
"""What a request asks for that lasts minutes on any machine, of the smallest model."""


def until(what: str, condition: Callable[[], Any], seconds: float = 60) -> Any:
    """Return the first true result of `condition`; fail after that many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.1)
    return pytest.fail(f"waited {seconds:g} s for {what}")


def sent(url: str, path: str = "/v1/sample", **body: Any) -> socket.socket:
    """Send a request and return its connection, without waiting for a response; closing it disconnects the client."""
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    connection = socket.create_connection((host, int(port)), 60)
    connection.sendall(f"{head}\r\n\r\n".encode() + content)
    return connection
