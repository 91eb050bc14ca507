"""Mixed precision on the CPU: the same code that runs on a GPU, which was not available here."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.checkpoint.loading import load
from training.config import Recipe, load_recipe
from training.data import prepare
from training.errors import UsageError
from training.fit import Options, fit, new_trainer
from training.trainer import Trainer

MLP = {"hidden": 16, "blocks": 1, "time_width": 4}
UNET = {"architecture": "unet", "hidden": 4, "blocks": 1, "levels": 2, "time_width": 4}


def recipe(network: dict[str, Any], **fields: Any) -> Recipe:
    data = {"name": "digits", "held_out": 1700, "conditional": True}
    content = {"name": "mixed", "epochs": 3, "batch_size": 32, "precision": "bfloat16", "data": data, "clip": 1.0}
    return Recipe.model_validate({**content, "network": network, **fields})


def trained(recipe: Recipe) -> Trainer:
    run = new_trainer(recipe, prepare(recipe), torch.device("cpu"))
    run.run()
    return run


@pytest.mark.parametrize("network", [MLP, UNET], ids=["mlp", "unet"])
def test_the_networks_products_are_bfloat16_and_all_else_float32(network: dict[str, Any]):
    seen: list[tuple[torch.dtype, torch.dtype]] = []
    made = recipe(network)
    run = new_trainer(made, prepare(made), torch.device("cpu"))

    def note(module: nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        if torch.is_grad_enabled():  # the held-out loss is that of the published, float32 model
            seen.append((given[0].dtype, out.dtype))

    run.network.register_forward_hook(note)
    run.run()
    assert set(seen) == {(torch.float32, torch.bfloat16)}
    tensors, _ = run.state()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_the_loss_falls_as_it_does_in_float32():
    fast = {"learning_rate": 1e-2, "epochs": 30}
    mixed, plain = trained(recipe(MLP, **fast)), trained(recipe(MLP, **fast, precision="float32"))
    assert mixed.losses != plain.losses
    assert mixed.losses[-1] < 0.7 * mixed.losses[0]
    assert mixed.losses == pytest.approx(plain.losses, rel=0.03)


def test_what_is_published_is_float32_and_loads(tmp_path: Path):
    few = {"name": "digits", "held_out": 40, "conditional": True}
    made = recipe(MLP, data=few, batch_size=500, epochs=1)
    folder = fit(made, Options(tmp_path / "models", tmp_path / "runs", device="cpu", seconds=0))
    checkpoint = load(folder)
    assert checkpoint.card.dtype == "float32"
    assert {p.dtype for p in checkpoint.velocity.parameters()} == {torch.float32}
    assert checkpoint.card.training["precision"] == "bfloat16"


def test_another_precision_is_refused(tmp_path: Path):
    config = tmp_path / "recipe.toml"
    config.write_text('name = "x"\nepochs = 1\nprecision = "float16"\n[data]\nname = "moons"\n')
    with pytest.raises(UsageError, match="precision is 'float16'; it must be 'float32', 'bfloat16' or 'auto'"):
        load_recipe(config)
