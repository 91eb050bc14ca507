"""Noise of zero centre of mass for equivariant networks: samples, their density on that subspace, and refusals."""

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.checkpoint.card import CentredNoise, read_card
from models.importing.declared import Declared
from models.importing.files import ForeignError
from models.importing.weights import import_program
from models.noise import mean_along, noise
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio

SCALE = 0.5
OURS = Declared(noise_at=0, scale=1.0, sign=1)


class Cloud(nn.Module):
    """The velocity (rows, N, 3) of a cloud of points whose data are SCALE times centred standard normal numbers."""

    def __init__(self, drift: float = 0.0) -> None:
        super().__init__()
        self.drift = drift

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        factor = (t * SCALE**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * SCALE**2)
        return factor[:, None, None] * (x - x.mean(1, keepdim=True)) + self.drift


def export(network: nn.Module, file: Path) -> Path:
    rows, points = torch.export.Dim("rows", max=64), torch.export.Dim("N", min=2, max=32)
    shapes = ({0: rows, 1: points}, {0: rows})
    torch.export.save(torch.export.export(network, (torch.randn(4, 5, 3), torch.rand(4)), dynamic_shapes=shapes), file)
    return file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cloud")
    file = export(Cloud(), root / "cloud.pt2")
    import_program(file, root / "models", "cloud", ("N", 3), declared=OURS, centred="N")
    scaled = {"scale": torch.tensor(2.0, dtype=torch.float64)}
    import_program(file, root / "models", "scaled", ("N", 3), declared=OURS, centred="N", decoder=scaled)
    return root / "models"


@pytest.fixture(scope="module")
async def http(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(root) as http:
        yield http


async def ask(http: httpx.AsyncClient, points: int, samples: int, **more: Any) -> dict[str, Any]:
    body = {"model": "cloud", "num_samples": samples, "seed": 3, "solver": "rk4-20", "shape": {"N": points}}
    answer = await http.post("/v1/sample", json=body | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_states_have_the_mean_zero_and_their_density_is_that_of_the_subspace(http: httpx.AsyncClient) -> None:
    answer = await ask(http, 7, 4)
    samples = np.array(answer["samples"])
    assert answer["noise"] == "philox-ndtri-centred-v1"
    assert np.abs(samples.mean(1)).max() < 1e-6
    np.testing.assert_allclose(samples, SCALE * noise(3, 0, 4, (7, 3), free=(0,), centred=0).numpy(), atol=1e-4)
    body = {"samples": samples.tolist(), "solver": "dopri5", "rtol": 1e-6, "atol": 1e-6}
    dimension = 3 * (7 - 1)
    closed = -0.5 * (samples**2).sum((1, 2)) / SCALE**2 - dimension * (math.log(SCALE) + 0.5 * math.log(2 * math.pi))
    for divergence in ({"divergence": "exact"}, {"divergence": "hutchinson", "probes": 64, "seed": 0}):
        answer = await http.post("/v1/models/cloud/log_prob", json=body | divergence)
        assert answer.status_code == 200, answer.text
        error = answer.json().get("standard_error", [0.0])
        np.testing.assert_allclose(answer.json()["log_prob"], closed, rtol=0, atol=2e-3 + 4 * max(error))


async def test_a_sample_does_not_depend_on_the_others(http: httpx.AsyncClient) -> None:
    several = await ask(http, 5, 6)
    one = await ask(http, 5, 1, first_index=4)
    assert one["samples"][0] == several["samples"][4]


@pytest.mark.parametrize(
    ("model", "samples", "field"),
    [("cloud", [[[1.0, 0.0, 0.0]] * 3], "samples"), ("scaled", [[[0.0] * 3] * 3], "decode")],
)
async def test_data_without_a_density_are_refused(
    http: httpx.AsyncClient, model: str, samples: list[Any], field: str
) -> None:
    answer = await http.post(f"/v1/models/{model}/log_prob", json={"samples": samples, "solver": "rk4-4"})
    assert (answer.status_code, [fault["field"] for fault in answer.json()["errors"]]) == (422, [field]), answer.text


def test_the_card_names_the_axis_and_a_network_must_keep_it(root: Path, tmp_path: Path) -> None:
    card = read_card(root / "cloud" / "1")
    assert (card.noise, card.centred) == (CentredNoise(centred="N"), 0)
    path = import_program(root.parent / "cloud.pt2", tmp_path, "cloud", ("N", 3), declared=OURS, centred=0).path
    assert read_card(path).centred == 0
    moving = export(Cloud(0.1), tmp_path / "moving.pt2")
    for file, axis, says in (
        (root.parent / "cloud.pt2", "K", "name a free axis"),
        (root.parent / "cloud.pt2", 2, "name a free axis"),
        (moving, "N", "subtract the mean"),
    ):
        with pytest.raises(ForeignError, match=says):
            import_program(file, tmp_path, "other", ("N", 3), declared=OURS, centred=axis)


def test_the_mean_of_noise_is_zero_along_any_axis() -> None:
    for place in (0, 1, 2):
        x = noise(0, 0, 3, (4, 5, 6), torch.float64, centred=place)
        assert float(mean_along(x, place).abs().max()) < 1e-15
    plain = noise(0, 0, 3, (4, 5), torch.float64)
    torch.testing.assert_close(noise(0, 0, 3, (4, 5), torch.float64, centred=1), plain - plain.mean(2, keepdim=True))
