"""Replicas on Ray Serve: responses equal those of a single service, and waiting work adds a replica."""

import io
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.processes import ROOT, environment, free_port, running, stop
from tests.system.support import ENDLESS, until

pytestmark = pytest.mark.system

PYTHON = ROOT / ".venv" / "fleet" / "bin" / "python"


@pytest.fixture(scope="module")
def ray(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run `serve run` with a file that has a free port, scaling from one replica to two by the work left."""
    assert PYTHON.is_file(), f"{PYTHON} is missing; run: make test-system"
    folder, port = tmp_path_factory.mktemp("run"), free_port()
    arguments = {"max_replicas": 2, "target_s": 0.5, "threads": 1}
    application = {"name": "default", "import_path": "impatient:app", "args": arguments}
    config = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    (folder / "serve.json").write_text(json.dumps(config))  # JSON is YAML too
    command = [str(PYTHON.parent / "serve"), "run", str(folder / "serve.json")]
    more = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # by default, Ray gives up if its proxy takes 15 s to start
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'clients' / 'python'}:{Path(__file__).parent / 'with_fleet'}",
    }
    url = f"http://127.0.0.1:{port}"
    with running(command, environment(repository, max_queue=8, drain_s=60) | more, url, 480) as replicas:
        yield url
        stop(replicas.process, number=signal.SIGINT)


def npy(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/sample", json=body, headers={"Accept": "application/x-npy"}, timeout=660)


def status(url: str, **body: Any) -> int:
    """Return the status of an answer; 599 if the connection breaks off."""
    try:
        return npy(url, **body).status_code
    except httpx.TransportError:
        return 599


def replicas() -> list[int]:
    """Return the processes of replicas, by the name that Ray gives them."""
    processes = []
    for process in Path("/proc").iterdir():
        try:
            if (process / "cmdline").read_bytes().startswith(b"ray::ServeReplica:default:Replica"):
                processes.append(int(process.name))
        except (OSError, ValueError):
            continue
    return processes


def test_bits_errors_and_streams_are_those_of_one_service(ray: str, service: str) -> None:
    for model in ("moons", "gaussian"):
        body = {"model": model, "num_samples": 50, "solver": "rk4-20", "seed": 1}
        answer = npy(ray, **body)
        assert answer.content == npy(service, **body).content
        assert np.load(io.BytesIO(answer.content)).shape == (50, 2)
    wrong = httpx.post(f"{ray}/v1/sample", json={"model": "moons", "num_sample": 2})
    assert (wrong.status_code, wrong.json()["type"]) == (422, "/problems/invalid-request")
    assert httpx.get(f"{ray}/v2/health/ready").json() == {"ready": True}
    body = {"model": "moons", "num_samples": 2000, "solver": "rk4-200", "seed": 0}
    with httpx.stream("POST", f"{ray}/v1/sample/stream", json=body, timeout=600) as stream:
        events = [line for line in stream.iter_lines() if line.startswith("event:")]
    assert (events[0], events[-1]) == ("event: start", "event: completed")


def test_waiting_work_adds_a_replica(ray: str) -> None:
    assert len(replicas()) == 1
    with httpx.stream("POST", f"{ray}/v1/sample/stream", json={"model": "moons", **ENDLESS}, timeout=600) as stream:
        lines = stream.iter_lines()  # (httpx disconnects when this generator is collected)
        assert next(lines) == "event: start"
        until("a second replica", lambda: len(replicas()) == 2, 240)


def test_a_replica_that_is_killed_is_replaced_and_only_its_requests_fail(ray: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(status, ray, model="moons", **ENDLESS)
        time.sleep(2)  # it runs for minutes
        before = replicas()
        for process in before:
            os.kill(process, signal.SIGKILL)
        assert before
        assert lost.result() >= 500
    small = {"model": "moons", "num_samples": 8, "solver": "rk4-4", "seed": 1, "timeout_s": 60}
    until("a new replica", lambda: status(ray, **small) < 500, 180)
    assert not set(before) & set(replicas())
