"""The example's chunks are those of a plain loop, with and without actions that are already under way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.noise import noise
from tests.examples.support import load_example
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio


async def test_chunks_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    example = load_example("robot_chunks")
    encoder, expert = example.imported(tmp_path)
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (3, 16, 16), dtype=np.uint8)
    prefix = generator.normal(size=(example.HORIZON, example.ACTIONS)).astype(np.float32)
    cache = encoder(torch.from_numpy(image)[None] / 255)
    async with calling_models(tmp_path) as http:
        for delay in (0, 3):
            conditions: dict[str, Any] = {"image": image.tolist()}
            conditions |= {"prefix": prefix.tolist(), "delay": delay} if delay else {}
            body = {"model": "robot", "num_samples": 1, "seed": 1, "solver": "euler-5", "conditions": conditions}
            answer = await http.post("/v1/sample", json=body)
            assert answer.status_code == 200, answer.text
            x = noise(1, 0, 1, (example.HORIZON, example.ACTIONS))
            given = torch.from_numpy(prefix)[None] if delay else torch.zeros_like(x)
            for k in range(5):
                x = x + expert(x, torch.full((1,), k / 5), *cache, given, torch.tensor([delay])) / 5
            np.testing.assert_allclose(answer.json()["samples"], x.numpy(), rtol=0, atol=1e-5)
