"""Serve lerobot's Diffusion Policy and compare its samples with those of lerobot's own loop.

Usage: compare.py FOLDER
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpx
import lerobot_policy as example  # pyright: ignore[reportMissingImports]  (of examples/)
import numpy as np
import torch

from models.noise import noise
from service.app import create_app
from service.settings import Settings

torch.set_num_threads(1)


def observation_of(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the images and the states of a request."""
    made = np.random.default_rng(seed)
    image = made.integers(0, 256, (example.SEEN, 3, example.SIDE, example.SIDE), dtype=np.uint8)
    return image, made.normal(size=(example.SEEN, example.STATE)).astype(np.float32)


def theirs(model: Any, seed: int) -> np.ndarray:
    """Return the actions that lerobot samples from our noise."""
    image, state = observation_of(seed)
    batch = {"observation.state": torch.from_numpy(state)[None]}
    batch["observation.images"] = (torch.from_numpy(image).float() * (1 / 255))[None, :, None]
    with torch.no_grad():
        seen = model._prepare_global_conditioning(batch)
        x0 = noise(seed, 0, 1, (example.HORIZON, example.ACTIONS))
        return model.conditional_sample(1, seen, noise=x0).numpy()


async def main() -> None:
    """Compare samples, then the bits of requests one by one and at once."""
    model, path = example.imported(Path(sys.argv[1]) / "checkpoints")
    app = create_app(Settings(models_dir=path.parents[1], device="cpu", threads=1, watch_s=0, allow_programs=True))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", timeout=300)

    async def ask(seed: int, **more: Any) -> dict[str, Any]:
        image, state = observation_of(seed)
        body = {"model": "policy", "num_samples": 1, "seed": seed, "timeout_s": 250, **more}
        body["conditions"] = {"image": image.tolist(), "state": state.tolist()}
        answer = await client.post("/v1/sample", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async with app.router.lifespan_context(app), client:
        for seed in (1, 2):
            answer = await ask(seed)
            assert answer["nfe"] == example.STEPS, answer["solver"]
            wanted = theirs(model, seed)
            np.testing.assert_allclose(answer["samples"], wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
        solvers = ({}, {"solver": "heun2-5"}, {"solver": "ab2-8"})
        pairs = [(k, solvers[k % 3]) for k in range(6)]
        alone = [await ask(seed, **more) for seed, more in pairs]
        together = await asyncio.gather(*(ask(seed, **more) for seed, more in pairs))
        assert [each["digest"] for each in together] == [each["digest"] for each in alone]
    print("the same")


asyncio.run(main())
