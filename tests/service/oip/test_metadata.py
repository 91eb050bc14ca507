"""Health, and the metadata of models."""

from typing import Any

import pytest
from pydantic import SecretStr

from models.checkpoint.card import Card
from models.conditions import NamedCondition
from service.app import create_app
from service.oip.description import metadata
from service.oip.outputs import ALWAYS, TRACE
from service.oip.routes import EXTENSIONS
from service.requests.schemas import SampleRequest
from service.requests.tensors import tensor_fields
from service.settings import Settings
from service.state import VERSION

pytestmark = pytest.mark.anyio


async def test_the_server(shared: Any) -> None:
    body = (await shared.http.get("/v2")).json()
    assert body == {"name": "pathline", "version": VERSION, "extensions": EXTENSIONS}


async def test_a_model(shared: Any) -> None:
    body = (await shared.http.get("/v2/models/moons")).json()
    assert (body["name"], body["versions"]) == ("moons", ["1", "2"])
    assert body["inputs"][0] == {"name": "x0", "datatype": "FP32", "shape": [-1, 2]}
    assert {"name": "known.values", "datatype": "FP32", "shape": [-1, 2]} in body["inputs"]
    assert {"name": "samples", "datatype": "FP32", "shape": [-1, 2]} in body["outputs"]
    assert [output["name"] for output in body["outputs"]] == [*ALWAYS, "saved", "log_prob", *TRACE]
    digits = (await shared.http.get("/v2/models/digits/versions/1")).json()
    assert digits["outputs"][0]["shape"] == [-1, 4, 4]
    assert (await shared.http.get("/v2/models/gaussian")).json()["outputs"][0]["datatype"] == "FP64"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (NamedCondition.label(classes=10), {"name": "condition", "datatype": "INT64", "shape": [-1]}),
        (NamedCondition.vector(width=3), {"name": "condition", "datatype": "FP32", "shape": [-1, 3]}),
    ],
)
async def test_a_conditional_model(running: Any, condition: Any, expected: dict[str, Any]) -> None:
    with await running.service.lease("moons", None) as served:
        pass
    card: Card = served.card.model_copy(update={"conditions": {"condition": condition}})
    object.__setattr__(served, "card", card)
    assert metadata(served, [1])["inputs"][1] == expected


async def test_every_tensor_of_a_request_is_an_input(running: Any) -> None:
    with await running.service.lease("moons", None) as served:
        pass
    conditions = {name: NamedCondition.vector(width=2) for name in ("a", "b")}
    card: Card = served.card.model_copy(update={"conditions": conditions})
    object.__setattr__(served, "card", card)
    inputs = {tensor["name"].partition(".")[0] for tensor in metadata(served, [1])["inputs"]}
    assert inputs == tensor_fields(SampleRequest).keys() - {"conditions"}  # each is condition.NAME here


async def test_data_in_float64_of_a_float32_model(running: Any) -> None:
    with await running.service.lease("moons", None) as served:
        pass
    decoder = served.card.decoder.model_copy(update={"dtype": "float64"})
    object.__setattr__(served, "card", served.card.model_copy(update={"decoder": decoder}))
    found = metadata(served, [1])
    types = {tensor["name"]: tensor["datatype"] for tensor in found["inputs"] + found["outputs"]}
    assert (types["x0"], types["samples"], types["saved"]) == ("FP32", "FP64", "FP64")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v2/health/live", 200),
        ("/v2/health/ready", 200),
        ("/v2/models/moons/ready", 200),
        ("/v2/models/moons/versions/1/ready", 200),
        ("/v2/models/moons/versions/7/ready", 404),
        ("/v2/models/nobody/ready", 404),
        ("/v2/models/broken/ready", 503),
        ("/v2/models/broken", 503),
    ],
)
async def test_health(running: Any, path: str, status: int) -> None:
    answer = await running.http.get(path)
    assert answer.status_code == status
    assert (list(answer.json()) == ["error"]) == (status != 200)
    assert (await running.http.head(path)).status_code == status


async def test_nothing_is_ready_while_the_service_drains(running: Any) -> None:
    running.service.drain()
    for path in ("/v2/health/ready", "/v2/models/moons/ready"):
        assert (await running.http.get(path)).status_code == 503
    assert (await running.http.get("/v2/health/live")).status_code == 200
    running.engine.alive = False
    assert (await running.http.get("/v2/health/live")).status_code == 503


async def test_keys(repository: Any, engine: Any) -> None:
    import httpx

    settings = Settings(models_dir=repository, watch_s=0, api_keys=(SecretStr("secret"),))
    transport = httpx.ASGITransport(create_app(settings, engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        refused = await http.get("/v2/models/moons")
        assert (refused.status_code, list(refused.json())) == (401, ["error"])
        assert (await http.get("/v2/health/live")).status_code == 200
        assert (await http.get("/v2", headers={"X-API-Key": "secret"})).status_code == 200
