"""Decoders of states with free axes over HTTP: the data of each shape, back again, and their density; a real engine."""

import asyncio
import io
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from models.checkpoint.loading import load
from service.app import create_app
from service.settings import Settings

from ..free import mel

pytestmark = pytest.mark.anyio

MEAN, SCALE = np.array([-5.0, 0.25, 3.0], np.float32), np.array([2.0, 0.5, 4.0], np.float32)
BODY = {"model": "mel", "num_samples": 2, "seed": 3, "solver": "rk4-4"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoders")
    mel(folder, folder / "repository", decoder={"mean": MEAN, "scale": SCALE[:, None], "clip": (-40.0, 40.0)})
    return folder / "repository"


@pytest.fixture
async def http(repository: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(
        models_dir=repository, device="cpu", threads=1, watch_s=0, allow_programs=True, calibration_s=0.5
    )
    app = create_app(settings)
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield http


async def ask(http: httpx.AsyncClient, path: str = "/v1/sample", **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json=BODY | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_states_are_scaled_by_channel_at_any_length(http: httpx.AsyncClient) -> None:
    for frames in (4, 12):
        data = await ask(http, shape={"T": frames})
        states = await ask(http, shape={"T": frames}, decode=False)
        assert data["shape"] == states["shape"] == [2, 3, frames]
        scaled = np.float32(states["samples"]) * SCALE[:, None] + MEAN[:, None]
        np.testing.assert_array_equal(np.float32(data["samples"]), scaled)
    listed = (await http.get("/v1/models")).json()["models"][0]
    assert (listed["event_shape"], listed["data_shape"]) == ([3, "T"], [3, "T"])
    described = (await http.get("/v2/models/mel")).json()
    assert described["outputs"][0]["shape"] == [-1, 3, -1]


async def test_saved_states_and_archives_are_data_too(http: httpx.AsyncClient) -> None:
    body = BODY | {"shape": {"T": 6}, "save_at": [0.5, 1.0]}
    answer = await http.post("/v1/sample", json=body, headers={"Accept": "application/x-npz"})
    found = np.load(io.BytesIO(answer.content))
    states = await ask(http, shape={"T": 6}, save_at=[0.5, 1.0], decode=False)
    saved = np.float32(states["saved"]["states"])
    np.testing.assert_array_equal(found["saved"], saved * SCALE[:, None] + MEAN[:, None])
    np.testing.assert_array_equal(found["samples"], found["saved"][:, 1])


async def test_no_bit_depends_on_company(http: httpx.AsyncClient) -> None:
    asked = [{"shape": {"T": frames}, "seed": frames, "num_samples": n} for frames in (8, 12) for n in (1, 3, 70)]
    alone = [await ask(http, **each) for each in asked]
    together = await asyncio.gather(*(ask(http, **each) for each in asked))
    assert [each["samples"] for each in together] == [each["samples"] for each in alone]
    assert alone[2]["samples"][:3] == alone[1]["samples"]
    assert all(each["deterministic"] for each in alone)


async def test_data_go_back_and_their_density_counts_each_number(http: httpx.AsyncClient) -> None:
    for frames in (4, 10):
        data = (await ask(http, shape={"T": frames}))["samples"]
        x = ((np.float32(data) - MEAN[:, None]) / SCALE[:, None]).tolist()
        back = {"samples": data, "solver": "rk4-8"}
        encoded, states = [
            (await http.post("/v1/models/mel/encode", json=body)).json()
            for body in (back, back | {"samples": x, "decode": False})
        ]
        assert encoded["x0"] == states["x0"]
        assert max(encoded["residual"]) < 1e-4
        dense, of_states = [
            (await http.post("/v1/models/mel/log_prob", json=body | {"divergence": "exact"})).json()
            for body in (back, back | {"samples": x, "decode": False})
        ]
        volume = frames * sum(math.log(each) for each in SCALE)
        assert np.subtract(of_states["log_prob"], dense["log_prob"]) == pytest.approx([volume] * 2)


async def test_samples_of_a_length_that_is_not_allowed_are_told(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/models/mel/encode", json={"samples": np.zeros((1, 3, 5)).tolist()})
    assert answer.status_code == 422
    assert "samples has T = 5, expected 4 to 40" in answer.json()["errors"][0]["message"]


def test_a_checkpoint_keeps_one_number_a_channel(repository: Path) -> None:
    found = load(repository / "mel" / "1")
    assert found.card.data_shape == (3, "T")
    assert found.decoder.state_dict()["scale"].tolist() == SCALE.tolist()
