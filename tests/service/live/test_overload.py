"""Overload: truthful refusals, a live process, and metrics that agree with the clients."""

import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from ..waiting import eventually
from .conftest import Live

pytestmark = pytest.mark.anyio


_HEALTH_CHECKS = """
import json, socket, sys, time
raw = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
waited, end = [], time.monotonic() + float(sys.argv[3])
while time.monotonic() < end:
    begin = time.perf_counter()
    raw.sendall(b"GET /livez HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    answer = b""
    while not answer.endswith(b'"}'):
        part = raw.recv(4096)
        assert part, "closed"
        answer += part
    waited.append(time.perf_counter() - begin)
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    time.sleep(0.02)
print(json.dumps(waited))
"""


async def _livez(live: Live, seconds: float) -> list[float]:
    """Return the times of many health checks, sent from a separate process, as this one is busy."""
    host, port = live.address
    arguments = [sys.executable, "-c", _HEALTH_CHECKS, host, str(port), str(seconds)]
    checks = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    stated, _ = await checks.communicate()
    assert checks.returncode == 0
    return json.loads(stated)


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, str, bytes]:
    """Return status, head and body of the response. httpx takes 20 ms per request among 150, too slow for overload."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = re.search(r"^content-length: (\d+)", head, re.MULTILINE)
    assert length is not None
    return int(head.split()[1]), head, await reader.readexactly(int(length[1]))


async def test_ten_times_overload_gives_only_200_429_and_504(launch: Callable[..., Live]) -> None:
    live = launch(max_queue=40)
    body = json.dumps(
        {"model": "net", "num_samples": 200, "solver": "rk4", "steps": 50, "timeout_s": 2.0, "trace": "none"}
    )
    head = "POST /v1/sample HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length:"
    request = f"{head} {len(body)}\r\n\r\n{body}".encode()
    seen: Counter[int] = Counter()
    end = time.monotonic() + 3

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*live.address)
        while time.monotonic() < end:
            status, headers, answer = await _ask(reader, writer, request)
            seen[status] += 1
            if status == 429:
                stated = re.search(r"^retry-after: (\d+)\r", headers, re.MULTILINE)
                assert stated is not None
                assert int(stated[1]) >= 1
                assert json.loads(answer)["retry_after_s"] > 0
                await asyncio.sleep(0.1)
        writer.close()
        await writer.wait_closed()

    checking = asyncio.ensure_future(_livez(live, 3))
    await asyncio.gather(*(client() for _ in range(150)))
    waited = await checking
    assert set(seen) <= {200, 429, 504}
    assert seen[200] > 0
    assert seen[429] > 0
    assert waited  # /livez answers meanwhile
    assert eventually(live.idle)


async def test_small_requests_done_in_good_time_are_never_refused(live: Live) -> None:
    solves = [{"solver": "euler", "steps": 50}, {"solver": "rk4", "steps": 20}, {"solver": "dopri5"}]

    async def client(http: httpx.AsyncClient, number: int) -> None:
        for k in range(4):
            body = {"model": "net", "num_samples": 1 + 7 * (number + k) % 64, **solves[(number + k) % 3]}
            answer = await http.post("/v1/sample", json={**body, "timeout_s": 300})
            assert answer.status_code == 200, answer.text

    async with httpx.AsyncClient(base_url=live.url, timeout=300) as http:
        await asyncio.gather(*(client(http, number) for number in range(32)))


async def test_refusals_say_when_to_come_back_and_mean_it(launch: Callable[..., Live]) -> None:
    """Only the order is checked here; tests/engine/test_goodput.py checks the times on a simulated clock."""
    live = launch(max_queue=3)
    # About 90,000 calls, which cannot be known beforehand: these end because their clients leave.
    endless = {"num_samples": 64, "solver": "bosh3", "rtol": 1e-14, "atol": 1e-14, "max_nfe": 100_000}
    long = {"model": "mixture", "trace": "none", "timeout_s": 300, **endless}
    settings = {"model": "net", "trace": "none", "timeout_s": 300, "num_samples": 1, "solver": "euler", "steps": 1}
    async with httpx.AsyncClient(base_url=live.url, timeout=300) as http:
        ahead = [asyncio.ensure_future(http.post("/v1/sample", json=long)) for _ in range(3)]
        while live.metric("active_jobs") < 3:
            assert not any(one.done() for one in ahead)
            await asyncio.sleep(0.01)
        refused = await http.post("/v1/sample", json=settings)
        assert refused.status_code == 429, refused.text
        assert refused.json()["retry_after_s"] > 0
        assert int(refused.headers["retry-after"]) >= 1
        ahead[0].cancel()
        while (answer := await http.post("/v1/sample", json=settings)).status_code == 429:
            await asyncio.sleep(0.01)
        assert answer.status_code == 200
        assert not any(one.done() for one in ahead[1:])
        for one in ahead:
            one.cancel()
        assert await asyncio.to_thread(eventually, live.idle)


async def test_what_is_too_slow_even_alone_says_what_it_would_take(live: Live) -> None:
    body = {"model": "net", "num_samples": 500, "solver": "euler", "steps": 10_000, "timeout_s": 0.1}
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        refused = await http.post("/v1/sample", json=body)
        partial = await http.post("/v1/sample", json={**body, "on_timeout": "partial"})
    stated = refused.json()
    assert (refused.status_code, stated["type"]) == (422, "/problems/invalid-request")
    assert [fault["field"] for fault in stated["errors"]] == ["timeout_s"]
    assert stated["needed_s"] > body["timeout_s"]
    assert (partial.status_code, partial.json()["status"]) == (200, "deadline")


async def test_counters_are_what_clients_saw(launch: Callable[..., Live]) -> None:
    live = launch()
    seen: Counter[str] = Counter()
    samples = 0
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        for k in range(90):
            solver = "rk4" if k % 3 else "dopri5"
            body = {"model": "net", "num_samples": 1 + k % 7, "solver": solver, "steps": 5 + k % 40}
            bad = k % 10 == 0
            answer = await http.post("/v1/sample", json={**body, "rtol": 1} if bad else body)
            seen[str(answer.status_code)] += 1
            samples += 0 if bad else answer.json()["shape"][0]
        text = (await http.get("/metrics")).text
    pattern = r'^pathline_requests_total\{outcome="(\d+)",route="/v1/sample"\} (\S+)$'
    counted = {code: float(count) for code, count in re.findall(pattern, text, re.MULTILINE)}
    assert {code: count for code, count in counted.items() if count} == dict(seen)
    assert live.metric("nfe_count") == samples
    found = re.findall(r'^pathline_request_seconds_bucket\{le="[^"]+",route="/v1/sample"\} (\S+)$', text, re.MULTILINE)
    cumulative = [float(count) for count in found]
    assert cumulative == sorted(cumulative)
    assert cumulative[-1] == 90
