"""HTTP workers: answers, metrics, limits and ends are those of a service without them; a dead worker is replaced."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.server import listen
from service.settings import Settings, StartError
from tests.processes import stop

from ..waiting import eventually
from .conftest import Live, launched

NET: dict[str, Any] = {"model": "net", "num_samples": 5, "seed": 3}
LONG: dict[str, Any] = {"model": "net", "num_samples": 3, "solver": "euler", "steps": 10_000, "timeout_s": 600}

SMALL: list[dict[str, Any]] = [
    {**NET, "solver": "rk4", "steps": 4},
    {**NET, "solver": "dopri5", "rtol": 1e-4},
    {**NET, "solver": "ab3", "steps": 6, "first_index": 7, "priority": "bulk", "trace": "none"},
    {**NET, "solver": "bosh3", "error_control": "batch", "version": 1},
    {**NET, "x0": [[0.5, 1.0]] * 5, "t_span": [0.25, 1], "solver": "heun2", "steps": 3, "save_at": [0.5, 1.0]},
    {"model": "mixture", "num_samples": 300, "seed": 0, "solver": "euler", "grid": [0, 0.1, 0.5, 1]},
    {"model": "gaussian", "seed": 2**63 - 300, "solver": "dpmpp_2m-5", "decode": False},
    {**NET, "solver": "dopri5", "rtol": 1e-4, "max_nfe": 20},
]
"""Requests that a worker handles itself."""

OTHERS: list[Any] = [
    {**NET, "num_samples": 20_000, "solver": "euler", "steps": 1, "trace": "none"},
    {**NET, "solver": "rk4", "steps": 4, "trace": "full"},
    {**NET, "version": 9},
    {"model": "unknown"},
    {**NET, "num_samples": 0},
    {**NET, "num_samples": 2.5},
    {**NET, "solver": "nothing"},
    {**NET, "steps": 3, "rtol": 1e-3},
    {"num_samples": 3},
    [NET],
    {**NET, "x0": [[0.5] * 1000] * 5},
    {**NET, "timeout_s": 1e-9, "solver": "euler", "steps": 5000},
]
"""Requests that it passes on, or that are refused."""


@pytest.fixture(scope="module")
def root(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that tests may change."""
    root = tmp_path_factory.mktemp("workers") / "models"
    shutil.copytree(models, root)
    return root


@pytest.fixture(scope="module")
def workers(root: Path) -> Iterator[Live]:
    """A service with two workers."""
    with launched(root, http_workers=2, admin_key="secret", watch_s=0.5) as service:
        yield service


def processes(service: Live) -> list[int]:
    """Return the workers of a service."""
    pid = service.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alike(response: httpx.Response) -> tuple[int, dict[str, str], Any]:
    """Return what two services must agree on: not ids, dates and times."""
    varying = ("date", "x-request-id", "server-timing", "content-length", "x-pathline-seed")
    headers = {name: value for name, value in response.headers.items() if name not in varying}
    kind = response.headers.get("content-type", "")
    if kind == "application/x-npz":
        arrays = np.load(io.BytesIO(response.content))
        return response.status_code, headers, {name: arrays[name].tobytes() for name in arrays if name != "meta"}
    if "json" not in kind:
        return response.status_code, headers, response.content
    body = response.json()
    for name in ("latency", "request_id"):
        if isinstance(body, dict):
            body.pop(name, None)
    return response.status_code, headers, body


@pytest.mark.parametrize("body", [*SMALL, *OTHERS], ids=str)
def test_answers_are_those_of_a_service_without_workers(live: Live, workers: Live, body: Any) -> None:
    for accept in ("application/json", "application/x-npz", "image/png"):
        one, other = (
            httpx.post(f"{service.url}/v1/sample", json=body, headers={"Accept": accept}, timeout=60)
            for service in (live, workers)
        )
        assert alike(one) == alike(other)
        assert one.headers.keys() == other.headers.keys()


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("GET", "/", b""),
        ("HEAD", "/docs", b""),
        ("GET", "/livez", b""),
        ("POST", "/livez", b"{}"),
        ("GET", "/readyz", b""),
        ("GET", "/v1/models", b""),
        ("GET", "/v1/models/net?x=%2F", b""),
        ("GET", "/nowhere%20here", b""),
        ("GET", "/v1/sample", b""),
        ("POST", "/v1/sample", b""),
        ("POST", "/v1/sample", b"{"),
        ("POST", "/v1/sample", b'{"model": "net", "num_samples": 1, "num_samples": 1}'),
        ("POST", "/v1/models/net/encode", b'{"samples": [[0.5, 0.5]], "steps": 4, "solver": "rk4"}'),
        ("POST", "/v2/models/net/infer", b'{"inputs": [], "seed": 1}'),
        ("POST", "/v1/models:reload", b""),
        ("GET", "/openapi.json", b""),
    ],
)
def test_other_paths_answer_alike(live: Live, workers: Live, method: str, path: str, content: bytes) -> None:
    headers = {"Content-Type": "application/json", "X-Request-ID": "mine"}
    one, other = (
        httpx.request(method, service.url + path, content=content or None, headers=headers, timeout=60)
        for service in (live, workers)
    )
    assert alike(one) == alike(other) or path == "/v1/models:reload"  # only one of them has the key for it
    assert one.headers["x-request-id"] == other.headers["x-request-id"] == "mine"
    assert other.headers.get_list("x-request-id") == ["mine"]
    assert len(other.headers.get_list("date")) == 1


def test_many_requests_at_once_keep_their_bits(live: Live, workers: Live) -> None:
    bodies = [{**body, "seed": seed} for seed in range(6) for body in SMALL]

    def asked(url: str, body: dict[str, Any]) -> Any:
        return alike(httpx.post(f"{url}/v1/sample", json=body, timeout=60))

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda body: asked(workers.url, body), bodies))
    assert found == [asked(live.url, body) for body in bodies]


def test_a_stream_is_passed_on_as_it_comes(live: Live, workers: Live) -> None:
    body = {**LONG, "steps": 3000, "seed": 1, "save_at": [0.5]}
    texts = [httpx.post(f"{each.url}/v1/sample/stream", json=body, timeout=60).text for each in (live, workers)]
    for text in texts:
        assert text.count("event: progress") >= 2
        assert text.index("event: start") < text.index("event: sample") < text.index("event: completed")
    digests = [re.findall(r'"digest":"(sha256:\w+)"', text) for text in texts]
    assert digests[0] == digests[1] != []


def test_metrics_are_the_sums_over_all_processes(workers: Live) -> None:
    def answered() -> float:
        text = httpx.get(f"{workers.url}/metrics", timeout=30).text
        pattern = r'^pathline_requests_total\{outcome="200",route="/v1/sample"\} (\S+)$'
        return sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))

    before, samples, calls = answered(), workers.metric("nfe_count"), workers.metric("network_seconds_count")
    with ThreadPoolExecutor(8) as pool:  # many connections, so that both workers have some
        for _ in range(3):
            list(pool.map(lambda _: httpx.post(f"{workers.url}/v1/sample", json=SMALL[0], timeout=60), range(8)))
    assert eventually(lambda: answered() == before + 24)
    assert workers.metric("nfe_count") == samples + 24 * 5
    assert workers.metric("network_seconds_count") == calls + 24
    text = httpx.get(f"{workers.url}/metrics", timeout=30).text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len({line.rsplit(" ", 1)[0] for line in lines}) == len(lines)  # no series twice
    assert eventually(lambda: workers.metric("job_bytes") == 0)


@pytest.mark.parametrize("path", ["/v1/sample", "/v1/sample/stream"])
def test_a_client_that_leaves_ends_its_job(workers: Live, path: str) -> None:
    content = json.dumps({**LONG, "num_samples": 2_000}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    with socket.create_connection(workers.address, 30) as raw:
        raw.sendall(head.encode() + b"\r\n\r\n" + content)
        assert eventually(lambda: workers.metric("active_jobs") == 1)
    assert eventually(workers.idle)
    assert eventually(lambda: workers.metric("job_bytes") == 0)


def test_a_killed_worker_is_replaced_and_leaves_nothing(workers: Live) -> None:
    before = processes(workers)
    assert len(before) == 2
    answered = workers.metric("requests_total")
    with ThreadPoolExecutor(8) as pool:
        waiting = [
            pool.submit(
                httpx.post, f"{workers.url}/v1/sample", json={**LONG, "num_samples": 500, "seed": k}, timeout=300
            )
            for k in range(8)
        ]
        assert eventually(lambda: workers.metric("active_jobs") == 8)
        os.kill(before[0], signal.SIGKILL)
        ended = [future.exception() for future in waiting]
    assert {type(error) for error in ended} <= {type(None), httpx.RemoteProtocolError, httpx.ReadError}
    assert eventually(lambda: len(set(processes(workers)) - set(before)) == 1)

    def all_answer() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return all(
                httpx.post(f"{workers.url}/v1/sample", json=SMALL[0], timeout=10).status_code == 200 for _ in range(20)
            )
        return False

    assert eventually(all_answer)
    assert eventually(workers.idle)
    assert eventually(lambda: workers.metric("job_bytes") == 0)
    assert workers.metric("requests_total") >= answered


def test_a_new_version_answers_through_workers_until_it_is_unloaded(workers: Live, root: Path) -> None:
    def asked(**more: Any) -> httpx.Response:
        return httpx.post(f"{workers.url}/v1/sample", json={**NET, "solver": "rk4", "steps": 2} | more, timeout=60)

    first = asked().json()
    torch.manual_seed(1)
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=32, blocks=1))
    save(root, "net", net, Decoder.identity((2,)), dataset={}, training={}, seed=1)
    assert eventually(lambda: asked().json()["version"] == 2)
    assert asked().json()["digest"] != first["digest"]
    assert asked(version=1).json()["digest"] == first["digest"]
    unload = httpx.post(f"{workers.url}/v1/models/net:unload", headers={"X-API-Key": "secret"}, timeout=60)
    assert unload.status_code == 200
    assert unload.json()
    assert eventually(lambda: asked().status_code == 200)
    assert asked().json()["version"] == 2


def test_a_full_ledger_refuses_through_a_worker(launch: Callable[..., Live]) -> None:
    service = launch(http_workers=1, max_job_bytes=100_000)
    body = {**LONG, "num_samples": 300, "trace": "none"}
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: httpx.post(f"{service.url}/v1/sample", json=body, timeout=90), range(12)))
    assert {answer.status_code for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert "PATHLINE_MAX_JOB_BYTES" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) >= 1
    assert eventually(lambda: service.metric("job_bytes") == 0)


def test_the_body_of_a_refused_request_is_not_asked_for(live: Live, workers: Live) -> None:
    head = "POST /v1/sample HTTP/1.1\r\nHost: x\r\nOrigin: http://foreign.example\r\nContent-Length: 9\r\n"
    for service in (live, workers):
        with socket.create_connection(service.address, 30) as raw:
            raw.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("workers_of_other", [0, 1, 2])
@pytest.mark.parametrize("workers_of_first", [1, 2])
def test_a_port_is_taken_before_the_workers_run(workers_of_first: int, workers_of_other: int) -> None:
    bound = listen(Settings(port=0, http_workers=workers_of_first))
    try:
        port = bound[0].getsockname()[1]
        assert [each.getsockname()[1] for each in bound] == [port] * workers_of_first
        with pytest.raises(StartError, match=f"port {port}: something else uses it"):
            listen(Settings(port=port, http_workers=workers_of_other))
    finally:
        for each in bound:
            each.close()


def test_the_workers_end_with_the_service(launch: Callable[..., Live]) -> None:
    killed, stopped = launch(http_workers=2), launch(http_workers=2)
    left = processes(killed), processes(stopped)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(httpx.post, f"{stopped.url}/v1/sample", json={**LONG, "num_samples": 64}, timeout=90)
        assert eventually(lambda: stopped.metric("active_jobs") == 1)
        killed.process.kill()
        assert stop(stopped.process) == 0
        assert waiting.result().status_code == 200  # a request in progress is answered first
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pids in left for pid in pids))


def test_a_worker_that_hangs_is_replaced(launch: Callable[..., Live]) -> None:
    service = launch(http_workers=1, stall_s=1)
    (hung,) = processes(service)
    os.kill(hung, signal.SIGSTOP)
    assert eventually(lambda: processes(service) not in ([hung], []))

    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.post(f"{service.url}/v1/sample", json=SMALL[0], timeout=5).status_code == 200
        return False

    assert eventually(answers)
    assert not Path(f"/proc/{hung}").exists()
