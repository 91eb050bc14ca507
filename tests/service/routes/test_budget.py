"""Budgets: the chosen solver, every refusal, and the promised errors."""

import io
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.architectures.analytic import Gaussian, GaussianConfig
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.card import read_card
from models.checkpoint.plans import Plans, StoredPlan
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.field import Field
from models.noise import noise
from selection.choice import BudgetLimits
from selection.frontier import Curve, Point, StoredFrontier, read_frontier
from selection.measure import measure_curve
from service.app import create_app
from service.responses.samples import SampleResponse
from service.responses.schemas import FrontierBody
from service.settings import Settings
from tests.selection.support import point
from tests.service.serving import calling, conforming

pytestmark = pytest.mark.anyio

ABOUT: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0}


async def _chosen(shared: Any, **body: Any) -> dict[str, Any]:
    answer = await shared.post(**body)
    assert answer.status_code == 200, answer.text
    conforming(SampleResponse, answer.json())
    return answer.json()["budget"]


async def _refused(shared: Any, **body: Any) -> str:
    answer = await shared.post(**body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"].startswith("budget")
    assert not shared.engine.jobs
    return answer.json()["detail"]


# The frontier of moons, see tests/service/conftest.py: euler-4 0.3, ab4-9 0.008, rk4-5 (20 NFE) 0.001, dopri5@1e-5
# (48.5 NFE) 1e-5. The pace of the fake engine is 1 ms a call.
@pytest.mark.parametrize(
    ("budget", "solver"),
    [
        ({"max_error": 0.5}, "euler-4"),
        ({"max_error": 0.01}, "ab4-9"),
        ({"max_error": 0.008}, "ab4-9"),
        ({"max_error": 0.007}, "rk4-5"),
        ({"max_error": 1e-5}, "dopri5@1e-5"),
        ({"max_nfe": 4}, "euler-4"),
        ({"max_nfe": 19}, "ab4-9"),
        ({"max_nfe": 10_000}, "rk4-5"),  # under error control, another sample may take more
        ({"max_ms": 10}, "ab4-9"),
        ({"max_ms": 1000}, "dopri5@1e-5"),
        ({"max_error": 0.1, "max_nfe": 10}, "ab4-9"),
        ({"max_error": 0.1, "max_nfe": 10, "max_ms": 9.5}, "ab4-9"),
    ],
)
async def test_the_best_that_fits_is_chosen_and_echoed(shared: Any, budget: Any, solver: str) -> None:
    found = await _chosen(shared, budget=budget, num_samples=3)
    assert found["solver"] == solver
    assert {name: found[name] for name in budget} == budget
    assert found["promised_error"] * 2.0 == found["promised_distance"]  # a spread of 2
    assert str(shared.engine.jobs[0].plan.spec) == solver
    assert found["reason"]
    assert found["predicted_ms"] > 0


async def test_streams_npz_replay_and_v2_echo_the_budget(shared: Any) -> None:
    body = {"model": "moons", "num_samples": 2, "seed": 0, "budget": {"max_error": 0.01}}
    stream = (await shared.http.post("/v1/sample/stream", json=body)).text
    start = json.loads(stream.partition("event: start\ndata: ")[2].partition("\n")[0])
    completed = json.loads(stream.partition("event: completed\ndata: ")[2].partition("\n")[0])
    assert start["budget"]["solver"] == completed["budget"]["solver"] == "ab4-9"
    npz = await shared.http.post("/v1/sample", json=body, headers={"Accept": "application/x-npz"})
    assert json.loads(np.load(io.BytesIO(npz.content))["meta"].tobytes())["budget"]["solver"] == "ab4-9"
    parameters = {"num_samples": 2, "seed": 0, "budget.max_error": 0.01, "budget.max_nfe": 12}
    inferred = await shared.http.post("/v2/models/moons/infer", json={"parameters": parameters})
    assert inferred.json()["parameters"]["budget.solver"] == "ab4-9"
    again = (await shared.http.post("/v1/replay", json=completed)).json()
    assert again["solver"] == completed["solver"]
    assert "budget" not in again


@pytest.mark.parametrize(
    "apart",
    [
        {"solver": "rk4-20"},
        {"solver": "dopri5"},
        {"steps": 4},
        {"rtol": 1e-3},
        {"grid": "sway"},
        {"max_nfe": 100},
        {"x0": [[0, 0]], "num_samples": 1},
        {"t_span": [0, 0.5]},
    ],
)
async def test_a_budget_replaces_a_solver(shared: Any, apart: Any) -> None:
    assert next(iter(apart)) in await _refused(shared, budget={"max_error": 0.1}, **apart)


@pytest.mark.parametrize(
    "budget",
    [{}, {"max_error": 0}, {"max_error": -1}, {"max_nfe": 0}, {"max_nfe": 1.5}, {"max_ms": "40"}, {"error": 1}, [], 3,
     "error=0.1"],
)  # fmt: skip
async def test_malformed_budgets_are_refused(shared: Any, budget: Any) -> None:
    await _refused(shared, budget=budget)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"max_error": 1e-9}, ["no measured solver", "dopri5@1e-5"]),
        (
            {"max_error": 0.01, "max_nfe": 8},
            [
                "no measured solver keeps 1 % within 8 NFE",
                "within 8 NFE is euler-4 (keeps 30 %",
                "ab4-9 (keeps 0.8 %, 9 NFE",
            ],
        ),
        ({"max_nfe": 3}, ["the cheapest of all is euler-4"]),
        ({"max_ms": 0.01}, ["the cheapest of all is euler-4"]),
    ],
)
async def test_where_none_fits_the_nearest_is_named(shared: Any, budget: Any, words: list[str]) -> None:
    message = await _refused(shared, budget=budget)
    assert all(word in message for word in words), message


async def test_without_a_frontier_the_command_is_named(shared: Any, repository: Path) -> None:
    message = await _refused(shared, model="digits", budget={"max_error": 0.1})
    assert message.endswith(f"have it measured: python -m models measure {repository}/digits/1")


@pytest.mark.parametrize("points", [(), (point("gone-9", 9, 0.1),)])
async def test_a_frontier_without_a_usable_solver_is_told(
    labels: Path, tmp_path: Path, engine: Any, points: tuple[Point, ...]
) -> None:
    shutil.copytree(labels / "labels", tmp_path / "labels")
    folder = tmp_path / "labels" / "1"
    frontier = read_frontier(folder, read_card(folder))
    assert frontier is not None
    curves = tuple(curve.model_copy(update={"points": points}) for curve in frontier.curves)
    frontier.model_copy(update={"curves": curves}).write(folder)
    app = create_app(Settings(models_dir=tmp_path, watch_s=0), engine)
    async with calling(app) as http:
        ask = {"model": "labels", "num_samples": 1, "condition": 1}
        for budget in ({"max_error": 0.1}, {"max_nfe": 5}, {"max_ms": 100}):
            answer = await http.post("/v1/sample", json={**ask, "budget": budget})
            assert answer.status_code == 422
            assert (
                "no solver that can be used was measured; name a solver, or have others measured:"
                in answer.json()["detail"]
            )


async def test_an_unfinished_frontier_is_to_be_measured_on(labels: Path, tmp_path: Path, engine: Any) -> None:
    shutil.copytree(labels / "labels", tmp_path / "my models" / "labels")
    folder = tmp_path / "my models" / "labels" / "1"
    frontier = read_frontier(folder, read_card(folder))
    assert frontier is not None
    part = tuple(curve.model_copy(update={"complete": curve.guidance == 1}) for curve in frontier.curves)
    frontier.model_copy(update={"curves": part}).write(folder)
    app = create_app(Settings(models_dir=tmp_path / "my models", watch_s=0), engine)
    async with calling(app) as http:
        ask = {"model": "labels", "num_samples": 1, "budget": {"max_error": 1e-9}, "condition": 1}
        messages = [(await http.post("/v1/sample", json={**ask, "guidance": g})).json()["detail"] for g in (1, 2)]
    assert "not all were measured" not in messages[0]
    more = "; not all were measured, and this measures the others: python -m models measure"
    assert messages[1].endswith(f"{more} '{folder}' --guidance 2")


async def test_times_and_limits_narrow_the_choice(repository: Path, engine: Any) -> None:
    app = create_app(Settings(models_dir=repository, watch_s=0, max_steps=8), engine)
    async with calling(app) as http:
        ask = {"model": "moons", "num_samples": 1, "budget": {"max_error": 0.01}}
        assert (await http.post("/v1/sample", json=ask)).json()["budget"]["solver"] == "rk4-5"  # ab4-9 has 9 steps
        saved = await http.post("/v1/sample", json={**ask, "save_at": [0.5]})
        assert saved.json()["budget"]["solver"] == "dopri5@1e-5"  # 0.5 is no point of five steps
        assert "; cheaper ones cannot be used here: steps = 9 is over the limit" in saved.json()["budget"]["reason"]
        refused = await http.post("/v1/sample", json={**ask, "budget": {"max_nfe": 4}, "save_at": [0.1]})
        assert refused.json()["errors"][0]["field"] == "save_at"


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conditional model, measured with guidance 1 and 2; and one with a frontier for other weights."""
    root = tmp_path_factory.mktemp("labelled")
    torch.manual_seed(0)
    network = ResidualMLP(
        ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=4, condition=NamedCondition.label(classes=3))
    )
    curves = tuple(
        Curve(guidance=g, samples=64, seed=0, spread=1.0, points=(point("rk4-2", 8, 0.02),)) for g in (1.0, 2.0)
    )
    for name in ("labels", "other"):
        folder = save(root, name, network, Decoder.identity((2,)), **ABOUT)
        weights = read_card(folder).weights_sha256 if name == "labels" else "0" * 64
        StoredFrontier(weights_sha256=weights, reference="", conditions="every label", curves=curves).write(folder)
    return root


async def test_guidance_must_be_the_measured_one(labels: Path, engine: Any) -> None:
    app = create_app(Settings(models_dir=labels, watch_s=0), engine)
    async with calling(app) as http:
        ask = {"model": "labels", "num_samples": 1, "budget": {"max_error": 0.05}, "condition": 1}
        for guidance in ({}, {"guidance": 1}, {"guidance": 2}):
            answer = await http.post("/v1/sample", json={**ask, **guidance})
            assert "with every label, not the conditions of this request" in answer.json()["budget"]["reason"]
        refused = (await http.post("/v1/sample", json={**ask, "guidance": 3})).json()
        assert "measured with guidance 1, 2" in refused["detail"]
        assert "--guidance 3" in refused["detail"]
        null = (await http.post("/v1/sample", json={**ask, "condition": None})).json()
        assert not null["budget"]["own_conditions"]
        other = (await http.post("/v1/sample", json={**ask, "model": "other"})).json()
        assert "belongs to other weights" in other["detail"]
        assert (await http.post("/v1/sample", json={"model": "other", "num_samples": 1})).status_code == 200
        missing = await http.get("/v1/models/other/frontier")
        assert missing.status_code == 404
        assert missing.json()["type"] == "/problems/no-frontier"
        assert "belongs to other weights" in missing.json()["detail"]
        found = conforming(FrontierBody, (await http.get("/v1/models/labels/frontier?version=1")).json())
        assert [curve["guidance"] for curve in found["curves"]] == [1, 2]
        assert found["curves"][0]["points"][0]["best"]
        assert (await http.get("/v1/models/labels/frontier?version=9")).status_code == 404


POINTS = st.builds(
    lambda nfe, error, adaptive: (
        point(f"rk4@{nfe}" if adaptive else f"rk4-{nfe}", nfe, error),
        nfe,
    ),
    st.integers(1, 200),
    st.floats(0, 1),
    st.booleans(),
)


@given(POINTS, st.floats(1e-3, 1), st.integers(1, 200), st.floats(1, 200))
def test_the_chosen_solver_meets_every_part_of_the_budget(pair: Any, error: float, nfe: int, ms: float) -> None:
    measured, predicted = pair
    whole = BudgetLimits(error, nfe, ms).fits(measured, predicted)
    parts = [
        part.fits(measured, predicted)
        for part in (BudgetLimits(error), BudgetLimits(None, nfe), BudgetLimits(max_ms=ms))
    ]
    assert whole == all(parts)
    if whole:
        assert measured.p95_high <= error
        assert measured.nfe_most <= nfe
        assert predicted <= ms
        assert not measured.adaptive


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Gaussian field with a frontier measured on it."""
    root = tmp_path_factory.mktemp("exact")
    folder = save(root, "gaussian", Gaussian(GaussianConfig()), Decoder.identity((2,)), **ABOUT)
    x0 = noise(0, 0, 256, (2,), torch.float64)
    curve = measure_curve(
        Field(Gaussian(GaussianConfig()).double()),
        x0,
        only=("ab4-4", "ab4-8", "rk4-6", "rk4-12", "rk4-24", "tsit5@1e-6"),
    )
    weights = read_card(folder).weights_sha256
    StoredFrontier(weights_sha256=weights, reference="exact", curves=(curve,)).write(folder)
    return root


@pytest.fixture(scope="module")
async def measured(exact: Path, anyio_backend: str) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    app = create_app(Settings(models_dir=exact, watch_s=0, threads=1))
    async with calling(app) as http:
        yield http, app.state.service


@pytest.mark.parametrize("max_error", [0.3, 0.03, 0.003, 1e-4])
async def test_the_promise_is_kept_on_95_percent_of_samples(measured: Any, max_error: float) -> None:
    http, _ = measured
    field = Gaussian(GaussianConfig())
    ask = {"model": "gaussian", "num_samples": 3000, "seed": 5, "budget": {"max_error": max_error}}
    found = (await http.post("/v1/sample", json=ask)).json()
    ends = field.exact(noise(5, 0, 3000, (2,), torch.float64)).numpy()
    distance = np.linalg.norm(np.array(found["samples"]) - ends, axis=1)
    spread = 0.5 * np.sqrt(2)  # of N(2, 0.5^2) in the plane
    assert (distance <= found["budget"]["promised_distance"]).mean() >= 0.95
    assert (distance / spread <= 1.1 * max_error).mean() >= 0.95  # the spread was measured on 256 samples
    assert found["budget"]["promised_error"] <= max_error


async def test_tuned_solvers_that_were_not_measured_are_named(exact: Path, tmp_path: Path) -> None:
    shutil.copytree(exact / "gaussian", tmp_path / "gaussian")
    folder = tmp_path / "gaussian" / "1"
    plan = StoredPlan(solver="ab4-4/tuned", times=(0, 0.2, 0.5, 0.8, 1), error=0.1, start_error=0.2)
    Plans(weights_sha256=read_card(folder).weights_sha256, plans=(plan,)).write(folder)
    app = create_app(Settings(models_dir=tmp_path, watch_s=0, threads=1))
    transport = httpx.ASGITransport(app)
    ask = {"model": "gaussian", "num_samples": 1, "budget": {"max_error": 0.3}}
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        reason = (await http.post("/v1/sample", json=ask)).json()["budget"]["reason"]
    assert "; ab4-4/tuned of this model cannot be chosen until measured: python -m models measure" in reason


async def test_a_budget_too_large_to_echo_is_refused(shared: Any) -> None:
    budget = {"max_nfe": 2**64}
    words = "budget.max_nfe = 18446744073709551616 is not allowed: it should be less than 9223372036854775808"
    assert await _refused(shared, budget=budget) == words
    stream = await shared.http.post("/v1/sample/stream", json={"model": "moons", "budget": budget})
    assert (stream.status_code, stream.json()["detail"]) == (422, words)
    inferred = await shared.http.post("/v2/models/moons/infer", json={"parameters": {"budget.max_nfe": 2**64}})
    assert (inferred.status_code, inferred.json()["error"]) == (400, words)
    largest = await _chosen(shared, num_samples=1, budget={"max_nfe": 2**63 - 1})
    assert largest["max_nfe"] == 2**63 - 1
