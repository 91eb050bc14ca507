import pytest
import torch
from pydantic import ValidationError

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig, TimeEmbedding
from models.conditions import NamedCondition
from models.velocity import VelocityError


def count(config: ResidualMLPConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in ResidualMLP(config).parameters())


def test_parameter_counts_are_the_stated_ones() -> None:
    assert count(ResidualMLPConfig(dim=2, hidden=256, blocks=4)) == 546_818
    assert count(ResidualMLPConfig(dim=64, hidden=512, blocks=6)) == 3_258_432
    assert count(ResidualMLPConfig(dim=64, hidden=512, blocks=4)) == 2_205_760


def test_forward_is_the_formula_of_the_docstring() -> None:
    torch.manual_seed(0)
    net = ResidualMLP(ResidualMLPConfig(dim=3, hidden=8, blocks=2, time_width=8)).double()
    x, t = torch.randn(5, 3).double(), torch.rand(5).double()
    w = {k: v.double() for k, v in net.state_dict().items()}

    def norm(h: torch.Tensor, name: str) -> torch.Tensor:
        centred = h - h.mean(1, keepdim=True)
        scaled = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(h: torch.Tensor, name: str) -> torch.Tensor:
        return h @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    angles = t[:, None] * w["embed_time.frequencies"]
    h = linear(x, "input") + linear(torch.cat([torch.sin(angles), torch.cos(angles)], 1), "time")
    for block in ("blocks.0", "blocks.1"):
        inner = linear(norm(h, f"{block}.norm"), f"{block}.linear1")
        h = h + linear(inner * torch.sigmoid(inner), f"{block}.linear2")
    expected = linear(norm(h, "norm"), "output")
    torch.testing.assert_close(net(x, t), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("condition", [None, NamedCondition.label(classes=3)])
def test_the_bare_form_gives_the_same_bits_and_follows_the_parameters(condition: NamedCondition | None) -> None:
    torch.manual_seed(0)
    net = ResidualMLP(ResidualMLPConfig(dim=3, hidden=8, blocks=2, time_width=8, condition=condition))
    x, t = torch.randn(5, 3), torch.rand(5)
    given = None if condition is None else torch.tensor([0, 1, 2, 3, 0])
    bare = net.bare()
    for _ in range(2):
        assert torch.equal(bare(x, t, given), net(x, t, given))
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.5)


def test_frequencies_are_geometric_from_one_to_the_highest() -> None:
    frequencies = TimeEmbedding(64, 100.0).frequencies
    assert frequencies.shape == (32,)
    assert frequencies[0] == 1.0
    assert frequencies[-1] == pytest.approx(100.0)
    ratios = frequencies[1:] / frequencies[:-1]
    torch.testing.assert_close(ratios, torch.full_like(ratios, 100 ** (1 / 31)))


def test_a_condition_is_refused() -> None:
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=4, blocks=1))
    with pytest.raises(VelocityError, match="unconditional"):
        net(torch.zeros(1, 2), torch.zeros(1), condition=torch.zeros(1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dim", 0),
        ("hidden", 10**9),
        ("blocks", 10**6),
        ("time_width", 63),
        ("max_frequency", 1.0),
        ("depth", 3),
    ],
)
def test_a_config_out_of_bounds_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValidationError, match=field):
        ResidualMLPConfig.model_validate({"dim": 2, field: value})


@pytest.mark.parametrize("condition", [None, NamedCondition.label(classes=3), NamedCondition.vector(width=3)])
@pytest.mark.parametrize("hidden", [1, 15, 17, 130])
def test_the_filled_form_is_the_same_function_up_to_rounding(hidden: int, condition: NamedCondition | None) -> None:
    torch.manual_seed(0)
    net = ResidualMLP(ResidualMLPConfig(dim=3, hidden=hidden, condition=condition)).double()
    state = torch.random.get_rng_state()
    filled = net.filled()
    assert torch.equal(state, torch.random.get_rng_state())
    assert {size % 16 for _, first, second in filled.blocks for pair in (first, second) for size in pair[0].shape} == {
        0
    }
    x, t = torch.randn(50, 3, dtype=torch.float64), torch.rand(50, dtype=torch.float64)
    given = None if condition is None else condition.examples(50, torch.float64)
    torch.testing.assert_close(filled(x, t, given), net(x, t, given), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("hidden", "forms"), [(16, 1), (256, 1), (130, 2), (8, 2)])
def test_only_odd_widths_have_a_filled_form_and_the_first_has_the_bits_of_the_module(hidden: int, forms: int) -> None:
    torch.manual_seed(0)
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=hidden)).requires_grad_(False)
    found = list(net.forms())
    assert len(found) == forms
    x, t = torch.randn(8, 2), torch.rand(8)
    assert torch.equal(found[0](x, t), net(x, t))
