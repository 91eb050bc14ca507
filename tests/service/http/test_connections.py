"""Connections to a real process: slow, rude or wrong clients are answered or cut off; idle ones make room."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.http.connections import Slots
from tests.service.serving import serving

HEAD = b"POST /v1/sample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"model": "moons", "num_samples": 1, "solver": "euler", "steps": 1}'
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
_SAVE = {"solver": "euler", "steps": 50, "save_at": [k / 50 for k in range(51)], "trace": "none"}
_ASK = json.dumps({"model": "moons", "num_samples": 50_000, **_SAVE}).encode()
LARGE = HEAD + b"Accept: application/x-npz\r\nContent-Length: %d\r\n\r\n" % len(_ASK) + _ASK
"""A response of 20 MB: more than the buffers of the system hold."""


@pytest.fixture(scope="module")
def address(repository: Path) -> Iterator[tuple[str, int]]:
    limits = {"receive_s": "0.6", "send_s": "0.6", "keep_alive_s": "1", "max_header_bytes": "2048"}
    with serving(repository, **limits) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


def _ask(address: tuple[str, int], *parts: bytes, pause: float = 0.0) -> tuple[int, dict[str, str], bytes]:
    """Send parts with pauses between, read until the service closes; status, headers and body of the first answer."""
    with socket.create_connection(address, 10) as raw:
        for part in parts:
            raw.sendall(part)
            time.sleep(pause)
        received = b""
        while part := raw.recv(1 << 16):
            received += part
    head, _, body = received.partition(b"\r\n\r\n")
    if not head:
        return 0, {}, b""
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


def _is_problem(answer: tuple[int, dict[str, str], bytes], status: int, slug: str) -> None:
    found, headers, body = answer
    assert found == status
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    problem = json.loads(body)
    assert len(body) == int(headers["content-length"])
    assert (problem["type"], problem["status"]) == (f"/problems/{slug}", status)
    assert problem["request_id"] == headers["x-request-id"]
    assert problem["detail"]


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /v1/sam",
        HEAD,
        HEAD + b"Content-Length: 100\r\n\r\n",
        HEAD + b"Content-Length: 100\r\n\r\n" + BODY,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
)
def test_half_a_request(address: tuple[str, int], sent: bytes) -> None:
    _is_problem(_ask(address, sent), 408, "request-timeout")


@pytest.mark.parametrize("size", [b"1000001", b"de0b6b3a7640000", b"ffffffffffffff;x=1"])
def test_a_chunk_that_claims_too_much_is_refused_before_it_arrives(address: tuple[str, int], size: bytes) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    _is_problem(_ask(address, head + size + b"\r\n{"), 413, "body-too-large")
    _is_problem(_ask(address, head + b"1\r\n{\r\n", size + b"\r\n", pause=0.02), 413, "body-too-large")


def test_a_byte_now_and_then_does_not_help(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 10) as raw:
        raw.sendall(HEAD)
        end = time.monotonic() + 60  # only a safeguard: the connection is closed long before that
        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012  (whichever byte finds the connection closed)
            while time.monotonic() < end:
                raw.sendall(b"X")
                time.sleep(0.1)


@pytest.mark.parametrize("sent", [b"", b"\r\n", WHOLE, WHOLE + b"\r\n"])
def test_an_idle_connection_is_closed(address: tuple[str, int], sent: bytes) -> None:
    status, _, _ = _ask(address, sent)
    assert status == (200 if sent.startswith(HEAD) else 0)


def test_each_request_of_a_connection_has_its_own_time(address: tuple[str, int]) -> None:
    with socket.create_connection(address, 10) as raw:
        for _ in range(8):  # together longer than a request may take
            raw.sendall(WHOLE[:40])
            time.sleep(0.1)
            raw.sendall(WHOLE[40:])
            received = b""
            while not received.endswith(b"}}"):
                received += raw.recv(1 << 16)
            assert received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"X-Long: " + b"a" * 4096 + b"\r\n\r\n",
        HEAD + b"X-Long: " + b"a" * 4096,
        b"GET /" + b"a" * 4096 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"".join(b"X-%d: 1\r\n" % k for k in range(1000)) + b"\r\n",
    ],
)
def test_a_head_that_is_too_large(address: tuple[str, int], sent: bytes) -> None:
    _is_problem(_ask(address, sent), 431, "head-too-large")
    _is_problem(_ask(address, sent[:1000], sent[1000:], pause=0.02), 431, "head-too-large")


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /livez HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nBad Header: 1\r\n\r\n",
        HEAD + b"Content-Length: ten\r\n\r\n",
        HEAD + b"host: y\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nX-Host: x\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET ftp://x HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: x, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD + b"Connection: upgrade\r\nUpgrade: a\nX: b\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Connection: upgrade\r\nUpgrade:\r\n h2c\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"X: y\r\n \t\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Bad Header",
    ],
)
def test_what_is_no_http(address: tuple[str, int], sent: bytes) -> None:
    _is_problem(_ask(address, sent), 400, "bad-request")


def test_garbage_after_a_request_does_not_garble_its_answer(address: tuple[str, int]) -> None:
    status, _, body = _ask(address, WHOLE, b"garbage\r\n\r\n", pause=0.3)
    assert status == 200
    assert body.count(b"HTTP/1.1 400 ") == 1


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_garbage_in_the_same_piece_does_not_cost_the_answer(address: tuple[str, int], pause: float) -> None:
    status, _, body = _ask(address, WHOLE + b"garbage\r\n\r\n", b"more garbage\r\n\r\n", pause=pause)
    assert status == 200
    assert body.count(b"HTTP/1.1 400 ") == 1
    status, _, body = _ask(address, WHOLE + CHUNKED + b"zz\r\n")  # the second one has a bad body and is never started
    assert status == 200
    assert body.count(b"HTTP/1.1 400 ") == 1
    assert body.count(b"HTTP/1.1 200 ") == 0


CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_BODY_CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    "sent",
    [
        CHUNKED + _BODY_CHUNK + b"0\r\n" + b"X-T: 1\r\n" * 4000,
        CHUNKED + _BODY_CHUNK + b"0\r\nX-T: " + b"a" * 40_000,
        CHUNKED + b"5;a=" + b"b" * 40_000,
        CHUNKED + b"5;" + b"a=b;" * 10_000,
        b"\r\n" * 20_000,
    ],
)
def test_what_is_neither_head_nor_body_is_bounded(address: tuple[str, int], sent: bytes) -> None:
    answer = _ask(address, sent)
    _is_problem(answer, 400, "bad-request")
    assert b"PATHLINE_MAX_HEADER_BYTES" in answer[2]


def test_small_chunks_and_a_few_trailers_are_fine(address: tuple[str, int]) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b" " * 20_000 + BODY)
    status, _, body = _ask(address, CHUNKED + chunks + b"0\r\nX-Sum: 1\r\n\r\n")
    assert status == 200
    assert json.loads(body)["shape"] == [1, 2]


def test_a_trailer_is_no_header(address: tuple[str, int]) -> None:
    tail = b"0\r\nX-Request-ID: trailer\r\nContent-Encoding: gzip\r\n\r\n"
    status, headers, _ = _ask(address, CHUNKED + _BODY_CHUNK + tail)
    assert status == 200
    assert headers["x-request-id"] != "trailer"


def test_many_requests_in_one_piece_are_taken_in_a_few_at_a_time(address: tuple[str, int]) -> None:
    requests = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    _, _, received = _ask(address, requests * 3000)
    assert received.count(b"HTTP/1.1 200 ") == 2999  # in addition to the first one, which is counted separately


def test_two_requests_in_one_piece(address: tuple[str, int]) -> None:
    _, _, received = _ask(address, WHOLE + WHOLE)
    assert received.count(b"HTTP/1.1 200 ") == 1  # in addition to the first one, which is counted separately


LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HIDDEN = b"GET /v1/load HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADES = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    b"upgrade:TLS/1.2\r\nconnection: keep-alive, upgrade\r\n",
    b"Upgrade: unheard-of/9, h2c\r\nX-Between: 1\r\nUPGRADE:\t\r\nConnection: upgrade\r\n",
]


def _statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


def _all(address: tuple[str, int], *parts: bytes) -> bytes:
    with socket.create_connection(address, 10) as raw:
        for part in parts:
            raw.sendall(part)
            time.sleep(0.03 if len(parts) > 1 else 0)
        received = b""
        while part := raw.recv(1 << 16):
            received += part
    return received


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("framing", ["length", "chunked", "none"])
def test_an_upgrade_that_is_not_taken_changes_nothing(address: tuple[str, int], upgrade: bytes, framing: str) -> None:
    head = HEAD + upgrade
    for body, status in ((BODY, 200), (HIDDEN, 400)):  # the second one is no JSON, and must not be run as a request
        whole = {
            "length": head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
            "chunked": head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
            "none": b"GET /livez HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n",
        }[framing]
        expected = [200 if framing == "none" else status, 200]
        assert _statuses(_all(address, whole + LIVE)) == expected
        assert _statuses(_all(address, WHOLE + whole + LIVE)) == [200, *expected]
        for place in (40, len(head) - 3, len(whole) - len(body), len(whole) - 3):  # in two segments
            assert _statuses(_all(address, whole[:place], whole[place:] + LIVE)) == expected


@pytest.mark.parametrize("coding", [b"identity", b"xchunked", b"chunked, gzip", b""])
def test_an_upgrade_does_not_hide_a_body_without_a_known_end(address: tuple[str, int], coding: bytes) -> None:
    sent = HEAD + UPGRADES[1] + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + HIDDEN
    _is_problem(_ask(address, sent), 400, "bad-request")


def test_spaces_around_a_value_are_no_part_of_it(address: tuple[str, int]) -> None:
    head = HEAD + b"X-Request-ID: \t named \t\r\nX-Empty: \t\r\nContent-Length: %d \t \r\n\r\n" % len(BODY)
    received = _all(address, head + BODY + LIVE)
    assert _statuses(received) == [200, 200]
    assert received.lower().count(b"\r\nx-request-id: named\r\n") == 1
    chunked = b"Transfer-Encoding: chunked  \r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    for more in (b"", *UPGRADES):
        assert _statuses(_all(address, HEAD + more + chunked + LIVE)) == [200, 200]


def test_the_body_of_a_get_request_is_no_request(address: tuple[str, int]) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: x\r\n" + UPGRADES[0]
    assert _statuses(_all(address, head + b"Content-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN + LIVE)) == [200, 200]


def test_a_body_that_looks_like_an_upgrade_is_kept(address: tuple[str, int]) -> None:
    text = BODY[:-1] + b', "replay": "\r\nUpgrade: h2c\r\n"}'
    [answer] = [_all(address, HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)]
    assert _statuses(answer) == [400]  # a control character in a JSON string
    assert b"control character" in answer


@pytest.mark.parametrize("target", [b"http://x", b"HTTP://x:80/livez", b"http://x?a=/b", b"https://x/livez?a=1"])
def test_the_target_may_be_absolute(address: tuple[str, int], target: bytes) -> None:
    status, _, body = _ask(address, b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target)
    assert status == 200
    assert (b"<html" in body) == (b"/livez" not in target)


def test_http_1_0_needs_no_host(address: tuple[str, int]) -> None:
    assert _ask(address, b"GET /livez HTTP/1.0\r\n\r\n")[0] == 200


def _half_closed(address: tuple[str, int], sent: bytes) -> list[int]:
    with socket.create_connection(address, 10) as raw:
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        received = b""
        while part := raw.recv(1 << 16):
            received += part
    return [status for status in _statuses(received) if status != 102]


def test_a_client_that_sends_no_more_gets_its_responses(address: tuple[str, int]) -> None:
    large = BODY.replace(b'"steps": 1', b'"steps": 10000')
    slow = HEAD + b"Content-Length: %d\r\n\r\n" % len(large) + large
    assert _half_closed(address, slow) == [200]
    assert _half_closed(address, WHOLE + slow + WHOLE) == [200, 200, 200]
    assert _half_closed(address, CHUNKED + _BODY_CHUNK + b"0\r\n\r\n") == [200]
    for part in (WHOLE[:-1], HEAD, b""):
        assert _half_closed(address, part) == []
    assert _half_closed(address, WHOLE + WHOLE[:-1])[:1] == [200]


def test_connect_is_refused(address: tuple[str, int]) -> None:
    _is_problem(_ask(address, b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n" + HIDDEN), 400, "bad-request")


def test_every_byte_may_come_alone(address: tuple[str, int]) -> None:
    chunked = HEAD + UPGRADES[0] + b"Transfer-Encoding: chunked\r\n\r\n%x;a=b\r\n%b\r\n0\r\nX-T: 1\r\n\r\n"
    request = b"\r\n" + chunked % (len(BODY), BODY) + LIVE
    with socket.create_connection(address, 10) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(request)):
            raw.sendall(request[place : place + 1])
        received = b""
        while part := raw.recv(1 << 16):
            received += part
    assert _statuses(received) == [200, 200]


@pytest.mark.parametrize(("path", "samples"), [("/v1/sample", 1), ("/v1/sample", 20_000), ("/v1/sample/stream", 1)])
def test_http_1_0_gets_no_chunks(address: tuple[str, int], path: str, samples: int) -> None:
    body = BODY.replace(b'"num_samples": 1', b'"num_samples": %d' % samples)
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"/v1/sample", path.encode())
    status, headers, received = _ask(address, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert status == 200
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"
    assert "content-length" not in headers or int(headers["content-length"]) == len(received)
    if path == "/v1/sample":
        assert json.loads(received)["shape"] == [samples, 2]
    else:
        assert received.startswith(b"event: start")
        assert received.endswith(b"}\n\n")
    expecting = head + b"expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert _statuses(_all(address, expecting)) == [200]  # no 100, which it does not know
    again = _all(address, WHOLE + head + b"Content-Length: %d\r\n\r\n" % len(body) + body + LIVE)
    assert _statuses(again) == [200, 200]  # and nothing after it


def test_a_client_that_never_reads_is_cut_off(address: tuple[str, int]) -> None:
    def metric(name: str) -> float:
        text = httpx.get(f"http://{address[0]}:{address[1]}/metrics").text
        return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"pathline_{name} ")))

    cut = 'refused_connections_total{reason="slow-reader"}'
    before = metric(cut)
    with socket.create_connection(address, 60) as raw:  # solving may take a while on a busy machine
        raw.sendall(LARGE)
        first = raw.recv(1)
        _until(lambda: metric(cut) > before)
        received = bytearray(first)
        with contextlib.suppress(ConnectionResetError):
            while part := raw.recv(1 << 16):
                received += part
        assert received.startswith(b"HTTP/1.1 200 ")
        assert not received.endswith(b"0\r\n\r\n")
    _until(lambda: metric("active_jobs") == 0)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60  # abandoned work may take a while to end on a busy machine
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class _Open:
    """An open connection."""

    def __init__(self) -> None:
        self.gave_way = 0

    def give_way(self) -> None:
        self.gave_way += 1


def _opened() -> Any:
    return _Open()


def _taken(slots: Slots, count: int) -> list[Any]:
    connections = [_opened() for _ in range(count)]
    assert all(slots.take(connection) for connection in connections)
    return connections


def test_the_longest_idle_gives_way() -> None:
    slots = Slots(3)
    first, second, third = _taken(slots, 3)
    slots.mark_busy(first)
    slots.mark_idle(first)  # now the second one has been idle longest
    assert slots.take(_opened())
    assert [connection.gave_way for connection in (first, second, third)] == [0, 1, 0]


def test_busy_connections_stay() -> None:
    slots = Slots(2)
    busy = _taken(slots, 2)
    slots.mark_busy(busy[0])
    last = _opened()
    assert slots.take(last)
    slots.mark_busy(last)
    assert not slots.take(_opened())
    assert [connection.gave_way for connection in busy] == [0, 1]


def test_a_slot_is_released_once() -> None:
    slots = Slots(1)
    (connection,) = _taken(slots, 1)
    slots.release(connection)
    slots.release(connection)
    slots.mark_idle(connection)  # it has no slot, so it does not count as idle
    _taken(slots, 1)
    assert connection.gave_way == 0


@pytest.mark.parametrize("count", [1, 50])
def test_never_more_connections_than_the_limit(count: int) -> None:
    slots = Slots(5)
    connections = _taken(slots, 5 + count)
    assert len(slots.held) == 5
    assert sum(connection.gave_way for connection in connections) == count
