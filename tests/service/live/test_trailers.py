"""Bytes around a body are counted, not kept: bytes sent compared with memory used."""

import contextlib
import socket

import httpx
import pytest

from .conftest import Live

_HEAD = b"POST /v1/sample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_MIB = 1 << 20


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (_HEAD + b"1\r\n \r\n0\r\n", b"X-Trailer: 1\r\n" * (_MIB // 14)),
        (_HEAD + b"1\r\n \r\n0\r\nX-Trailer: ", b"a" * _MIB),
        (_HEAD + b"1;a=", b"b" * _MIB),
        (b"", b"\r\n" * (_MIB // 2)),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ", b"a" * _MIB),
        (b"", b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n" * (_MIB // 34)),
    ],
)
def test_thirty_megabytes_around_a_body_are_not_kept(live: Live, start: bytes, more: bytes) -> None:
    httpx.get(f"{live.url}/livez")
    before, sent = live.resident_mib(), 0
    with socket.create_connection(live.address, 2) as raw:
        raw.settimeout(2)
        with contextlib.suppress(OSError):  # cut off, or no longer read, because the client reads no responses
            raw.sendall(start)
            while sent < 30:
                raw.sendall(more)
                sent += 1
        assert live.resident_mib() - before < 15
        assert httpx.get(f"{live.url}/livez", timeout=30).status_code == 200
