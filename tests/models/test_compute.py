"""Networks of half precision: stored and evaluated in it, with states and errors in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open
from torch import Tensor, nn

import models.compute
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.architectures.unet import UNet, UNetConfig
from models.checkpoint.card import Card, read_card
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder, DecoderConfig
from models.forms.rows import field_rows
from models.importing.declared import Declared
from models.importing.files import ForeignError
from models.importing.weights import import_program, import_weights
from models.network import Network
from models.shapes import sized

HALVES: list[Any] = ["bfloat16", "float16"]


def stored(network: Network, root: Path, compute: Any) -> Path:
    shape = network.event_shape
    decoder = Decoder(DecoderConfig(kind="identity", event_shape=shape, data_shape=shape))
    return save(root, "net", network.eval(), decoder, dataset={}, training={}, seed=0, compute=compute)


def networks() -> list[Network]:
    torch.manual_seed(0)
    vector = NamedCondition.vector(width=3, null=True)
    return [
        ResidualMLP(ResidualMLPConfig(dim=2, hidden=24, blocks=2, condition=vector)),
        UNet(UNetConfig(shape=(1, 4, 4), hidden=8, levels=2)),
    ]


@pytest.mark.parametrize("compute", HALVES)
@pytest.mark.parametrize("which", [0, 1])
def test_a_network_computes_in_half_precision_and_answers_in_float32(compute: Any, which: int, tmp_path: Path) -> None:
    network = networks()[which]
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    folder = stored(network, tmp_path, compute)
    with safe_open(folder / "weights.safetensors", "pt") as file:
        kinds = {key: file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
    assert {kind for key, kind in kinds.items() if "frequencies" not in key} == {getattr(torch, compute)}
    assert {kind for key, kind in kinds.items() if "frequencies" in key} == {torch.float32}

    checkpoint = load(folder)
    assert (checkpoint.dtype, checkpoint.compute) == (torch.float32, getattr(torch, compute))
    x, t = torch.randn(5, *sized(network.event_shape, {})), torch.linspace(0, 1, 5)
    given = () if network.condition is None else (torch.randn(5, 3),)
    with torch.no_grad():
        found, exact = checkpoint.velocity(x, t, *given), network(x, t, *given)
    assert found.dtype == torch.float32
    far = float((found - exact).abs().max() / exact.abs().max())
    assert 1e-6 < far < 20 * torch.finfo(checkpoint.compute).eps


@pytest.mark.parametrize("compute", HALVES)
def test_rows_keep_their_bits_where_they_are_measured_to(compute: Any, tmp_path: Path) -> None:
    checkpoint = load(stored(networks()[0], tmp_path, compute))
    field = field_rows(checkpoint.velocity, (2,), torch.float32, condition=checkpoint.network_conditions)
    x, t, given = torch.randn(37, 2), torch.rand(37), torch.randn(37, 3)
    with torch.no_grad():
        together = field(x, t, given)
        alone = torch.cat([field(x[k : k + 1], t[k : k + 1], given[k : k + 1]) for k in range(37)])
    assert field.deterministic
    assert torch.equal(together, alone)


def test_a_card_without_half_precision_keeps_its_bytes(tmp_path: Path) -> None:
    card = read_card(stored(networks()[0], tmp_path, None))
    assert b"compute" not in card.to_json()
    with pytest.raises(ValidationError, match="they must be float32"):
        Card.model_validate(card.model_dump() | {"dtype": "float64", "compute": "bfloat16"})


def test_a_field_of_average_velocity_has_its_own_steps(tmp_path: Path) -> None:
    fields = read_card(stored(networks()[0], tmp_path, None)).model_dump() | {"field": "average_velocity"}
    with pytest.raises(ValidationError, match="needs the straight path"):
        Card.model_validate(fields | {"time": {"noise_at": 1, "data_at": 0, "predicts": "eps", "path": "vp"}})
    with pytest.raises(ValidationError, match="rk4 does not fit a field of average velocity"):
        Card.model_validate(fields | {"sampling": {"solver": "rk4-4"}})
    assert Card.model_validate(fields | {"sampling": {"solver": "euler-2"}}).sampling is not None


CONFIG = {"dim": 2, "hidden": 16, "blocks": 1}


def weights(tmp_path: Path, dtype: torch.dtype, scale: float = 1.0) -> Path:
    torch.manual_seed(0)
    state = ResidualMLP(ResidualMLPConfig.model_validate(CONFIG)).state_dict()
    torch.save({key: (scale * tensor).to(dtype) for key, tensor in state.items()}, tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


def test_weights_of_half_precision_become_float32_or_stay(tmp_path: Path) -> None:
    file = weights(tmp_path, torch.bfloat16)
    plain = import_weights(file, tmp_path, "net", "residual_mlp", CONFIG)
    assert "precision: bfloat16 became float32 (--compute bfloat16 keeps it)" in plain.report
    assert load(plain.path).card.compute is None
    kept = import_weights(file, tmp_path, "net", "residual_mlp", CONFIG, declared=Declared(compute="bfloat16"))
    assert "precision: computes in bfloat16, states are float32" in kept.report
    assert load(kept.path).compute == torch.bfloat16
    large = weights(tmp_path, torch.float32, 1e6)
    with pytest.raises(ForeignError, match="too large for float16; use --compute float32"):
        import_weights(large, tmp_path, "net", "residual_mlp", CONFIG, declared=Declared(compute="float16"))


def test_a_cpu_without_the_instructions_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert models.compute.missing_instructions("bfloat16") == ""
    assert models.compute.missing_instructions("None") == ""
    assert models.compute.missing_instructions("float16", "cuda") == ""
    file = weights(tmp_path, torch.float16)
    message = import_weights(file, tmp_path, "net", "residual_mlp", CONFIG, declared=Declared(compute="float16")).report
    assert any("no instructions for float16" in line and "--compute float32" in line for line in message)


def test_a_model_of_half_precision_is_loaded_in_float32_where_that_is_asked_for(tmp_path: Path) -> None:
    file = weights(tmp_path, torch.bfloat16)
    path = import_weights(file, tmp_path, "net", "residual_mlp", CONFIG, declared=Declared(compute="bfloat16")).path
    half, whole = load(path), load(path, compute="float32")
    assert (half.half, whole.half) == ("bfloat16", None)
    assert whole.compute == torch.float32
    assert {tensor.dtype for tensor in whole.velocity.state_dict().values()} == {torch.float32}
    x, t = torch.randn(5, 2), torch.linspace(0, 1, 5)
    with torch.no_grad():
        assert not torch.equal(whole.velocity(x, t), half.velocity(x, t))
        torch.testing.assert_close(whole.velocity(x, t), half.velocity(x, t), rtol=0.03, atol=0.03)
    assert whole.digest == half.digest


class Half(nn.Module):
    """A network that takes its times in float32 and computes in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        t = t[:, None].cos().to(x.dtype)
        return self.last(nn.functional.silu(self.first(torch.cat((x, t), dim=1))))


@pytest.mark.parametrize("times", [torch.float32, torch.bfloat16])
def test_programs_of_half_precision(times: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Half().bfloat16().eval()
    rows = torch.export.Dim("rows", min=1, max=4096)
    example = (torch.randn(4, 2, dtype=torch.bfloat16), torch.rand(4, dtype=times))
    file = tmp_path / "half.pt2"
    torch.export.save(torch.export.export(network, example, dynamic_shapes=({0: rows}, {0: rows})), file)
    checkpoint = load(import_program(file, tmp_path, "half", (2,)).path)
    assert (checkpoint.dtype, checkpoint.compute) == (torch.float32, torch.bfloat16)
    x, t = torch.randn(5, 2), torch.linspace(0, 1, 5)
    with torch.no_grad():
        expected = network(x.bfloat16(), t.to(times)).float()
        torch.testing.assert_close(checkpoint.velocity(x, t), expected, rtol=0.02, atol=0.02)
    with pytest.raises(ForeignError, match="but the program computes in bfloat16; export it in float32"):
        import_program(file, tmp_path, "half", (2,), declared=Declared(compute="float32"))
    assert load(checkpoint.path, compute="float32").half == "bfloat16"  # its operations name their dtypes
