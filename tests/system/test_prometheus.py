"""A real Prometheus scrapes the real service, and what it then knows is what the clients counted."""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from models.checkpoint import save
from models.decoder import Decoder
from models.residual_mlp import ResidualMLP, ResidualMLPConfig

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]


def until(what: str, condition: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except httpx.HTTPError:
            pass  # not listening yet
        time.sleep(0.1)
    return pytest.fail(f"waited {seconds:g} s for {what}")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=32, blocks=1))
    save(root, "moons", model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    log = tmp_path_factory.mktemp("log") / "service.txt"
    with log.open("w") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "service"],
            cwd=ROOT,
            env={"PATHLINE_MODELS_DIR": str(root), "PATHLINE_PORT": "0", "PATH": "/usr/bin:/bin"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    text = until("the service", lambda: re.search(r"on (http://[\d.]+:\d+)", log.read_text()))
    yield text.group(1)
    running.terminate()
    assert running.wait(30) == 0


@pytest.fixture(scope="module")
def prometheus(service: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "pathline", "static_configs": [{"targets": [service.removeprefix("http://")]}]}
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    running = subprocess.Popen(
        [
            "/usr/bin/prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        until("Prometheus", lambda: client.get("/-/ready").status_code == 200)
        yield client
    running.kill()
    running.wait()


def value(prometheus: httpx.Client, query: str) -> float:
    result = prometheus.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def metrics(service: str) -> str:
    return httpx.get(f"{service}/metrics").text


def test_promtool_finds_nothing_to_complain_about(service: str) -> None:
    httpx.post(f"{service}/v1/sample", json={"model": "moons", "num_samples": 3}).raise_for_status()
    command = ["/usr/bin/promtool", "check", "metrics"]
    done = subprocess.run(command, input=metrics(service), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_prometheus_counts_what_clients_counted(service: str, prometheus: httpx.Client) -> None:
    total = "sum(pathline_requests_total{route='/v1/sample',outcome='200'})"
    nfe = "sum(pathline_nfe_sum{solver='rk4'})"
    until("a first scrape", lambda: value(prometheus, "up{job='pathline'}") == 1)
    counted = re.findall(
        r'^pathline_requests_total{.*outcome="200",route="/v1/sample".*} (.*)$', metrics(service), re.M
    )
    before = sum(map(float, counted))
    with httpx.Client(base_url=service) as http:
        for seed in range(20):
            body = {"model": "moons", "num_samples": 2, "solver": "rk4", "steps": 3, "seed": seed}
            assert http.post("/v1/sample", json=body).json()["nfe"] == 12
        assert http.post("/v1/sample", json={"model": "moons", "solver": "rk4"}).status_code == 422
    until("20 more requests", lambda: value(prometheus, total) == before + 20)
    assert value(prometheus, nfe) == 20 * 2 * 12
    assert value(prometheus, "sum(pathline_requests_total{outcome='422'})") == 1
    assert value(prometheus, "pathline_model_loaded{model='moons',version='1'}") == 1
