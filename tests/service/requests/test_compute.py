"""Tolerances of models that compute in half precision: their floor, and the default."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder, DecoderConfig
from service.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    torch.manual_seed(0)
    network = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1)).eval()
    decoder = Decoder(DecoderConfig(kind="identity", event_shape=(2,), data_shape=(2,)))
    save(tmp_path, "moons", network, decoder, dataset={}, training={}, seed=0, compute="bfloat16")
    return Settings(models_dir=tmp_path, watch_s=0)


async def test_the_floor_is_that_of_the_arithmetic(running: Any) -> None:
    answer = await running.post(num_samples=1, rtol=1e-5)
    assert answer.status_code == 422
    [fault] = answer.json()["errors"]
    assert fault["field"] == "rtol"
    assert "rtol = 1e-05 is below the floor of 3e-05 for bfloat16; raise it to at least 3e-05" in fault["message"]


@pytest.mark.parametrize(
    ("words", "rtol", "atol"),
    [({}, 3e-5, 3e-5), ({"rtol": 0.01}, 0.01, 3e-5), ({"solver": "tsit5@0.02"}, 0.02, 0.02)],
)
async def test_a_tolerance_that_is_not_named_is_at_least_the_floor(
    running: Any, words: dict[str, Any], rtol: float, atol: float
) -> None:
    answer = await running.post(num_samples=1, **words)
    assert answer.status_code == 200, answer.text
    assert (answer.json()["solver"]["rtol"], answer.json()["solver"]["atol"]) == (rtol, atol)


async def test_it_is_shown(running: Any) -> None:
    [line] = (await running.http.get("/v1/models")).json()["models"]
    assert (line["dtype"], line["compute"]) == ("float32", "bfloat16")
