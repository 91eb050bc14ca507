"""Liveness, readiness, metrics, and the list of addresses."""

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.anyio


async def test_alive_and_ready(running: Any) -> None:
    assert (await running.http.get("/livez")).json() == {"status": "alive"}
    ready = await running.http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["models"] == {"moons": 2, "gaussian": 1, "digits": 1}
    assert ready.json()["device"] == "cpu"
    assert list(ready.json()["unavailable"]) == ["broken"]


async def test_load_reports_the_work_of_the_engine(running: Any) -> None:
    found = (await running.http.get("/v1/load")).json()
    assert found.pop("models") == [
        {
            "model": "moons",
            "version": 1,
            "operation": "sample",
            "interactive": 64.0,
            "bulk": 128.0,
            "budget": 1024,
            "tick_s": [{"rows": 1.0, "seconds": 1e-3}, {"rows": 64.0, "seconds": 2e-3}],
        }
    ]
    assert found == {"accepts": True, "jobs": 4, "work": 192.0, "seconds": 2.5}
    running.service.drain()
    assert (await running.http.get("/v1/load")).json()["accepts"] is False


async def test_dead_engine(running: Any) -> None:
    running.engine.alive = False
    for path in ("/livez", "/readyz"):
        answer = await running.http.get(path)
        assert answer.status_code == 503
        assert "engine has stopped" in answer.json()["detail"]
    answer = await running.post()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"


async def test_draining(running: Any) -> None:
    running.service.drain()
    assert running.engine.draining
    assert (await running.http.get("/livez")).status_code == 200
    for answer in (await running.http.get("/readyz"), await running.post()):
        assert answer.status_code == 503
        assert answer.json()["type"] == "/problems/draining"


async def test_not_ready_before_the_models_are_loaded(running: Any) -> None:
    running.service.started = False
    assert (await running.http.get("/livez")).status_code == 200
    assert (await running.http.get("/readyz")).json()["type"] == "/problems/not-ready"
    assert (await running.post()).status_code == 503


async def test_metrics_agree_with_the_counts_of_clients(running: Any) -> None:
    for _ in range(3):
        await running.post(num_samples=4)
    await running.post(solver="rk4", steps=5)
    await running.post(num_samples=0)
    await running.http.get("/nowhere/at/all")
    answer = await running.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }

    def requests(route: str, outcome: str) -> float:
        return found["pathline_requests_total", ("outcome", outcome), ("route", route)]

    assert requests("/v1/sample", "200") == 4
    assert requests("/v1/sample", "422") == 1
    assert requests("unmatched", "404") == 1
    assert found["pathline_request_seconds_count", ("route", "/v1/sample")] == 5
    assert found["pathline_solve_seconds_sum", ("model", "moons")] == pytest.approx(0.04)
    assert found["pathline_nfe_count", ("model", "moons"), ("solver", "dopri5")] == 12
    assert found["pathline_steps_total", ("result", "accepted"), ("solver", "dopri5")] == 24
    assert found["pathline_queue_depth",] == 3
    assert found["pathline_work_seconds",] == 2.5
    assert found["pathline_active_jobs",] == 4
    assert found["pathline_active_lanes",] == 5
    assert found["pathline_model_loaded", ("model", "moons"), ("version", "2")] == 1
    assert found["pathline_device_info", ("device", "cpu"), ("name", "cpu")] == 1


async def test_every_request_counts_in_a_series_that_started_at_zero(running: Any) -> None:
    """A rate includes the first event of a series only if the series existed before."""

    async def series() -> dict[str, float]:
        text = (await running.http.get("/metrics")).text
        found = re.findall(r"^(pathline_[a-z_]+_total(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    before = await series()
    assert sum(before.values()) == 0  # of the first scrape's own request, nothing is counted yet
    for path in ("/", "/docs", "/static/main.js", "/static/none.js", "/problems/none", "/v1/models/none", "/none"):
        await running.http.get(path)
        await running.http.delete(path)
    await running.http.get("/", headers={"If-None-Match": (await running.http.get("/")).headers["etag"]})
    for body in ({"num_samples": 0}, {"model": "none"}, {"version": 99}, {}):
        for path in ("/v1/sample", "/sample", "/v1/sample/stream"):
            await running.http.post(path, json={"model": "moons", **body})
        await running.http.post("/v2/models/moons/infer", json={"parameters": body})
        await running.http.post("/v1/models/none/encode", json=body)
    await running.http.post("/v1/models:reload")
    running.service.drain()
    await running.post()
    await running.http.get("/readyz")
    after = await series()
    assert set(after) == set(before)
    assert sum(after.values()) > 30


async def test_series_do_not_grow_with_random_paths(running: Any) -> None:
    await running.http.get("/first")
    before = len((await running.http.get("/metrics")).text.splitlines())
    for k in range(50):
        await running.http.get(f"/random/{k}")
        await running.http.post("/v1/sample", json={"model": f"m{k}", "solver": f"s{k}"})
        await running.http.get(f"/v1/models/x{k}")
    after = len((await running.http.get("/metrics")).text.splitlines())
    # /metrics itself, 404s of /v1/sample and of /v1/models/{name}: three new routes, however many names
    assert after - before <= 3 * 50
    again = len((await running.http.get("/metrics")).text.splitlines())
    for k in range(50):
        await running.http.get(f"/v1/models/y{k}")
    assert len((await running.http.get("/metrics")).text.splitlines()) == again


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/metrics", "/", "/v1/models", "/v1/models/moons", "/v1/solvers"]
)
async def test_head_is_get_without_a_body(running: Any, path: str) -> None:
    head, get = await running.http.head(path), await running.http.get(path)
    assert head.status_code == get.status_code == 200
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.content == b""


async def test_head_of_a_service_that_is_not_ready(running: Any) -> None:
    running.service.drain()
    assert (await running.http.head("/readyz")).status_code == 503


async def test_index_links_lead_somewhere(running: Any) -> None:
    index = (await running.http.get("/", headers={"Accept": "application/json"})).json()
    for path in set(index["links"].values()) - {"v1/sample"}:
        assert (await running.http.get(f"/{path}")).status_code == 200, path


async def test_a_network_call_that_hangs(running: Any) -> None:
    running.engine.turn_s = 59.0
    assert (await running.http.get("/livez")).status_code == 200
    running.engine.turn_s = 61.0
    for path in ("/livez", "/readyz", "/v2/health/live", "/v2/health/ready"):
        answer = await running.http.get(path)
        assert answer.status_code == 503
        assert "PATHLINE_STALL_S" in answer.text
    assert (await running.post()).status_code == 503
