"""Networks that mix rows: told apart from rounding, refused at loading, and optionally evaluated row by row."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.architectures.unet import UNet, UNetConfig
from models.checkpoint.card import CheckpointError
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition, NamedConditions, one_condition
from models.decoder import Decoder
from models.forms.rows import field_rows
from models.mixing import find_mixing
from models.noise import noise
from models.program.network import Program, ProgramConfig
from models.program.steps import Step, TensorCard

Field = Callable[..., Tensor]

MIXING: dict[str, Field] = {
    "mean": lambda x, t: x - x.mean(0),
    "a thousandth of the mean": lambda x, t: x - 1e-3 * x.mean(0),
    "batch normalization": lambda x, t: batch_norm(x, None, None, training=True),
    "mean time": lambda x, t: x * t.mean(),
    "first row": lambda x, t: x + x[:1],
    "third row": lambda x, t: x + x[min(2, len(x) - 1)],
    "first time": lambda x, t: x + t[:1, None],
    "number of rows": lambda x, t: x * len(x),
    "place": lambda x, t: x + torch.arange(len(x))[:, None],
    "rows before": lambda x, t: x.cumsum(0),
    "neighbour": lambda x, t: x + x.roll(1, 0),
    "not a number alone": lambda x, t: x / x.std(0),
    "largest of all": lambda x, t: x / x.abs().max(),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing_is_found(name: str, dtype: torch.dtype) -> None:
    found = find_mixing(MIXING[name], (3,), dtype)
    assert found is not None
    [difference, rounding] = re.findall(r"changes by (\S+) with .* explains only (\S+);", found)[0]
    assert float(difference) > 100 * float(rounding)


def test_rows_that_see_the_conditions_of_others_are_found() -> None:
    def field(x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        assert condition is not None
        return x * condition.double().mean()

    assert find_mixing(field, (3,), torch.float64, condition=one_condition(NamedCondition.label(classes=4))) is not None


@pytest.mark.parametrize("hidden", [5, 10, 31, 130, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_no_mixing(hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(hidden)
    condition = NamedCondition.label(classes=3)
    network = ResidualMLP(ResidualMLPConfig(dim=3, hidden=hidden, blocks=8, condition=condition)).to(dtype)
    assert find_mixing(network, (3,), dtype, condition=one_condition(condition)) is None


def test_pictures_and_exact_fields_do_not_mix() -> None:
    torch.manual_seed(0)
    network = UNet(UNetConfig(shape=(1, 6, 6), hidden=12, levels=2))
    assert find_mixing(network, (1, 6, 6), torch.float32) is None
    for field in (Gaussian(), Mixture()):
        assert find_mixing(field, (2,), torch.float64) is None


def test_a_field_that_answers_zero_does_not_mix() -> None:
    assert find_mixing(lambda x, t, condition=None: torch.zeros_like(x), (2,), torch.float32) is None


def centred() -> Program:
    """The field w x - mean(x), the mean over all rows."""
    steps = (
        Step(op="torch.ops.aten.mul.Tensor", args=({"value": "x"}, {"value": "w"}), out=("scaled",)),
        Step(op="torch.ops.aten.mean.dim", args=({"value": "x"}, [0], True), out=("mean",)),
        Step(op="torch.ops.aten.sub.Tensor", args=({"value": "scaled"}, {"value": "mean"}), out=("v",)),
    )
    tensors = {"w": TensorCard(shape=(2,), dtype="float32")}
    program = Program(ProgramConfig(event_shape=(2,), dtype="float32", tensors=tensors, steps=steps, output="v"))
    program.load_state_dict({"data_w": torch.tensor([2.0, 3.0])})
    return program


class Slow(nn.Module):
    """A network that reads the first row for all, however long a row takes."""

    rows_seen = 0

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.rows_seen += len(x)
        return x + 0.1 * x[:1]


def test_the_look_is_the_same_for_fast_and_slow_networks() -> None:
    slow = Slow()
    assert find_mixing(slow, (3,), torch.float32) is not None
    assert slow.rows_seen <= 40


@pytest.mark.parametrize("default", [None, 0])
def test_a_mix_through_integers_is_found(default: int | None) -> None:
    takes = NamedConditions({"size": NamedCondition(dtype="int64", shape=(256,), default=default)})

    def field(x: Tensor, t: Tensor, condition: Any = None) -> Tensor:
        return x + condition["size"][:1].float().mean(1, keepdim=True)

    assert find_mixing(field, (3,), torch.float32, condition=takes) is not None


def saved(root: Path, one_row: bool) -> Path:
    program = centred()
    if one_row:
        program.config = program.config.model_copy(update={"rows": (1, 1)})
        program.config = program.config.model_copy(update={"rows": (1, 1)})
    return save(root, "centred", program, Decoder.identity((2,)), dataset={}, training={}, seed=0)


def test_a_checkpoint_that_mixes_rows_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = saved(tmp_path, one_row=False)
    with pytest.raises(CheckpointError, match=r"the network mixes rows: .* rounding explains .*--row-by-row") as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_where_it_is_asked_for_each_row_is_a_call_of_its_own(tmp_path: Path) -> None:
    checkpoint = load(saved(tmp_path, one_row=True))
    x, t = noise(0, 0, 9, (2,)), torch.linspace(0, 1, 9)
    assert torch.equal(checkpoint.velocity(x, t), torch.stack([row * torch.tensor([2.0, 3.0]) - row for row in x]))


def test_served_one_by_one_its_rows_do_not_depend_on_each_other_and_none_is_padded(tmp_path: Path) -> None:
    field = field_rows(load(saved(tmp_path, one_row=True)).velocity, (2,), torch.float32, max_rows=128)
    assert field.limit == 1
    x, t = noise(0, 0, 300, (2,)), torch.linspace(0, 1, 300)
    whole = field(x, t)
    for chosen in ([7], [299, 7, 4], list(range(1, 130))):
        assert torch.equal(field(x[chosen], t[chosen]), whole[chosen])


def test_only_cards_that_say_it_have_the_member(tmp_path: Path) -> None:
    written = [(saved(tmp_path, one_row) / "card.json").read_text() for one_row in (False, True)]
    assert ['"rows"' in text for text in written] == [False, True]
