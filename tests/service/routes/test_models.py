"""Lists of models and solvers, checked against the repository and the catalogue."""

from typing import Any

import pytest

from service.responses.schemas import ModelBody, ModelListBody, SolverList
from solvers import catalogue
from solvers.grids import GRIDS
from solvers.spec import parameters
from tests.service.serving import conforming

pytestmark = pytest.mark.anyio


async def test_models(shared: Any) -> None:
    answer = conforming(ModelListBody, (await shared.http.get("/v1/models")).json())
    lines = {line["name"]: line for line in answer["models"]}
    assert list(lines) == ["broken", "digits", "gaussian", "moons"]
    assert [lines["moons"][name] for name in ("version", "dtype", "event_shape")] == [2, "float32", [2]]
    assert lines["gaussian"]["dtype"] == "float64"
    assert lines["digits"]["data_shape"] == [4, 4]
    assert (lines["broken"]["status"], lines["broken"]["version"]) == ("unavailable", None)


async def test_model_shows_its_cards(shared: Any) -> None:
    answer = conforming(ModelBody, (await shared.http.get("/v1/models/moons")).json())
    assert (answer["status"], answer["serving"], answer["versions"]) == ("served", 2, [1, 2])
    [newest] = [version for version in answer["served"] if version["version"] == 2]
    assert newest["card"]["architecture"]["name"] == "residual_mlp"
    assert newest["checkpoint"].startswith("sha256:")


async def test_broken_model_shows_its_reason(shared: Any) -> None:
    answer = conforming(ModelBody, (await shared.http.get("/v1/models/broken")).json())
    assert (answer["status"], answer["serving"], answer["served"]) == ("unavailable", None, [])
    assert answer["unavailable"][0]["version"] == 1
    assert "broken/1/weights.safetensors: is damaged" in answer["unavailable"][0]["reason"]


@pytest.mark.parametrize("name", ["nothing", "..", "%2e%2e", "moons%00", ".hidden"])
async def test_unknown_model(shared: Any, name: str) -> None:
    answer = await shared.http.get(f"/v1/models/{name}")
    assert answer.status_code == 404
    assert answer.json()["type"] in ("/problems/unknown-model", "/problems/no-such-route")


async def test_solvers_are_the_catalogue(shared: Any) -> None:
    answer = conforming(SolverList, (await shared.http.get("/v1/solvers")).json())
    assert answer["solvers"] == [
        entry.describe() | {"parameters": parameters(entry)} for entry in catalogue.solvers().values()
    ]
    assert {name for entry in answer["solvers"] for name in entry["parameters"]} == set(answer["settings"])
    assert list(answer["grids"]) == list(GRIDS)
    dopri5 = next(entry["parameters"] for entry in answer["solvers"] if entry["name"] == "dopri5")
    assert dopri5["controller"] == ["paper", "i", "pi"]  # the default first
    assert dopri5["max_step"] == answer["settings"]["max_step"]["kind"] == "number"
    assert {"euler", "midpoint", "rk4", "dopri5"} <= {entry["name"] for entry in answer["solvers"]}


async def test_openapi_lists_solvers_and_formats(shared: Any) -> None:
    document = (await shared.http.get("/openapi.json")).json()
    operation = document["paths"]["/v1/sample"]["post"]
    body = document["components"]["schemas"]["SampleRequest"]
    assert all(name in body["properties"]["solver"]["description"] for name in catalogue.solvers())
    assert "rk4-20" in body["properties"]["solver"]["examples"]
    assert body["required"] == ["model"]
    assert set(operation["responses"]["200"]["content"]) == {
        "application/json",
        "application/x-npz",
        "application/x-npy",
        "image/png",
    }
    assert "/sample" not in document["paths"]
    for status in ("404", "422", "429", "503", "504"):
        assert list(operation["responses"][status]["content"]) == ["application/problem+json"]


async def test_openapi_ids_are_unique(shared: Any) -> None:
    paths = (await shared.http.get("/openapi.json")).json()["paths"]
    ids = [operation["operationId"] for operations in paths.values() for operation in operations.values()]
    assert len(set(ids)) == len(ids) >= 8
    assert all(set(operations) <= {"get", "post"} for operations in paths.values())
