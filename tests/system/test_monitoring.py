"""Every expression of the dashboard and the alerts finds data in a real Prometheus, given suitable traffic."""

import math
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.grafana.panels import expressions, resolved
from tests.processes import ROOT
from tests.service.serving import serving
from tests.system.support import ENDLESS, sent, until

pytestmark = pytest.mark.system
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
ALERTS = {rule["alert"]: rule["expr"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
Sample = Callable[..., httpx.Response]


def values(prometheus: httpx.Client, query: str) -> list[float]:
    answer = prometheus.get("/api/v1/query", params={"query": resolved(query)}).json()
    assert answer["status"] == "success", answer
    return [float(found["value"][1]) for found in answer["data"]["result"]]


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[str]:
    """Run a service of its own: a share of slow requests is one of all that were sent."""
    with serving(repository, max_queue=8) as (url, _):
        yield url


@pytest.fixture(scope="module")
def sample(service: str) -> Sample:
    def post(**body: Any) -> httpx.Response:
        return httpx.post(f"{service}/v1/sample", json={"model": "moons", "num_samples": 8, **body}, timeout=60)

    return post


@pytest.fixture(scope="module")
def _traffic(service: str, sample: Sample, prometheus: httpx.Client) -> None:
    """Create traffic for every expression: a rate needs a counter that grows between two scrapes."""
    light: list[dict[str, Any]] = [
        {"solver": "euler", "steps": 5},
        {"rtol": 1e-3, "atol": 1e-3},
        {"solver": "nobody"},
        *[{"model": "broken"}] * 20,  # a large enough share of all requests for an alert
    ]

    def seen(outcome: str) -> float:
        return sum(values(prometheus, f"pathline_requests_total{{outcome='{outcome}'}}"))

    def refused() -> bool:
        # Beside an endless job, one with twice its own time is refused. Its time depends on the machine: with too short
        # a limit the answer is 422, and the limit that first is long enough is less than twice the job's time.
        job = {"num_samples": ENDLESS["num_samples"], "solver": "rk4", "steps": 1_000, "trace": "none"}
        answers = (sample(**job, timeout_s=0.25 * 2**each).status_code for each in range(12))
        return next((answer for answer in answers if answer != 422), 422) == 429

    for _ in range(2):
        before = seen("503")
        assert {sample(**body).status_code for body in light} == {200, 422, 503}
        until("a scrape", lambda before=before: seen("503") > before)
    with sent(service, model="moons", **ENDLESS):
        until("the endless job", lambda: sum(values(prometheus, "pathline_active_lanes")) > 0)
        end = time.monotonic() + 6  # slow enough for an alert
        until("a refusal", refused)
        until("a scrape", lambda: seen("429"))
        until("a refusal that makes the counter grow", refused)
        time.sleep(max(0.0, end - time.monotonic()))
    until("the end of the slow request", lambda: seen("client_gone"))


@pytest.mark.parametrize("query", expressions())
@pytest.mark.usefixtures("_traffic")
def test_every_panel_has_something_to_show(query: str, prometheus: httpx.Client) -> None:
    idle = any(name in query for name in ("rejected", "queue_depth", "active", "job_bytes"))  # 0 while nothing runs

    def shown() -> list[float]:
        numbers = [value for value in values(prometheus, query) if not math.isnan(value)]
        return numbers if idle or any(numbers) else []  # a counter may grow a scrape after the request's outcome

    assert min(until("data", shown, seconds=20)) >= 0


@pytest.mark.parametrize("name", list(ALERTS))
@pytest.mark.usefixtures("_traffic")
def test_every_alert_finds_what_it_is_for(name: str, prometheus: httpx.Client) -> None:
    assert until("data", lambda: values(prometheus, ALERTS[name]), seconds=10)


def test_prometheus_has_taken_the_rules(prometheus: httpx.Client) -> None:
    (group,) = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    assert [rule["name"] for rule in group["rules"]] == list(ALERTS)
    until(
        "an evaluation", lambda: prometheus.get("/api/v1/rules").json()["data"]["groups"][0]["lastEvaluation"][0] != "0"
    )
    assert all(not rule.get("lastError") for rule in group["rules"])


@pytest.mark.parametrize(
    "command", [["check", "rules", str(RULES)], ["check", "config", str(RULES.with_name("prometheus.yml"))]]
)
def test_promtool_accepts(command: list[str]) -> None:
    done = subprocess.run(["/usr/bin/promtool", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_alerts_fire_after_their_time_and_not_before() -> None:
    tests = ROOT / "tests" / "system" / "alerts.yml"
    done = subprocess.run(
        ["/usr/bin/promtool", "test", "rules", str(tests)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
