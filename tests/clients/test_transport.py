"""Servers that misbehave on real sockets."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

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
def answering(reply: bytes | None, again: bytes | None = None) -> Iterator[str]:
    """Accept connections, read the request, send `reply` and close.

    With None, or if something is to be sent `again` and again, it goes on until the client leaves.
    """
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
                        continue
                    connection.sendall(reply)
                    with suppress(OSError):
                        while again:
                            connection.sendall(again)
                            time.sleep(0.01)
                        if again is not None:
                            connection.recv(1)

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


CHUNKS = HEAD.replace(b"content-length: 1000", b"transfer-encoding: chunked")
ZIPPED = (
    CHUNKS.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + b"a\r\n\x1f\x8b\x08" + b"\0" * 6 + b"\xff\r\n"
)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("reply", "again", "error"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n", pathline.RequestTimeout),
        (CHUNKS, b"1\r\nP\r\n", pathline.RequestTimeout),
        (CHUNKS + b"1;", b"x", pathline.RequestTimeout),
        (ZIPPED, b"5\r\n\0\0\0\xff\xff\r\n", pathline.RequestTimeout),  # unpacks to nothing
        (CHUNKS + b"de0b6b3a7640000\r\nPK", b"", pathline.ProtocolError),
        (HEAD.replace(b"1000", b"1000000000000000000"), b"", pathline.ProtocolError),
    ],
    ids=["interim responses", "chunks", "a chunk's extension", "empty blocks", "a chunk's size", "a length"],
)
def test_an_endless_answer_ends(kind: Any, reply: bytes, again: bytes, error: type[Exception]) -> None:
    def sample(url: str) -> Any:
        silent = 60.0  # what claims too much is refused before anything else arrives
        client = kind(url, timeout=0.2 if again else silent, retry=TWICE)
        result = client.sample("moons", timeout_s=0.1)
        return result if kind is Client else asyncio.run(result)

    with answering(reply, again) as url, pytest.raises(error) as caught:
        sample(url)
    words = "raise timeout_s, or the client's timeout" if again else "claims to send 1,000,000,000,000,000,000 bytes"
    assert words in str(caught.value)
    assert isinstance(caught.value, pathline.PathlineError)
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
