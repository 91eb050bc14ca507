"""The example of a latent flow: served pictures equal those of a plain loop followed by the VAE's decoder."""

import asyncio
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

BODY: dict[str, Any] = {"model": "latent", "num_samples": 3, "seed": 4, "solver": "euler-8"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, nn.Module, Path]:
    repository = tmp_path_factory.mktemp("latent") / "checkpoints"
    return *load_example("latent_image").imported(repository)[:2], repository


@pytest.fixture(scope="module")
async def http(made: tuple[nn.Module, nn.Module, Path]) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(made[2]) as http:
        yield http


async def test_pictures_are_those_of_a_plain_loop(
    http: httpx.AsyncClient, made: tuple[nn.Module, nn.Module, Path]
) -> None:
    network, decoder, _ = made
    answer = await http.post("/v1/sample", json=BODY)
    assert answer.status_code == 200, answer.text
    states = integrate(network, noise(4, 0, 3, (4, 4, 4)), solver="euler", steps=8).x
    with torch.no_grad():
        wanted = decoder(states).clamp(-1, 1)
    np.testing.assert_allclose(answer.json()["samples"], wanted.numpy(), atol=1e-4)
    sheet = await http.post("/v1/sample", json=BODY, headers={"Accept": "image/png"})
    assert sheet.content.startswith(b"\x89PNG")


async def test_a_picture_has_the_same_bits_in_any_company(http: httpx.AsyncClient) -> None:
    bodies = [BODY | {"seed": k, "num_samples": 1 + k % 3, "solver": ("euler-8", "ab2-6")[k % 2]} for k in range(6)]
    alone = [(await http.post("/v1/sample", json=body)).json()["digest"] for body in bodies]
    together = await asyncio.gather(*(http.post("/v1/sample", json=body) for body in bodies))
    assert [each.json()["digest"] for each in together] == alone
