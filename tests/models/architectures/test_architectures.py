import pytest
import torch
from torch import nn

from models.architectures import ARCHITECTURES, ArchitectureError, build, event_shape_of, name_of


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_builds_and_answers(name: str) -> None:
    step = {"op": "torch.ops.aten.neg.default", "args": [{"value": "x"}], "out": ["v"]}
    program = {"event_shape": (2,), "dtype": "float64", "tensors": {}, "steps": [step], "output": "v"}
    unet = {"shape": (1, 4, 4), "hidden": 8}
    config = {"residual_mlp": {"dim": 2, "hidden": 8}, "unet": unet, "program": program}.get(name, {})
    module = build(name, config).double()
    assert name_of(module) == name
    assert isinstance(module.config, ARCHITECTURES[name].config)
    x = torch.randn(3, *event_shape_of(module), dtype=torch.float64)
    assert module(x, torch.rand(3, dtype=torch.float64)).shape == x.shape


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        ArchitectureError, match="architecture is 'resnet'; known are residual_mlp, unet, gaussian, mixture"
    ):
        build("resnet", {})
    with pytest.raises(ArchitectureError, match="Linear is not a registered"):
        name_of(nn.Linear(1, 1))


def test_a_bad_config_names_the_field_and_the_value() -> None:
    with pytest.raises(ArchitectureError, match=r"hidden: .* 16384, found 1000000000"):
        build("residual_mlp", {"dim": 2, "hidden": 10**9})
    with pytest.raises(ArchitectureError, match=r"dim: Field required$"):
        build("residual_mlp", {})
