"""Nulls as flags, replays with conditions by name, conditions from the SDK, and the memory that they take."""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from fastapi import FastAPI
from pathline import AsyncClient, PathlineError
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program
from models.noise import noise
from service.app import create_app
from service.settings import Settings
from solvers import integrate
from tests.service.serving import calling

from ..latent import export

pytestmark = pytest.mark.anyio

TEXT = [0.3, -0.7, 1.1]
BODY: dict[str, Any] = {"model": "flagged", "num_samples": 3, "seed": 2, "solver": "rk4-4"}


class Flagged(nn.Module):
    """A velocity of 2 numbers, given a text or a flag that there is none."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.first, self.last = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, 2)
        self.none = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor, t: Tensor, text: Tensor, missing: Tensor) -> Tensor:
        shown = torch.where(missing[:, None], self.none, self.text(text))
        return self.last(torch.tanh(self.first(torch.cat((x, t[:, None]), 1)) + shown))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Flagged, Path]:
    folder = tmp_path_factory.mktemp("flagged")
    torch.manual_seed(0)
    network = Flagged().eval().requires_grad_(False)
    file = export(network, (torch.randn(4, 2), torch.rand(4), torch.randn(4, 3), torch.ones(4) > 0), folder / "net.pt2")
    import_program(
        *(file, folder / "repository", "flagged"),
        inputs=["x", "t", "text", "missing"],
        conditions={"text": {"null": {"flag": "missing"}}},
        declared=Declared(noise_at=0, scale=1.0, sign=1),
    )
    return network, folder / "repository"


def app_of(made: tuple[Flagged, Path], **settings: Any) -> FastAPI:
    return create_app(Settings(models_dir=made[1], device="cpu", threads=1, watch_s=0, allow_programs=True, **settings))


@pytest.fixture
async def http(made: tuple[Flagged, Path]) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(app_of(made)) as client:
        yield client


async def ask(http: httpx.AsyncClient, path: str = "/v1/sample", **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json=BODY | body)
    return answer.json() | {"code": answer.status_code}


def solved(network: Flagged, text: list[float] | None, strength: float | None = None, null: Any = None) -> np.ndarray:
    def velocity(x: Tensor, t: Tensor, shown: list[float] | None) -> Tensor:
        given = torch.tensor(shown or [0.0] * 3).expand(len(x), -1)
        return network(x, t, given, torch.full((len(x),), shown is None))

    def field(x: Tensor, t: Tensor) -> Tensor:
        if strength is None:
            return velocity(x, t, text)
        base = velocity(x, t, null)
        return base + strength * (velocity(x, t, text) - base)

    return integrate(field, noise(2, 0, 3, (2,)), solver="rk4", steps=4).x.numpy()


async def test_a_missing_condition_raises_its_flag(http: httpx.AsyncClient, made: tuple[Flagged, Path]) -> None:
    network = made[0]
    shown, untold = await ask(http, conditions={"text": TEXT}), await ask(http)
    np.testing.assert_allclose(shown["samples"], solved(network, TEXT), atol=1e-5)
    np.testing.assert_allclose(untold["samples"], solved(network, None), atol=1e-5)
    guided = await ask(http, conditions={"text": TEXT}, guidance=3)
    np.testing.assert_allclose(guided["samples"], solved(network, TEXT, 3.0), atol=1e-4)
    other = [1.0, 1.0, 1.0]
    negative = await ask(http, conditions={"text": TEXT}, guidance=3, negative={"text": other})
    np.testing.assert_allclose(negative["samples"], solved(network, TEXT, 3.0, other), atol=1e-4)


async def test_requests_cannot_set_a_flag(http: httpx.AsyncClient) -> None:
    refused = await ask(http, conditions={"missing": True})
    assert refused["code"] == 422
    assert refused["errors"][0]["field"] == "conditions.missing"


async def test_a_replay_needs_the_same_conditions_again(http: httpx.AsyncClient) -> None:
    first = await ask(http, conditions={"text": TEXT}, guidance=3, negative={"text": [1.0, 0.0, 0.0]})
    own = first | {"conditions": {"text": TEXT}, "negative": {"text": [1.0, 0.0, 0.0]}}
    again = (await http.post("/v1/replay", json=own)).json()
    assert (again["digest_matches"], again["samples"]) == (True, first["samples"])
    for lacking in (first, own | {"conditions": {"text": [0.0] * 3}}):
        refused = await http.post("/v1/replay", json=lacking)
        assert refused.status_code == 422, refused.text
        assert "hash" in refused.json()["errors"][0]["message"]


async def test_a_replay_without_conditions_uses_the_nulls(http: httpx.AsyncClient) -> None:
    first = await ask(http)
    again = (await http.post("/v1/replay", json=first)).json()
    assert (again["digest_matches"], again["samples"]) == (True, first["samples"])


async def test_the_sdk_sends_arrays_and_tensors_alike(made: tuple[Flagged, Path]) -> None:
    app = app_of(made)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), AsyncClient("http://test", transport=transport) as client:
        array = np.array(TEXT, np.float32)
        found = [
            await client.sample("flagged", 3, seed=2, solver="rk4-4", conditions={"text": text})
            for text in (TEXT, array, torch.tensor(TEXT), array.astype(np.float16).astype(np.float64))
        ]
        many = await client.sample("flagged", 3, seed=2, solver="rk4-4", conditions={"text": np.stack([array] * 3)})
        for each in (*found[1:3], many):
            np.testing.assert_array_equal(each.samples, found[0].samples)
        np.testing.assert_allclose(found[3].samples, found[0].samples, atol=1e-2)
        with pytest.raises(PathlineError, match=r"condition .text. has the shape"):
            await client.sample("flagged", 3, conditions={"text": torch.zeros(4)})


async def test_conditions_wait_for_memory_or_are_refused(made: tuple[Flagged, Path]) -> None:
    app = app_of(made, max_condition_bytes=400)
    async with calling(app) as http:
        hold = app.state.service.conditions.take(390, math.inf)
        answer = await http.post("/v1/sample", json=BODY | {"conditions": {"text": TEXT}})
        assert answer.status_code == 429, answer.text
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["retry_after_s"] > 0
        assert "PATHLINE_MAX_CONDITION_BYTES" in answer.json()["detail"]
        hold.release()
        assert (await http.post("/v1/sample", json=BODY | {"conditions": {"text": TEXT}})).status_code == 200
        large = BODY | {"num_samples": 100, "conditions": {"text": [TEXT] * 100}}
        answer = await http.post("/v1/sample", json=large)
        assert answer.status_code == 413, answer.text
        assert answer.json()["needed_bytes"] > answer.json()["limit_bytes"] == 400
        assert app.state.service.conditions.reserved == 0
