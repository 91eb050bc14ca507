"""The example of an action transformer: served actions equal those of a loop, and requests share calls."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from pathline._request import sample_request
from torch import nn

from models.noise import noise
from solvers import integrate
from tests.examples.support import load_example
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, nn.Module, Path]:
    repository = tmp_path_factory.mktemp("actions") / "checkpoints"
    return *load_example("action_transformer").imported(repository)[:2], repository


@pytest.fixture(scope="module")
async def http(made: tuple[nn.Module, nn.Module, Path]) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(made[2]) as http:
        yield http


def given(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    image = generator.integers(0, 256, size=(3, 16, 16), dtype=np.uint8)
    return {"image": image, "state": torch.from_numpy(generator.normal(size=6).astype(np.float32))}


async def ask(http: httpx.AsyncClient, seed: int, solver: str) -> np.ndarray:
    """Send the body that the SDK would send, which is an npz."""
    request = sample_request("actions", 2, {"seed": seed, "solver": solver, "conditions": given(seed)})
    answer = await http.post("/v1/sample", content=request.body, headers={"Content-Type": request.media})
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["samples"], dtype=np.float32)


async def test_actions_are_those_of_a_plain_loop(
    http: httpx.AsyncClient, made: tuple[nn.Module, nn.Module, Path]
) -> None:
    context, (encoder, network, _) = given(3), made
    seen = encoder(torch.from_numpy(context["image"]).float().mul(1 / 255).expand(2, -1, -1, -1))
    x0 = noise(3, 0, 2, (8, 4))
    wanted = integrate(lambda x, t: network(x, t, seen, context["state"].expand(2, -1)), x0, solver="euler", steps=10).x
    np.testing.assert_allclose(await ask(http, 3, "euler-10"), wanted.numpy(), atol=1e-5)
