"""Clients that leave, wait too long, or do not read: nothing is left behind, and other clients are not affected."""

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ..waiting import eventually
from .conftest import Live

pytestmark = pytest.mark.anyio

LONG: dict[str, Any] = {"model": "net", "num_samples": 3, "solver": "euler", "steps": 10_000, "timeout_s": 60}

HARD: dict[str, Any] = {"model": "gaussian", "num_samples": 3, "solver": "bosh3", "rtol": 1e-13, "atol": 1e-13}
"""Tens of thousands of calls, which cannot be known beforehand."""


def sent(live: Live, body: dict[str, Any], path: str = "/v1/sample") -> socket.socket:
    """Open a connection and send a request without reading the response."""
    content = json.dumps(body).encode()
    raw = socket.create_connection(live.address, 10)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    raw.sendall(head.encode() + content)
    return raw


def test_five_hundred_clients_that_vanish_leave_nothing(live: Live) -> None:
    assert eventually(live.idle)
    kinds = [
        LONG,
        {**LONG, "num_samples": 20_000, "on_timeout": "partial"},
        {**LONG, "priority": "bulk"},
    ]  # the large ones are queued
    paths = ["/v1/sample", "/v1/sample/stream"]
    connections = [sent(live, kinds[k % 3], paths[k % 2]) for k in range(500)]
    assert eventually(lambda: live.metric("active_jobs") > 100)
    for raw in connections:
        raw.close()
    assert eventually(live.idle)
    calls = live.metric("batch_rows_count")
    time.sleep(0.3)
    assert live.metric("batch_rows_count") == calls
    assert live.metric("cancelled_nfe_total") > 0


async def test_two_hundred_timeouts_leave_no_task_behind(live: Live) -> None:
    body = {**HARD, "timeout_s": 0.2}
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        answers = [
            answer
            for _ in range(2)
            for answer in await asyncio.gather(*(http.post("/v1/sample", json=body) for _ in range(100)))
        ]
    assert {answer.status_code for answer in answers} <= {504, 429}
    assert any(answer.status_code == 504 for answer in answers)
    assert eventually(live.idle)


def test_memory_is_flat_over_five_thousand_aborted_requests(live: Live) -> None:
    def abort(count: int) -> None:
        for k in range(count // 50):
            held = [sent(live, {**LONG, "num_samples": 1 + k % 5}) for _ in range(50)]
            for raw in held:
                raw.close()

    abort(1000)
    assert eventually(live.idle)
    before = live.resident_mib()
    abort(4000)
    assert eventually(live.idle)
    assert live.resident_mib() < before + 15


def test_a_client_that_never_reads_holds_nobody_up(live: Live) -> None:
    large = {"model": "net", "num_samples": 50_000, "solver": "euler", "steps": 1, "trace": "none", "timeout_s": 600}
    held = [sent(live, large, path) for path in ("/v1/sample", "/v1/sample/stream") for _ in range(3)]
    slow = sent(live, large)
    try:
        assert eventually(lambda: live.metric("active_jobs") == 0)
        answer = httpx.post(f"{live.url}/v1/sample", json={"model": "net", "solver": "rk4", "steps": 4}, timeout=60)
        assert answer.status_code == 200
        received = bytearray()
        slow.settimeout(60)
        while not received.endswith(b"\r\n0\r\n\r\n") and (part := slow.recv(20_000)):
            received += part
            assert received.startswith(b"HTTP/1.1 200 "), received
            time.sleep(0.001)
        assert received.endswith(b"}\r\n0\r\n\r\n")  # slowly, but to the end
        assert len(received) > 1_000_000
    finally:
        for raw in [*held, slow]:
            raw.close()
    assert eventually(live.idle)


def test_a_stream_tells_progress_and_ends_with_the_plain_answer(live: Live) -> None:
    body = {**LONG, "steps": 4_000, "seed": 3, "save_at": [0.25, 1.0]}
    with httpx.stream("POST", f"{live.url}/v1/sample/stream", json=body, timeout=60) as answer:
        blocks = "".join(answer.iter_text()).split("\n\n")
    found = [block.split("\n", 1) for block in blocks if block and not block.startswith(":")]
    names = [name.removeprefix("event: ") for name, _ in found]
    data = [json.loads(text.removeprefix("data: ")) for _, text in found]
    assert (names[0], names[-1], names.count("sample")) == ("start", "completed", 2)
    progress_events = [event for name, event in zip(names, data, strict=True) if name == "progress"]
    assert len(progress_events) >= 3
    for earlier, later in itertools.pairwise(progress_events):
        assert earlier["nfe"] <= later["nfe"]
        assert earlier["share"] <= later["share"]
        assert earlier["t"] <= later["t"]
    assert names.index("sample") < len(names) - 3  # the state at 0.25 comes before the end
    plain = httpx.post(f"{live.url}/v1/sample", json=body, timeout=60).json()
    assert {**data[-1], "latency": 0} == {**plain, "latency": 0}


def test_keep_alive_is_used_again_after_six_idle_seconds(live: Live) -> None:
    with socket.create_connection(live.address, 10) as raw:
        for pause in (6, 0):
            raw.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b'"}') and (part := raw.recv(4096)):
                answer += part
            assert answer.startswith(b"HTTP/1.1 200 ")
            time.sleep(pause)


def test_sigterm_under_load_loses_no_accepted_request(launch: Callable[..., Live]) -> None:
    live = launch(drain_s=60)
    held = [
        sent(live, {**LONG, "num_samples": 100, "steps": 2_000}, path)
        for path in ("/v1/sample", "/v1/sample/stream") * 20
    ]
    assert eventually(lambda: live.metric("active_jobs") == 40)
    live.process.terminate()
    answers = []
    for raw in held:
        raw.settimeout(60)
        answer = b""
        while part := raw.recv(65536):
            answer += part
            if b'"latency":{' in answer and answer.rstrip().endswith((b"}", b"\r\n0")):
                break
        answers.append(answer)
        raw.close()
    assert all(answer.startswith(b"HTTP/1.1 200 ") and b'"status":"success"' in answer for answer in answers)
    assert live.process.wait(30) == 0
