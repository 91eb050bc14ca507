"""The example of a speech decoder: spectrograms of any length are those of a plain loop, scaled back to data."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from torch import nn

from models.noise import noise
from service.app import create_app
from service.settings import Settings
from solvers import integrate
from tests.examples.support import load_example
from tests.service.serving import calling

pytestmark = pytest.mark.anyio

example = load_example("mel_decoder")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    repository = tmp_path_factory.mktemp("mel") / "checkpoints"
    return example.imported(repository)[0], repository


@pytest.fixture
async def http(made: tuple[nn.Module, Path]) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(models_dir=made[1], device="cpu", threads=1, watch_s=0, allow_programs=True, calibration_s=0.5)
    async with calling(create_app(settings)) as http:
        yield http


async def test_spectrograms_are_those_of_a_plain_loop(http: httpx.AsyncClient, made: tuple[nn.Module, Path]) -> None:
    for frames in (12, 32):
        mu = np.random.default_rng(frames).normal(size=(example.MELS, frames)).astype(np.float32)
        body = {"model": "mel", "num_samples": 2, "seed": 5, "solver": "euler-4"}
        answer = await http.post("/v1/sample", json=body | {"conditions": {"mu": mu.tolist()}})
        assert answer.status_code == 200, answer.text
        told, mask = torch.from_numpy(mu).expand(2, -1, -1), torch.ones(2, frames, dtype=torch.bool)
        start = noise(5, 0, 2, mu.shape, free=(1,))
        x = integrate(lambda x, t: made[0](x, t, told, mask), start, solver="euler", steps=4).x.numpy()  # noqa: B023
        expected = x * example.DEVIATION[:, None] + example.MEAN[:, None]
        np.testing.assert_allclose(answer.json()["samples"], expected, rtol=0, atol=1e-4)
