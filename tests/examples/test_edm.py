"""The example's denoiser is imported with the printed options, and the service samples it as its plain loop does."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from models.__main__ import main as models
from models.checkpoint.loading import load
from models.noise import noise
from tests.examples.support import load_example
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_example("edm")


@pytest.fixture(scope="module")
def root(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("edm")
    file = folder / "edm.pt2"
    assert example.main(["--out", str(file), "--steps", "60"]) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATHLINE_ALLOW_PROGRAMS", "true")
        assert models([*example.options(file), "--models-dir", str(folder / "models")]) == 0
        yield folder / "models"


async def test_a_request_that_names_no_solver_gets_the_samples_of_the_plain_loop(
    example: ModuleType, root: Path
) -> None:
    async with calling_models(root) as http:
        answer = await http.post("/v1/sample", json={"model": "edm", "num_samples": 5, "seed": 7})
        others = [{"solver": "rk4-6"}, {"solver": "dopri5@1e-3"}, {"solver": "ab2-8/shift(3)"}, {}]
        bodies = [{"model": "edm", "num_samples": 9, "seed": 1, **other} for other in others]
        alone = [(await http.post("/v1/sample", json=body)).json() for body in bodies]
        together = [each.json() for each in await asyncio.gather(*(http.post("/v1/sample", json=b) for b in bodies))]
    assert [each["samples"] for each in together] == [each["samples"] for each in alone]
    assert all(each["deterministic"] for each in alone)
    assert answer.status_code == 200, answer.text
    answered = answer.json()
    assert (answered["solver"]["name"], answered["nfe"]) == ("euler", example.STEPS)
    start = noise(7, 0, 5, (2,), torch.float32)
    expected = example.sample(example.train(60), start)
    np.testing.assert_allclose(answered["samples"], expected.numpy(), rtol=0, atol=2e-5)


def test_its_data_come_out_when_it_is_trained(example: ModuleType, root: Path) -> None:
    card = load(root / "edm" / "1").card
    assert (card.time.predicts, card.time.path) == ("x0", "edm")
    spread = example.sample(example.train(400), noise(0, 0, 300, (2,), torch.float32)).std(0)
    assert torch.allclose(spread, torch.full((2,), example.SIGMA_DATA), atol=0.1)
