"""Decoders of states with free axes over HTTP with a real engine: data of each shape, encoding, and density."""

import asyncio
import io
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from engine.engine import Engine
from engine.job import SAMPLE
from models.checkpoint.loading import load
from service.analysis.log_prob import LOG_PROB_HUTCHINSON
from service.settings import Settings
from tests.service.serving import calling_models

from ..free import Enlarge, Vocoder, enlarge, mel, picture, vocoder

pytestmark = pytest.mark.anyio

MEAN, SCALE = np.array([-5.0, 0.25, 3.0], np.float32), np.array([2.0, 0.5, 4.0], np.float32)
BODY = {"model": "mel", "num_samples": 2, "seed": 3, "solver": "rk4-4"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Vocoder, Enlarge]:
    folder = tmp_path_factory.mktemp("decoders")
    repository = folder / "repository"
    mel(folder, repository, decoder={"mean": MEAN, "scale": SCALE[:, None], "clip": (-40.0, 40.0)})
    (sound, file), (larger, other) = vocoder(folder), enlarge(folder)
    mel(folder, repository, "speech", decoder={"program": file})
    picture(folder, repository, decoder={"program": other, "clip": (-0.5, 0.5)})
    return repository, sound, larger


@pytest.fixture(scope="module")
def repository(made: tuple[Path, Vocoder, Enlarge]) -> Path:
    return made[0]


@pytest.fixture(scope="module")
async def http(repository: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(repository) as http:
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
    listed = {model["name"]: model for model in (await http.get("/v1/models")).json()["models"]}["mel"]
    assert (listed["event_shape"], listed["data_shape"]) == ([3, "T"], [3, "T"])
    described = (await http.get("/v2/models/mel")).json()
    assert described["outputs"][0]["shape"] == [-1, 3, -1]


async def test_saved_states_and_archives_are_decoded_too(http: httpx.AsyncClient) -> None:
    body = BODY | {"shape": {"T": 6}, "save_at": [0.5, 1.0]}
    answer = await http.post("/v1/sample", json=body, headers={"Accept": "application/x-npz"})
    found = np.load(io.BytesIO(answer.content))
    states = await ask(http, shape={"T": 6}, save_at=[0.5, 1.0], decode=False)
    saved = np.float32(states["saved"]["states"])
    np.testing.assert_array_equal(found["saved"], saved * SCALE[:, None] + MEAN[:, None])
    np.testing.assert_array_equal(found["samples"], found["saved"][:, 1])


async def test_no_bit_depends_on_other_requests(http: httpx.AsyncClient) -> None:
    bodies = [{"shape": {"T": frames}, "seed": frames, "num_samples": n} for frames in (8, 12) for n in (1, 3, 70)]
    alone = [await ask(http, **each) for each in bodies]
    together = await asyncio.gather(*(ask(http, **each) for each in bodies))
    assert [each["samples"] for each in together] == [each["samples"] for each in alone]
    assert alone[2]["samples"][:3] == alone[1]["samples"]
    assert all(each["deterministic"] for each in alone)


async def test_data_are_encoded_and_their_density_counts_each_number(http: httpx.AsyncClient) -> None:
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


async def test_samples_of_a_disallowed_length_are_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/models/mel/encode", json={"samples": np.zeros((1, 3, 5)).tolist()})
    assert answer.status_code == 422
    assert "samples has T = 5, expected 4 to 40" in answer.json()["errors"][0]["message"]


def test_a_checkpoint_stores_one_number_per_channel(repository: Path) -> None:
    found = load(repository / "mel" / "1")
    assert found.card.data_shape == (3, "T")
    assert found.decoder.state_dict()["scale"].tolist() == SCALE.tolist()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("speech", {(1, 4 * 6 - 3): {"T": 6}, (1, 4 * 12 - 3): {"T": 12}}),
        ("picture", {(3, 10, 18): {"H": 5, "W": 6}, (3, 12, 15): {"H": 6, "W": 5}}),
    ],
)
async def test_a_program_decodes_each_shape(
    http: httpx.AsyncClient, made: tuple[Path, Vocoder, Enlarge], name: str, shapes: dict[Any, Any]
) -> None:
    for shape, sizes in shapes.items():
        data = await ask(http, model=name, shape=sizes, save_at=[0.5])
        states = await ask(http, model=name, shape=sizes, save_at=[0.5], decode=False)
        assert data["shape"] == [2, *shape]
        x = torch.tensor(states["samples"])
        expected = made[1](x) if name == "speech" else made[2](x).clamp(-0.5, 0.5)
        np.testing.assert_allclose(data["samples"], expected, rtol=0, atol=1e-6)
        assert np.shape(data["saved"]["states"]) == (2, 1, *shape)
        assert data["latency"]["decoder_s"] > 0


async def test_no_bit_of_a_program_depends_on_other_requests(http: httpx.AsyncClient) -> None:
    bodies = [{"model": "speech", "shape": {"T": frames}, "num_samples": n} for frames in (8, 12) for n in (1, 3, 20)]
    bodies += [{"model": "picture", "shape": {"H": 4, "W": frames}, "num_samples": 3} for frames in (4, 7)]
    alone = [await ask(http, **each) for each in bodies]
    together = await asyncio.gather(*(ask(http, **each) for each in bodies))
    assert [each["samples"] for each in together] == [each["samples"] for each in alone]
    assert alone[2]["samples"][:3] == alone[1]["samples"]
    assert all(each["deterministic"] for each in alone)


async def test_sizes_of_data_are_shown_and_have_no_way_back(http: httpx.AsyncClient) -> None:
    listed = {model["name"]: model for model in (await http.get("/v1/models")).json()["models"]}
    assert listed["speech"]["data_shape"] == [1, "4*T-3"]
    assert listed["picture"]["data_shape"] == [3, "2*H", "3*W"]
    assert (await http.get("/v2/models/speech")).json()["outputs"][0]["shape"] == [-1, 1, -1]
    png = await http.post(
        "/v1/sample", json=BODY | {"model": "picture", "shape": {"H": 5, "W": 6}}, headers={"Accept": "image/png"}
    )
    assert png.status_code == 200
    sound = np.zeros((1, 1, 4 * 6 - 3)).tolist()
    answer = await http.post("/v1/models/speech/encode", json={"samples": sound})
    assert answer.status_code == 422
    assert "which cannot be run backwards" in answer.json()["errors"][0]["message"]
    odd = await http.post("/v1/models/speech/encode", json={"samples": np.zeros((1, 1, 20)).tolist()})
    assert (odd.status_code, odd.json()["errors"][0]["field"]) == (422, "shape.T")
    wrong = await http.post("/v1/sample", json=BODY | {"model": "speech", "shape": {"T": 13}})
    assert "T = 13" in wrong.json()["errors"][0]["message"]


def test_operations_of_one_shape_share_the_stage_of_its_decoder(repository: Path) -> None:
    settings = Settings(models_dir=repository, watch_s=0, device="cpu", threads=1)
    engine = Engine(settings)
    engine.start()
    try:
        loaded = engine.load("speech", 1, load(repository / "speech" / "1"))
        short, long = (engine.prepare("speech", 1, SAMPLE, (("T", frames),)) for frames in (6, 8))
        dense = engine.prepare("speech", 1, LOG_PROB_HUTCHINSON, (("T", 6),))
        assert short.decoder is not None
        assert dense.decoder is short.decoder
        assert len({id(each.decoder) for each in (loaded, short, long)}) == 3
    finally:
        engine.stop()
