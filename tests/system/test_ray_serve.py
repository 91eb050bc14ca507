"""Two replicas on Ray Serve: what a client sees is what one service says."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.system.support import ROOT, free_port, until

pytestmark = pytest.mark.system

PYTHON = ROOT / ".venv" / "fleet" / "bin" / "python"
LONG = {"model": "moons", "num_samples": 64, "solver": "rk4-2000", "timeout_s": 120}
METRICS = 9700


def start(repository: Path, folder: Path) -> tuple[str, "subprocess.Popen[str]"]:
    """Start two replicas; their address and the process."""
    assert PYTHON.is_file(), f"{PYTHON} is missing; run: make test-system"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PATHLINE_")}
    port, log = free_port(), folder / "serve.txt"
    ours = {"MODELS_DIR": str(repository), "PORT": str(port), "THREADS": "1", "MAX_QUEUE": "8"}
    environment = kept | {f"PATHLINE_{name}": value for name, value in ours.items()}
    command = [str(PYTHON), "-m", "fleet", "serve", "--replicas", "2"]
    with log.open("w") as output:
        running = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment | {"FLEET_METRICS_PORT": str(METRICS)},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ready() -> bool:
        assert running.poll() is None, log.read_text()
        return "replicas on" in log.read_text()

    until("replicas", ready, 300)
    return f"http://127.0.0.1:{port}", running


@pytest.fixture(scope="module")
def fleet(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    url, running = start(repository, tmp_path_factory.mktemp("serve"))
    yield url, running
    if running.poll() is None:
        running.terminate()
        running.wait(60)


def npy(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/sample", json=body, headers={"Accept": "application/x-npy"}, timeout=180)


def active(number: int) -> float:
    """Jobs of a replica, from its own metrics."""
    text = httpx.get(f"http://127.0.0.1:{METRICS + number}/metrics").text
    found = re.search(r"^pathline_active_jobs (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def test_bits_are_those_of_one_service(fleet: Any, service: str) -> None:
    url, _ = fleet
    for seed in range(4):
        body = {"model": "moons", "num_samples": 50, "solver": "rk4-20", "seed": seed}
        assert npy(url, **body).content == npy(service, **body).content


def test_errors_streams_and_v2_are_kept(fleet: Any) -> None:
    url, _ = fleet
    wrong = httpx.post(f"{url}/v1/sample", json={"model": "moons", "num_sample": 2}, headers={"X-Request-ID": "mine"})
    assert (wrong.status_code, wrong.json()["request_id"]) == (422, "mine")
    assert wrong.headers.get_list("x-request-id") == ["mine"]
    unnamed = httpx.post(f"{url}/v1/sample", json={"model": "nobody"})
    assert unnamed.headers.get_list("x-request-id") == [unnamed.json()["request_id"]]
    large = httpx.post(f"{url}/v1/sample", content=b" " * (17 << 20), headers={"Content-Type": "application/json"})
    assert large.status_code == 413
    assert httpx.get(f"{url}/v1/models", headers={"X-Long": "x" * 40000}).status_code == 431
    slow = npy(url, **LONG | {"timeout_s": 0.05})
    assert slow.status_code in (422, 504)
    assert httpx.get(f"{url}/v2/health/ready").json() == {"ready": True}
    came, begin = [], time.monotonic()
    with httpx.stream("POST", f"{url}/v1/sample/stream", json=LONG | {"seed": 0}, timeout=120) as stream:
        for line in stream.iter_lines():
            if line.startswith("event:"):
                came.append((line.removeprefix("event:").strip(), time.monotonic() - begin))
    assert (came[0][0], came[-1][0]) == ("start", "completed")
    assert came[0][1] < came[-1][1] / 2


def test_work_is_spread_and_a_client_that_leaves_is_seen_within_a_second(fleet: Any) -> None:
    url, _ = fleet
    body = LONG | {"solver": "rk4-10000", "max_nfe": 40000, "num_samples": 1000, "timeout_s": 600, "trace": "none"}

    def leave(seconds: float) -> None:
        with pytest.raises(httpx.ReadTimeout):
            pytest.fail(httpx.post(f"{url}/v1/sample", json=body, timeout=seconds).text[:200])

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(leave, 6) for _ in range(4)]
        until("all four running", lambda: active(0) + active(1) == 4, 5)
        assert (active(0), active(1)) == (2, 2)
        for each in asked:
            each.result()
    until("no job", lambda: active(0) + active(1) == 0, 1.5)


def test_all_full_is_429_with_retry_after(fleet: Any) -> None:
    url, _ = fleet
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda seed: npy(url, **LONG | {"seed": seed, "solver": "rk4-500"}), range(40)))
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 429}
    refused = answers[codes.index(429)]
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["type"] == "/problems/overloaded"


def test_a_stop_finishes_what_runs_and_does_not_wait_a_minute(fleet: Any) -> None:
    url, running = fleet
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(npy, url, **LONG | {"seed": 3, "num_samples": 2000})
        until("a job", lambda: active(0) + active(1) == 1)
        begin = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert last.result().status_code == 200
    assert running.wait(60) == 0
    assert time.monotonic() - begin < 50
