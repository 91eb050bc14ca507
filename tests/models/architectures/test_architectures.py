import pytest
import torch

from models.architectures import ARCHITECTURES, SIZES, ArchitectureError, build
from models.shapes import sized


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_builds_and_answers(name: str) -> None:
    step = {"op": "torch.ops.aten.neg.default", "args": [{"value": "x"}], "out": ["v"]}
    program = {"event_shape": (2,), "dtype": "float64", "tensors": {}, "steps": [step], "output": "v"}
    shape = {"vectors": (2,), "pictures": (1, 4, 4)}
    if name in SIZES:
        module = SIZES[name].model_validate({}).network(shape[SIZES[name].takes]).double()
    else:
        module = build(name, program if name == "program" else {}).double()
    assert (type(module.config), module.config.architecture) == (ARCHITECTURES[name], name)
    x = torch.randn(3, *sized(module.event_shape, {}), dtype=torch.float64)
    assert module(x, torch.rand(3, dtype=torch.float64)).shape == x.shape


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ArchitectureError, match=f"architecture is 'resnet'; use one of {', '.join(ARCHITECTURES)}$"):
        build("resnet", {})


def test_a_bad_config_names_the_field_and_the_value() -> None:
    with pytest.raises(ArchitectureError, match=r"hidden: .* 16384, found 1000000000"):
        build("residual_mlp", {"dim": 2, "hidden": 10**9})
    with pytest.raises(ArchitectureError, match=r"dim: Field required$"):
        build("residual_mlp", {})
