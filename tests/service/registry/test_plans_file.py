"""Tuned plans of served models: noticed when added or changed, refused with a reason, requested like any solver."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.arena import Arena
from engine.device import Device
from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.checkpoint.plans import PLANS_FILE, Plans, StoredPlan
from service.app import create_app
from service.registry.registry import Registry
from service.routes.models import describe, summary
from service.settings import Settings
from tests.service.registry.asking import leased, registry_of
from tests.service.serving import calling

pytestmark = pytest.mark.anyio


def plan(steps: int) -> StoredPlan:
    times = tuple(k / steps for k in range(steps + 1))
    rows = tuple(tuple(1 / steps / (n + 1) for _ in range(n + 1)) for n in range(steps))
    return StoredPlan(solver=f"tuned-{steps}", times=times, weights=rows, error=0.1, start_error=0.2)


def write(folder: Path, *steps: int, **changes: Any) -> None:
    content = Plans(weights_sha256=read_card(folder).weights_sha256, plans=tuple(map(plan, steps)))
    content.model_copy(update=changes).write(folder)


@pytest.fixture
def root(repository: Path, tmp_path: Path) -> Path:
    shutil.copytree(repository / "moons", tmp_path / "moons")
    return tmp_path


def tuned(models: Registry) -> tuple[list[str], str]:
    found = dict[str, Any](summary(models.entry("moons")))
    served = describe(models.entry("moons"))["served"][0]
    assert (served["tuned"], served["tuned_fault"]) == (found["tuned"], found["tuned_fault"])
    return found["tuned"], found["tuned_fault"]


def test_plans_that_come_and_change_are_noticed(root: Path, engine: Any) -> None:
    models, folder = registry_of(root, engine), root / "moons" / "2"
    models.load_all()
    assert tuned(models) == ([], "")
    with leased(models, "moons") as before:
        write(folder, 4, 6)
        models.refresh()
        assert tuned(models) == (["tuned-4", "tuned-6"], "")
        with leased(models, "moons") as now:
            assert before.plans is None
            assert now.plans is not None
            assert now.leases is before.leases
    write(folder, 9)
    models.refresh()
    assert tuned(models) == (["tuned-9"], "")
    assert list(engine.loaded) == [("moons", 2)]  # the weights were loaded once
    (folder / PLANS_FILE).unlink()
    models.refresh()
    assert tuned(models) == ([], "")


def test_plans_that_cannot_be_used_leave_the_model_served(
    root: Path, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    models, folder = registry_of(root, engine), root / "moons" / "2"
    write(folder, 4, weights_sha256="ab" * 32)
    with caplog.at_level(logging.WARNING, "pathline"):
        models.load_all()
    texts, fault = tuned(models)
    assert texts == []
    assert fault.startswith("plans.json: belongs to other weights")
    assert "ab" * 32 in fault
    assert read_card(folder).weights_sha256 in fault
    assert str(root) not in fault
    assert "is served without its tuned plans: plans.json: belongs to other weights" in caplog.text
    assert summary(models.entry("moons"))["status"] == "served"
    write(folder, 5)
    models.refresh()
    assert tuned(models) == (["tuned-5"], "")
    content = (folder / PLANS_FILE).read_bytes()
    (folder / PLANS_FILE).write_bytes(content[:-40])
    models.refresh()
    texts, fault = tuned(models)
    assert texts == []
    assert "tune the model again" in fault


def test_a_version_loaded_again_has_its_plans(root: Path, engine: Any) -> None:
    models = registry_of(root, engine)
    models.load_all()
    with leased(models, "moons"):
        write(root / "moons" / "2", 4)
        models.refresh()
        models.unload("moons").result()
    with leased(models, "moons") as again:
        assert again.plans is not None
        assert again.plans.texts == ["tuned-4"]


@pytest.fixture
def settings(root: Path) -> Settings:
    write(root / "moons" / "2", 4, 6)
    return Settings(models_dir=root, watch_s=0)


async def test_requests(running: Any) -> None:
    body = (await running.post(solver="tuned-6", num_samples=3)).json()
    assert {"name": "tuned", "steps": 6}.items() <= body["solver"].items()
    assert body["solver"]["plan"].startswith("sha256:")
    assert running.engine.jobs[0].plan.nfe == 6
    apart = (await running.post(solver="tuned", steps=4, num_samples=1)).json()
    assert apart["solver"]["steps"] == 4
    answer = await running.post(solver="tuned-5")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "steps"
    assert "available: tuned-4, tuned-6" in answer.json()["errors"][0]["message"]
    answer = await running.post(solver="tuned-4", t_span=[0, 0.5])
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "t_span")
    listed = (await running.http.get("/v1/solvers")).json()["solvers"]
    assert "tuned" not in {each["name"] for each in listed}
    [line] = (await running.http.get("/v1/models")).json()["models"]
    assert line["tuned"] == ["tuned-4", "tuned-6"]


@pytest.mark.parametrize("solver", ["tuned-4", "ab4-4/tuned"])
async def test_a_request_is_told_why_there_are_no_plans(root: Path, engine: Any, solver: str) -> None:
    write(root / "moons" / "2", 4)
    path = root / "moons" / "2" / PLANS_FILE
    path.write_bytes(path.read_bytes()[:-20])
    async with calling(create_app(Settings(models_dir=root, watch_s=0), engine)) as http:
        answer = await http.post("/v1/sample", json={"model": "moons", "solver": solver})
        assert answer.status_code == 422
        detail = answer.json()["detail"]
        assert "Its file of plans cannot be used: plans.json: value: Invalid JSON: EOF" in detail
        assert "found b'" not in detail
        served = await http.post("/v1/sample", json={"model": "moons", "solver": "ab4-4", "num_samples": 1})
        assert served.status_code == 200


def test_lanes_have_the_slots_that_plans_need(root: Path) -> None:
    folder = root / "moons" / "2"
    counts = {}
    for steps in (4, 11):
        write(folder, steps)
        arena = Arena(load(folder), Device(torch.device("cpu")))
        counts[steps] = arena.lanes[False].bank.slots
    assert counts == {4: 7, 11: 11}
