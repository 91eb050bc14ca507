"""A real Prometheus scrapes the real service; its counts equal those of the clients."""

import subprocess

import httpx
import pytest

from tests.system.support import until

pytestmark = pytest.mark.system
TOTAL = "sum(pathline_requests_total{route='/v1/sample',outcome='200'})"
NFE = "sum(pathline_nfe_sum{solver='ralston2'})"
REFUSED = "sum(pathline_requests_total{outcome='422'})"


def value(prometheus: httpx.Client, query: str) -> float:
    result = prometheus.get("/api/v1/query", params={"query": query}).json()["data"]["result"]
    return float(result[0]["value"][1]) if result else 0.0


def test_promtool_finds_nothing_to_complain_about(service: str) -> None:
    httpx.post(f"{service}/v1/sample", json={"model": "moons", "num_samples": 3}).raise_for_status()
    command = ["/usr/bin/promtool", "check", "metrics"]
    text = httpx.get(f"{service}/metrics").text
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_prometheus_counts_what_clients_counted(service: str, prometheus: httpx.Client) -> None:
    ask = {"model": "moons", "num_samples": 2, "solver": "ralston2", "steps": 3}
    with httpx.Client(base_url=service) as http:
        http.post("/v1/sample", json=ask).raise_for_status()
        until("a first scrape", lambda: value(prometheus, TOTAL) and value(prometheus, NFE))
        before, refused = value(prometheus, NFE), value(prometheus, REFUSED)
        for seed in range(20):
            assert http.post("/v1/sample", json={**ask, "seed": seed}).json()["nfe"] == 6
        assert http.post("/v1/sample", json={"model": 7}).status_code == 422
    until("20 more requests", lambda: value(prometheus, NFE) == before + 20 * 2 * 6)
    until("one refusal more", lambda: value(prometheus, REFUSED) == refused + 1)
    assert value(prometheus, "pathline_model_loaded{model='moons',version='1'}") == 1
