"""Requests to fields of average velocity: Euler steps, one by default; anything else is refused with advice."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch

from models.architectures.residual_mlp import ResidualMLPSize
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.velocity import FieldKind
from service.app import create_app
from service.settings import Settings
from tests.service.conftest import FakeEngine
from tests.service.serving import calling

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    size = ResidualMLPSize(hidden=8, blocks=1, time_width=4)
    student: dict[str, Any] = {"student": {"parent": "teacher"}}
    labels = NamedCondition.label(classes=3, null=False)
    for name, condition, dataset in (("quick", None, student), ("labels", labels, {}), ("plain", None, None)):
        torch.manual_seed(0)
        model = size.network((2,), condition, FieldKind.VELOCITY if dataset is None else FieldKind.AVERAGE)
        save(root, name, model, Decoder.identity((2,)), dataset=dataset or {}, training={}, seed=0)
    return root


@pytest.fixture(scope="module")
async def http(root: Path, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(models_dir=root, watch_s=0), cast(Any, FakeEngine()))
    async with calling(app) as http:
        yield http


UNIFORM = {"name": "uniform"}


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 1),
        ({"solver": "euler"}, 1),
        ({"steps": 4}, 4),
        ({"solver": "euler", "steps": 2}, 2),
        ({"solver": "EULER-8"}, 8),
        ({"solver": "euler-3/sway"}, 3),
        ({"grid": [0.0, 0.2, 1.0]}, 2),
        ({"solver": "euler", "grid": {"name": "shift", "value": 3.0}}, 1),
        ({"save_at": [1.0]}, 1),
        ({"t_span": [0.5, 1.0], "x0": [[0.0, 0.0]]}, 1),
    ],
)
async def test_one_step_is_the_default_and_any_grid_of_eulers_will_do(
    http: httpx.AsyncClient, given: dict[str, Any], steps: int
) -> None:
    answer = await http.post("/v1/sample", json={"model": "quick", "num_samples": 1, **given})
    assert answer.status_code == 200, answer.text
    solver = answer.json()["solver"]
    assert (solver["name"], solver["steps"]) == ("euler", steps)


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"solver": "dopri5"}, "solver", "field of average velocity"),
        ({"solver": "rk4-20"}, "solver", "Use 'euler' with 1 step (the default), 2 or 4"),
        ({"solver": "rk4"}, "solver", "no stages and no local error"),
        ({"solver": "ab2-4"}, "solver", "field of average velocity"),
        ({"rtol": 1e-3}, "rtol", "euler has no error estimate"),
        ({"solver": "nonsense!"}, "solver", "is not understood"),
        ({"steps": 10**9}, "steps", "over the limit"),
        ({"t_span": [1.0, 0.0], "x0": [[0.0, 0.0]]}, "t_span", "it goes from noise to data only"),
    ],
)
async def test_another_solver_is_refused_with_the_reason_and_what_to_use(
    http: httpx.AsyncClient, given: dict[str, Any], field: str, words: str
) -> None:
    answer = await http.post("/v1/sample", json={"model": "quick", "num_samples": 1, **given})
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["errors"][0]["field"] == field
    assert words in problem["errors"][0]["message"]


@pytest.mark.parametrize(
    ("does", "body"),
    [("encode", {"samples": [[0.0, 0.0]]}), ("log_prob", {"samples": [[0.0, 0.0]]}), ("diagnose", {})],
)
async def test_what_needs_the_velocity_of_an_ode_is_refused(
    http: httpx.AsyncClient, does: str, body: dict[str, Any]
) -> None:
    answer = await http.post(f"/v1/models/quick/{does}", json=body)
    assert answer.status_code == 422
    message = answer.json()["errors"][0]["message"]
    assert "field of average velocity" in message
    assert "ask 'teacher', the model that it was trained on" in message
    answer = await http.post(f"/v1/models/labels/{does}", json={**body, "condition": 1})
    assert "ask a model that has one" in answer.json()["errors"][0]["message"]


async def test_budgets_and_frontiers_are_refused_for_want_of_an_endpoint_error(http: httpx.AsyncClient) -> None:
    requests = {"model": "quick", "num_samples": 1, "budget": {"max_error": 0.01}}
    answer = await http.post("/v1/sample", json=requests)
    assert answer.status_code == 422
    [problem] = answer.json()["errors"]
    assert problem["field"] == "budget"
    assert "it has no endpoint error, so no frontier; compare its samples with data" in problem["message"]
    answer = await http.get("/v1/models/quick/frontier")
    assert answer.status_code == 404
    assert "it has no endpoint error, so no frontier; compare its samples with data" in answer.json()["detail"]


async def test_labels_come_along_and_guidance_does_not(http: httpx.AsyncClient) -> None:
    body = {"model": "labels", "num_samples": 2, "condition": [0, 2]}
    assert (await http.post("/v1/sample", json=body)).status_code == 200
    refused = await http.post("/v1/sample", json={**body, "guidance": 2.0})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "guidance"


async def test_the_catalogue_says_what_a_network_returns(http: httpx.AsyncClient) -> None:
    listed = {each["name"]: each["field"] for each in (await http.get("/v1/models")).json()["models"]}
    assert listed == {"quick": "average_velocity", "labels": "average_velocity", "plain": "velocity"}
    card = (await http.get("/v1/models/quick")).json()["served"][0]["card"]
    assert card["field"] == "average_velocity"
