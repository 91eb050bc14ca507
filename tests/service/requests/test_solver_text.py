"""Solvers as text in requests: the table that all clients share, and separate members."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from models.velocity import FieldKind
from service.errors import ProblemError
from service.requests.parsing import check
from service.requests.schemas import SampleRequest
from service.requests.solver import request_plan
from service.settings import Settings
from solvers.plan import Plan
from tests.solvers.support import TUNED

pytestmark = pytest.mark.anyio

TABLE = json.loads(Path(__file__).parents[2].joinpath("solvers/solver_text.json").read_text())
CARD = SimpleNamespace(field=FieldKind.VELOCITY, sampling=None)
NUMBERS = {"dtype": torch.float64, "compute": torch.float64}
MODEL: Any = SimpleNamespace(name="m", **NUMBERS, plans=TUNED, plans_fault="", card=CARD)


def plan(settings: Settings, **members: Any) -> Plan:
    request = check(SampleRequest, {"model": "m", **members})
    grid = members.get("grid")
    backwards = isinstance(grid, list) and grid[0] > grid[-1]
    return request_plan(
        request, MODEL, (1.0, 0.0) if backwards or "(1," in str(members["solver"]) else (0.0, 1.0), settings
    )


@pytest.mark.parametrize("row", TABLE["accepted"][::6], ids=lambda row: row["text"])
def test_a_text_is_its_members(settings: Settings, row: dict[str, Any]) -> None:
    by_text = plan(settings, solver=row["text"])
    assert by_text is plan(settings, **row["fields"])
    assert str(by_text.spec) == row["canonical"]
    assert plan(settings, **(row["fields"] | {"solver": row["text"]})) is by_text  # given twice, with equal values


@pytest.mark.parametrize("text", TABLE["refused"][::4])
def test_text_that_is_not_understood(settings: Settings, text: str) -> None:
    with pytest.raises(ProblemError) as caught:
        plan(settings, solver=text)
    assert caught.value.kind.status == 422
    assert [fault["field"] for fault in caught.value.errors] in (["solver"], ["grid"])


@pytest.mark.parametrize(
    ("members", "field", "words"),
    [
        ({"solver": "rk4-20", "steps": 21}, "steps", ["rk4-20", "steps = 20", "steps = 21"]),
        ({"solver": "dopri5@1e-5", "atol": 1e-6}, "atol", ["dopri5@1e-5", "atol = 1e-05", "atol = 1e-06"]),
        ({"solver": "rk4-20/shift(3)", "grid": "uniform"}, "grid", ["shift(3)", "uniform"]),
        ({"solver": "dopri5+max_nfe=500", "max_nfe": 10_000}, "max_nfe", ["max_nfe = 500", "max_nfe = 10000"]),
        ({"solver": "rk4-20", "rtol": 1e-3}, "rtol", ["rk4"]),
        ({"solver": "rk4-200000"}, "steps", ["steps = 200000", "over the limit of"]),
        ({"solver": "dopri5+max_nfe=200000000"}, "max_nfe", ["over the limit of"]),
        ({"solver": "rk4"}, "steps", ["rk4-20"]),
    ],
)
async def test_refused(shared: Any, members: dict[str, Any], field: str, words: list[str]) -> None:
    answer = await shared.post(**members)
    problem = answer.json()
    assert answer.status_code == 422
    assert [fault["field"] for fault in problem["errors"]] == [field]
    assert all(word in problem["detail"] for word in words), problem["detail"]


@pytest.mark.parametrize("solver", ["tuned", "tuned-6", "ab2-3/tuned"])
async def test_who_asks_for_a_tuned_plan_that_does_not_exist_is_told_how_to_get_one(shared: Any, solver: str) -> None:
    detail = (await shared.post(solver=solver)).json()["detail"]
    folder = shared.service.settings.models_dir / "moons" / "2"
    assert f"Here no plans were tuned for this model; python -m training tune {folder} learns some of 4 to" in detail


async def test_a_text_shares_steps_as_its_member_does(shared: Any) -> None:
    answer = await shared.post(solver="dopri5@1e-3+batch", first_index=3)
    assert [fault["field"] for fault in answer.json()["errors"]] == ["first_index"]


@pytest.mark.parametrize("path", ["encode", "log_prob", "diagnose", "/v2"])
async def test_every_door_reads_text(shared: Any, path: str) -> None:
    given = {"samples": [[0.5, 0.5]], "solver": "RK4-3"}
    if path == "/v2":
        answer = await shared.http.post(
            "/v2/models/moons/infer", json={"parameters": {"solver": "RK4-3", "num_samples": 1}}
        )
        assert answer.json()["parameters"]["solver"] == "rk4"
    else:
        body = {"num_samples": 1, "times": [0.0], "solver": "RK4-3"} if path == "diagnose" else given
        answer = await shared.http.post(f"/v1/models/moons/{path}", json=body)
    assert shared.engine.jobs[0].plan.settings == {
        "name": "rk4",
        "steps": 3,
        "grid": "uniform",
        "max_nfe": 10_000,
        "text": "rk4-3",
    }
