"""The example of a mel decoder: served spectrograms equal those of a plain loop, whatever other lengths are served."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import nn

from models.noise import noise
from solvers import integrate
from tests.examples.support import load_example
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio

MEAN, DEVIATION = (np.linspace(a, b, 80, dtype=np.float32)[:, None] for a, b in ((-4.0, -8.0), (2.5, 1.5)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    repository = tmp_path_factory.mktemp("mel") / "checkpoints"
    return load_example("mel_decoder").imported(repository)[0], repository


@pytest.fixture(scope="module")
async def http(made: tuple[nn.Module, Path]) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(made[1]) as http:
        yield http


async def ask(http: httpx.AsyncClient, **body: Any) -> np.ndarray:
    answer = await http.post("/v1/sample", json={"model": "mel", "num_samples": 2, "solver": "euler-4"} | body)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["samples"], dtype=np.float32)


async def test_spectrograms_are_those_of_a_plain_loop(http: httpx.AsyncClient, made: tuple[nn.Module, Path]) -> None:
    mu = torch.from_numpy(np.random.default_rng(0).normal(size=(80, 24)).astype(np.float32))
    mask = torch.arange(24) < 21
    x, inputs = noise(5, 0, 2, (80, 24), free=(1,)), (mu.expand(2, -1, -1), mask.expand(2, -1))
    with torch.no_grad():
        for step in range(4):
            x = x + made[0](x, torch.full((2,), step / 4), *inputs) / 4
    found = await ask(http, seed=5, conditions={"mu": mu.tolist(), "mask": mask.tolist()})
    np.testing.assert_allclose(found, x.numpy() * DEVIATION + MEAN, rtol=0, atol=1e-4)
    again = integrate(
        lambda x, t: made[0](x, t, mu.expand(len(x), -1, -1), torch.ones(len(x), 24, dtype=torch.bool)),
        noise(5, 0, 2, (80, 24), free=(1,)),
        solver="rk4",
        steps=2,
    )
    unmasked = await ask(http, seed=5, solver="rk4-2", conditions={"mu": mu.tolist()})
    np.testing.assert_allclose(unmasked, again.x.numpy() * DEVIATION + MEAN, rtol=0, atol=1e-4)
