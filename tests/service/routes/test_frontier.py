"""Fresh measurements over HTTP with a real engine: points and a verdict, refusals, time limits and disconnects."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.architectures.analytic import Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.field import Field
from models.noise import noise
from selection.choice import BudgetLimits, Evidence, choose
from selection.error import Ends, exact_ends
from selection.frontier import StoredFrontier
from selection.measure import measure_curve, measure_solver
from service.app import create_app
from service.routes import frontier as route
from service.settings import Settings
from tests.selection.support import only
from tests.service.serving import calling

pytestmark = pytest.mark.anyio

ABOUT: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0}
SOLVERS = ["euler-8", "ab3-12", "rk4-4", "rk4-8"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture with a short stored frontier, a small conditional network, and a student."""
    root = tmp_path_factory.mktemp("measured")
    folder = save(root, "mixture", Mixture(), Decoder.identity((2,)), dtype=torch.float64, **ABOUT)
    x0 = noise(7, 0, 512, (2,), torch.float64)
    curve = measure_curve(Field(load(folder).velocity), x0, seed=7, only=("euler-8", "rk4-8", "rk4-32"))
    sha256 = load(folder).card.weights_sha256
    StoredFrontier(weights_sha256=sha256, reference="exact", curves=(curve,)).write(folder)
    torch.manual_seed(0)
    label = NamedCondition.label(classes=3)
    network = ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=4, condition=label))
    save(root, "labels", network, Decoder.identity((2,)), **ABOUT)
    return root


@pytest.fixture(scope="module")
async def served(root: Path, anyio_backend: str) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    app = create_app(Settings(models_dir=root, watch_s=0, threads=1))
    async with calling(app) as http:
        yield http, app.state.service


def read(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream."""
    parts = [part.partition("\ndata: ") for part in text.split("\n\n") if part.startswith("event")]
    return [(head.removeprefix("event: "), json.loads(data)) for head, _, data in parts]


async def test_points_are_those_of_the_same_paths_and_one_verdict_joins_stored_and_fresh(served: Any) -> None:
    http, _ = served
    body = {"solvers": SOLVERS, "num_samples": 200, "seed": 3, "budget": {"max_error": 0.05}, "timeout_s": 120}
    answer = await http.post("/v1/models/mixture/frontier", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = read(answer.text)
    assert [name for name, _ in events] == ["start", "reference", *["point"] * 4, "completed"]
    start, reference, last = events[0][1], events[1][1], events[-1][1]
    assert (start["seed"], start["num_samples"], start["stored"]["seed"]) == (3, 200, 7)
    field, x0 = Field(Mixture().double()), noise(3, 0, 200, (2,), torch.float64)
    ends = Ends.of(exact_ends(field, x0))
    assert reference["spread"] == pytest.approx(ends.spread, rel=1e-6)
    for _, event in events[2:-1]:
        expected = measure_solver(event["solver"], field, x0, ends)
        assert expected is not None
        for name in ("p50", "p95", "p95_low", "p95_high", "worst"):
            assert event[name] == pytest.approx(getattr(expected, name), rel=1e-4), event["solver"]
        assert event["nfe_most"] == expected.nfe_most
    rows = {row["solver"]: row for row in last["points"]}
    assert set(rows) == {*SOLVERS, "rk4-32"}
    assert {name for name, row in rows.items() if row["stored"]} == {"euler-8", "rk4-8", "rk4-32"}, "more samples count"
    assert (rows["ab3-12"]["samples"], rows["rk4-8"]["samples"]) == (200, 512)
    assert (
        last["choice"]["solver"]
        == min((row for row in last["points"] if row["p95_high"] <= 0.05), key=lambda row: row["nfe_most"])["solver"]
    )
    assert last["verdict"].startswith(
        f"{last['choice']['solver']}: of 5 measured solvers, the cheapest that keeps 5 %; 95 %"
    )
    assert last["complete"]


async def test_the_answer_is_that_of_a_budget_where_the_stored_ones_decide(served: Any) -> None:
    http, _ = served
    sampled = await http.post("/v1/sample", json={"model": "mixture", "num_samples": 2, "budget": {"max_nfe": 40}})
    body = {"solvers": ["rk4-8"], "num_samples": 128, "seed": 0, "budget": {"max_nfe": 40}, "timeout_s": 120}
    measured = read((await http.post("/v1/models/mixture/frontier", json=body)).text)[-1][1]
    both = (sampled.json()["budget"], measured["choice"])
    assert [one["solver"] for one in both] == ["rk4-8", "rk4-8"]
    assert both[0]["reason"] == both[1]["reason"]
    assert measured["verdict"] == f"rk4-8: {both[0]['reason']}"


async def test_the_candidates_are_those_of_a_stored_measurement(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GRIDS": (), "ADAPTIVE": (), "catalogue.solvers": only("euler", "ab3", "rk4")}.items():
        monkeypatch.setattr(f"selection.candidates.{name}", value)
    http, _ = served
    body = {"num_samples": 96, "seed": 0, "budget": {"max_error": 0.3}, "timeout_s": 120}
    events = read((await http.post("/v1/models/labels/frontier", json={**body, "condition": 1})).text)
    start, last = events[0][1], events[-1][1]
    assert "was not measured" in start["stored_fault"]
    texts = [row["solver"] for row in last["points"]]
    assert {"euler-1", "ab3-3", "rk4-1"} <= set(texts)
    assert not {"ab3-1", "ab3-2"} & set(texts), "in fewer steps than its order it is another method"
    assert all(
        row["own_conditions"] and row["conditions"] == "the conditions of this request" for row in last["points"]
    )
    assert "with the conditions of this request" in last["verdict"]
    assert last["tuned"].startswith("no plans were tuned for this model; python -m training tune ") or not last["tuned"]


async def test_a_model_says_whether_it_is_measured_now(served: Any, root: Path) -> None:
    http, _ = served
    path = root / "mixture" / "1" / "frontier.json"
    content = path.read_bytes()
    for there in (True, False, True):
        path.write_bytes(content) if there else path.unlink()
        described = (await http.get("/v1/models/mixture")).json()["served"][0]
        assert described["frontier"] == there


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"solvers": ["rk5-3"]}, "unknown solver 'rk5'"),
        ({"solvers": []}, "solvers"),
        ({"num_samples": 10}, "num_samples = 10 is too few: the interval of p95 needs at least 90 samples"),
        ({"solvers": ["tuned-6"]}, "this one has none; make some with python -m training tune"),
        ({"budget": {}}, "needs max_error"),
        ({"steps": 3}, "steps"),
        ({"condition": 1}, "unconditional"),
    ],
)
async def test_requests_that_cannot_be_measured_are_refused(served: Any, body: Any, words: str) -> None:
    http, service = served
    answer = await http.post("/v1/models/mixture/frontier", json=body)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert service.ledger.reserved == 0


async def test_at_the_time_limit_the_verdict_rests_on_what_was_measured(served: Any) -> None:
    http, service = served
    submit = service.engine.submit

    def slow(job: Any, future: Any) -> Any:
        if job.plan.spec.steps == 8:
            job = replace(job, deadline=0.0)
        return submit(job, future)

    service.engine.submit = slow
    body = {"solvers": ["ab3-12", "rk4-8", "rk4-4"], "num_samples": 96, "seed": 0}
    events = read((await http.post("/v1/models/mixture/frontier", json=body)).text)
    assert [name for name, _ in events] == ["start", "reference", "point", "completed"]
    assert not events[-1][1]["complete"]
    assert {row["solver"] for row in events[-1][1]["points"]} == {"ab3-12", "euler-8", "rk4-8", "rk4-32"}


async def test_a_client_that_leaves_cancels_the_running_job(running: Any) -> None:
    running.engine.hold = True
    body = {"solvers": ["rk4-4"], "num_samples": 96, "seed": 0}
    task = asyncio.ensure_future(running.http.post("/v1/models/moons/frontier", json=body))
    while not running.engine.jobs:
        await asyncio.sleep(0.01)
    assert running.engine.jobs[0].priority == "bulk"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(running.engine.cancelled) == 1


async def test_solvers_are_compiled_off_the_event_loop(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_one, threads = route._plan, set[threading.Thread]()

    def compiled(*arguments: Any) -> Any:
        threads.add(threading.current_thread())
        return compile_one(*arguments)

    monkeypatch.setattr(route, "_plan", compiled)
    body = {"solvers": ["ab4-9000", "rk4-4", "ab4-9001/power(3)"], "num_samples": 96, "seed": 0}
    answer = await running.http.post("/v1/models/moons/frontier", json=body)
    assert [name for name, _ in read(answer.text)] == ["start", "reference", *["point"] * 3, "completed"]
    assert threads
    assert threading.current_thread() not in threads


def test_of_two_measurements_of_a_solver_that_on_more_samples_decides() -> None:
    field = Field(Mixture().double())
    few, many = (
        measure_curve(field, noise(seed, 0, n, (2,), torch.float64), seed=seed, only=("rk4-8",))
        for seed, n in ((0, 96), (1, 512))
    )
    choice = choose([Evidence(few, stored=True), Evidence(many, stored=False)], BudgetLimits(max_error=0.9))[0]
    assert (choice.evidence.curve.samples, choice.evidence.stored) == (512, False)
    other = Evidence(many, stored=True, conditions="every label in turn", own=False)
    choice = choose(
        [other, Evidence(few, stored=False, conditions="the conditions of this request")], BudgetLimits(0.9)
    )[0]
    assert choice.evidence.curve.samples == 96, "the conditions asked for count more than the number of samples"
    assert np.isfinite(choice.point.p95_high)
