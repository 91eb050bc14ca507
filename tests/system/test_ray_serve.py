"""Two replicas on Ray Serve: responses equal those of a single service."""

import io
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.processes import ROOT, environment, free_port, running, stop
from tests.system.support import ENDLESS, sent, until

pytestmark = pytest.mark.system

PYTHON = ROOT / ".venv" / "fleet" / "bin" / "python"
LONG = {"model": "moons", "num_samples": 640, "solver": "rk4-2000", "timeout_s": 600}
METRICS, SCALED, REACHED = 9700, 9800, 9900


def settings(repository: Path, first: int, port: int) -> dict[str, str]:
    """Return the environment of replicas at a port, with the metrics of the first one at another."""
    assert PYTHON.is_file(), f"{PYTHON} is missing; run: make test-system"
    return environment(repository, port=port, max_queue=8, drain_s=300) | {"FLEET_METRICS_PORT": str(first)}


@pytest.fixture(scope="module")
def fleet(repository: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    command = [str(PYTHON), "-m", "fleet", "serve", "--replicas", "2"]
    with running(command, settings(repository, METRICS, free_port())) as replicas:
        yield replicas.url, replicas.process
        stop(replicas.process)


@pytest.fixture(scope="module")
def reached(repository: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Two replicas that HAProxy reaches without an ingress."""
    command = [str(PYTHON), "-m", "fleet", "serve", "--replicas", "2", "--route-by", "requests"]
    modes = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
    with running(command, settings(repository, REACHED, free_port()) | modes) as replicas:
        yield replicas.url, replicas.process
        stop(replicas.process)


def npy(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/sample", json=body, headers={"Accept": "application/x-npy"}, timeout=660)


def active(number: int, first: int = METRICS) -> float:
    """Return the active jobs of a replica, from its own metrics."""
    text = httpx.get(f"http://127.0.0.1:{first + number}/metrics").text
    found = re.search(r"^pathline_active_jobs (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def listening(port: int) -> set[str]:
    """Return the addresses at which something listens on a port, in hexadecimal as Linux writes them."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1:4:2]
            address, number = local.split(":")
            if state == "0A" and int(number, 16) == port:
                found.add(address)
    return found


def replicas_of(first: int, application: str = "default") -> list[int]:
    """Return the processes of replicas with metrics from a port on, by the names that Ray gives them."""
    name, found = f"ray::ServeReplica:{application}:Replica".encode(), []
    for process in Path("/proc").iterdir():
        try:
            named = (process / "cmdline").read_bytes().startswith(name)
            if named and f"FLEET_METRICS_PORT={first}".encode() in (process / "environ").read_bytes():
                found.append(int(process.name))
        except (OSError, ValueError):
            continue
    return found


def logs_of(process: int) -> list[Path]:
    """Return the files to which Ray logs the requests of a process."""
    opened = {each.readlink() for each in Path(f"/proc/{process}/fd").iterdir()}
    return [path for path in opened if path.parent.name == "serve" and path.suffix == ".log"]


def check_errors_streams_and_v2(url: str, first: int) -> None:
    wrong = httpx.post(f"{url}/v1/sample", json={"model": "moons", "num_sample": 2}, headers={"X-Request-ID": "mine"})
    assert (wrong.status_code, wrong.json()["request_id"]) == (422, "mine")
    assert wrong.headers.get_list("x-request-id") == ["mine"]
    unnamed = httpx.post(f"{url}/v1/sample", json={"model": "nobody"})
    assert unnamed.headers.get_list("x-request-id") == [unnamed.json()["request_id"]]
    large = httpx.post(f"{url}/v1/sample", content=b" " * (17 << 20), headers={"Content-Type": "application/json"})
    assert large.status_code == 413
    assert httpx.get(f"{url}/v1/models", headers={"X-Long": "x" * 40000}).status_code == 431
    assert npy(url, **LONG | {"timeout_s": 1e-6}).status_code == 504
    named = {"X-Request-ID": "mine"}
    assert httpx.get(f"{url}/v2/health/ready").json() == {"ready": True}
    parameters = {"seed": 1, "solver": "rk4-20"}
    inference = {"id": "a", "inputs": [], "parameters": parameters | {"num_samples": 50}}
    inferred = httpx.post(f"{url}/v2/models/moons/infer", json=inference, headers=named, timeout=60)
    assert (inferred.status_code, inferred.json()["id"]) == (200, "a")
    assert inferred.headers.get_list("x-request-id") == ["mine"]
    [samples] = [each for each in inferred.json()["outputs"] if each["name"] == "samples"]
    same = npy(url, model="moons", num_samples=50, **parameters)
    assert len(same.headers.get_list("x-request-id")) == 1
    assert np.array(samples["data"], np.float32).tobytes() == np.load(io.BytesIO(same.content)).tobytes()
    body = LONG | {"seed": 0, "num_samples": 2000}
    with httpx.stream("POST", f"{url}/v1/sample/stream", json=body, headers=named, timeout=600) as stream:
        assert stream.headers.get_list("x-request-id") == ["mine"]
        lines = (line for line in stream.iter_lines() if line.startswith("event:"))
        assert next(lines) == "event: start"
        assert active(0, first) + active(1, first) == 1  # it arrives while the samples are being drawn
        *_, last = lines
    assert last == "event: completed"


def test_bits_are_those_of_one_service(fleet: Any, service: str) -> None:
    url, _ = fleet
    for model in ("moons", "gaussian"):
        for seed in range(4):
            body = {"model": model, "num_samples": 50, "solver": "rk4-20", "seed": seed}
            answer = npy(url, **body)
            assert answer.status_code == 200
            assert answer.content == npy(service, **body).content


def test_it_listens_on_the_loopback_interface_alone_and_sends_no_usage_reports(fleet: Any) -> None:
    url, _ = fleet
    assert url.startswith("http://127.0.0.1:")
    assert listening(int(url.rsplit(":", 1)[1])) == {"0100007F"}
    replicas = replicas_of(METRICS, "pathline")
    assert len(replicas) == 2
    for each in replicas:
        assert b"RAY_USAGE_STATS_ENABLED=0" in Path(f"/proc/{each}/environ").read_bytes().split(b"\0")


def test_requests_are_not_logged_unless_that_is_set(fleet: Any) -> None:
    assert httpx.get(f"{fleet[0]}/v1/solvers").status_code == 200
    logs = [log for each in replicas_of(METRICS, "pathline") for log in logs_of(each)]
    assert len(logs) == 2
    assert not [line for log in logs for line in log.read_text().splitlines() if " OK " in line]


def test_errors_streams_and_v2_are_kept(fleet: Any) -> None:
    check_errors_streams_and_v2(fleet[0], METRICS)


def test_work_is_spread_and_a_client_that_leaves_is_seen(fleet: Any) -> None:
    url, _ = fleet
    with ExitStack() as clients:
        for _ in range(4):
            clients.enter_context(sent(url, model="moons", **ENDLESS))
        until("all four running", lambda: active(0) + active(1) == 4)
        assert (active(0), active(1)) == (2, 2)
    until("no job", lambda: active(0) + active(1) == 0, 15)  # studies.fleet times this


def test_all_full_is_429_with_retry_after(fleet: Any) -> None:
    url, _ = fleet
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda seed: npy(url, **LONG | {"seed": seed}), range(40)))
    codes = [answer.status_code for answer in answers]
    assert set(codes) == {200, 429}
    refused = answers[codes.index(429)]
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["type"] == "/problems/overloaded"


def test_a_stop_finishes_what_runs_and_does_not_wait_a_minute(fleet: Any) -> None:
    url, process = fleet
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(npy, url, **LONG | {"seed": 3, "num_samples": 2000})
        until("a job", lambda: active(0) + active(1) == 1)
        process.send_signal(signal.SIGTERM)
        assert last.result().status_code == 200
    assert process.wait(50) == 0  # Ray's own wait would be a minute


def test_replicas_that_the_proxy_reaches_itself_answer_the_same(reached: Any, service: str) -> None:
    url, _ = reached
    body = {"model": "moons", "num_samples": 50, "solver": "rk4-20", "seed": 1}
    assert npy(url, **body).content == npy(service, **body).content
    check_errors_streams_and_v2(url, REACHED)
    work = {"model": "moons", **ENDLESS}
    with httpx.stream("POST", f"{url}/v1/sample/stream", json=work, timeout=600) as stream:
        lines = stream.iter_lines()  # (httpx disconnects when this generator is collected)
        assert next(lines) == "event: start"
        until("a job", lambda: active(0, REACHED) + active(1, REACHED) == 1)
    until("no job", lambda: active(0, REACHED) + active(1, REACHED) == 0, 15)


def test_they_stop_once_they_are_idle(reached: Any) -> None:
    url, process = reached
    with ThreadPoolExecutor(1) as pool:
        last = pool.submit(npy, url, **LONG | {"seed": 3, "num_samples": 2000})
        until("a job", lambda: active(0, REACHED) + active(1, REACHED) == 1)
        process.send_signal(signal.SIGTERM)
        assert last.result().status_code == 200
    assert process.wait(60) == 0


@pytest.fixture(scope="module")
def scaled(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Run `serve run` with a file that has a free port, scaling from one replica to two by the work left."""
    folder, port = tmp_path_factory.mktemp("run"), free_port()
    arguments = {"min_replicas": 1, "max_replicas": 2, "target_s": 0.5, "upscale_delay_s": 1, "threads": 1}
    application = {"name": "default", "import_path": "fleet.ray_serve:app", "args": arguments}
    config = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    (folder / "serve.json").write_text(json.dumps(config))  # JSON is YAML too
    command = [str(PYTHON.parent / "serve"), "run", str(folder / "serve.json")]
    more = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
        "PYTHONPATH": str(ROOT),
    }
    url = f"http://127.0.0.1:{port}"
    with running(command, settings(repository, SCALED, port) | more, url, 480) as replicas:
        yield url, replicas.process
        stop(replicas.process, number=signal.SIGINT)


def test_serve_run_serves_and_adds_a_replica_where_work_waits(scaled: Any, service: str) -> None:
    url, _ = scaled
    body = {"model": "moons", "num_samples": 50, "solver": "rk4-20", "seed": 1}
    assert npy(url, **body).content == npy(service, **body).content
    assert active(0, SCALED) == 0
    with pytest.raises(httpx.ConnectError):
        active(1, SCALED)
    work = {"model": "moons", **ENDLESS}
    with httpx.stream("POST", f"{url}/v1/sample/stream", json=work, timeout=600) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: start"
        until("a second replica", lambda: active(1, SCALED) == 0, 240)


def test_a_replica_that_is_killed_is_replaced_and_only_its_requests_fail(scaled: Any) -> None:
    url, _ = scaled
    body = {"model": "moons", **ENDLESS}
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(npy, url, **body)
        until("it running", lambda: sum(active(number, SCALED) for number in range(2)) == 1)
        before = replicas_of(SCALED)
        assert before
        for process in before:
            os.kill(process, signal.SIGKILL)
        assert lost.result().status_code == 500
    small = {"model": "moons", "num_samples": 8, "solver": "rk4-4", "seed": 1, "timeout_s": 60}
    until("a new replica", lambda: npy(url, **small).status_code == 200, 180)
    assert not set(before) & set(replicas_of(SCALED))
