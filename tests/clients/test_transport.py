"""Servers that misbehave on real sockets."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pathline
import pytest
from pathline import AsyncClient, Client, RetryPolicy
from pathline._response import sending
from pathline._route import Route

TWICE = RetryPolicy(max_attempts=2, base_s=0.001)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-npz\r\ncontent-length: 1000\r\n\r\n"


def read_request(connection: socket.socket) -> None:
    with connection.makefile("rb") as file:
        length = 0
        if not file.peek()[:1].isalpha():  # TLS, which does not begin with a letter
            return
        while line := file.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        file.read(length)


@contextmanager
def answering(reply: bytes | None) -> Iterator[str]:
    """Accept connections, read the request, send `reply` and close; with None, stay silent until the client leaves."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    read_request(connection)
                    if reply is None:
                        connection.recv(1)
                    else:
                        connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=5)


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with (
        Client(url, retry=TWICE) as client,
        pytest.raises(pathline.TransportError, match="is the service running") as e,
    ):
        client.models()
    assert url in str(e.value)
    assert e.value.attempts == 2


def test_https_where_http_is_spoken_is_told_at_once() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url, Client("https" + url.removeprefix("http")) as client:
        with pytest.raises(pathline.TransportError, match="try http:// instead of https://") as e:
            client.models()
        assert e.value.attempts == 1


def test_a_certificate_that_nobody_trusts_is_told_at_once() -> None:
    reason = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate"
    with pytest.raises(pathline.TransportError, match="SSL_CERT_FILE"), sending("https://127.0.0.1", Route()):
        raise httpx.ConnectError(reason)


def test_the_connection_breaks_before_an_answer() -> None:
    with answering(b"") as url, Client(url, retry=TWICE) as client, pytest.raises(pathline.TransportError):
        client.models()


def test_the_answer_is_cut_off_half_way() -> None:
    with (
        answering(HEAD + b"PK") as url,
        Client(url, retry=TWICE) as client,
        pytest.raises(pathline.ProtocolError, match="cut off half-way") as caught,
    ):
        client.sample("moons")
    assert caught.value.attempts == 2
    assert isinstance(caught.value, pathline.ProtocolError)


def test_the_async_client_sees_the_same() -> None:
    async def run(url: str) -> None:
        async with AsyncClient(url, retry=TWICE) as client:
            await client.sample("moons")

    with answering(HEAD + b"PK") as url, pytest.raises(pathline.ProtocolError, match="cut off half-way"):
        asyncio.run(run(url))


def test_silence_ends_in_a_timeout_that_is_not_repeated() -> None:
    with (
        answering(None) as url,
        Client(url, timeout=0.05, retry=TWICE) as client,
        pytest.raises(pathline.RequestTimeout, match="did not respond in time") as caught,
    ):
        client.sample("moons", timeout_s=0.05)
    assert caught.value.attempts == 1


def test_something_that_is_not_http() -> None:
    with (
        answering(b"SSH-2.0-OpenSSH\r\n") as url,
        Client(url, retry=TWICE) as client,
        pytest.raises(pathline.TransportError),
    ):
        client.models()


def test_it_works_where_it_was_copied_and_not_installed() -> None:
    code = (
        "import importlib.metadata as metadata\n"
        "def version(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
        "import pathline, pathline.cli\n"
        "print(pathline.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0+copied\n"
