"""Fields of average velocity: networks of two times, declared in the card and never mistaken for velocities."""

import json
from pathlib import Path

import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig, ResidualMLPSize
from models.architectures.unet import UNetConfig, UNetSize
from models.checkpoint.card import CARD_FILE, CheckpointError, read_card
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition, NamedConditions
from models.decoder import Decoder
from models.forms.form import Form, choose
from models.forms.rows import field_rows
from models.guidance import guided
from models.network import Network
from models.noise import noise
from models.shapes import sized
from models.velocity import FieldKind

AVERAGE = FieldKind.AVERAGE


def network(field: FieldKind = AVERAGE) -> ResidualMLP:
    """A network that depends on its steps: their weights are not the initial zeros."""
    torch.manual_seed(0)
    made = ResidualMLPSize(hidden=32, blocks=1, time_width=8).network((2,), field=field).requires_grad_(False)
    assert isinstance(made, ResidualMLP)
    if field.takes_ends:
        torch.nn.init.normal_(made.get_parameter("span.weight"))
    return made


def unet(field: FieldKind = AVERAGE) -> Network:
    torch.manual_seed(0)
    made = UNetSize(hidden=4, blocks=1, levels=2, time_width=8).network((1, 8, 8), field=field)
    if field.takes_ends:
        torch.nn.init.normal_(made.get_parameter("span.weight"))
    return made.requires_grad_(False)


@pytest.mark.parametrize("made", [network(), unet()], ids=["residual_mlp", "unet"])
def test_the_end_of_a_step_counts_and_at_its_start_it_is_the_velocity(made: Network) -> None:
    x, t = noise(0, 0, 5, sized(made.event_shape, {})), torch.linspace(0.0, 0.8, 5)
    at_once = made(x, torch.stack((t, t), dim=1))
    assert torch.equal(made(x, t), at_once)
    assert not torch.allclose(made(x, torch.stack((t, torch.ones(5)), dim=1)), at_once)


def test_an_untrained_one_begins_as_the_plain_network_of_its_weights() -> None:
    plain, average = (ResidualMLPSize(hidden=16, blocks=1).network((2,), field=kind) for kind in FieldKind)
    average.load_state_dict(plain.state_dict(), strict=False)
    x, t = noise(0, 0, 4, (2,), torch.float32), torch.rand(4)
    torch.testing.assert_close(average(x, torch.stack((t, torch.ones(4)), dim=1)), plain(x, t))


def test_configs_name_the_field_only_where_it_is_not_the_usual() -> None:
    plain, average = ResidualMLPConfig(dim=2), ResidualMLPConfig(dim=2, field=AVERAGE)
    assert "field" not in plain.model_dump()
    assert average.model_dump(mode="json")["field"] == "average_velocity"
    assert "field" not in UNetConfig(shape=(1, 8, 8), levels=1).model_dump(mode="json", exclude={"architecture"})
    assert ResidualMLPConfig.model_validate(average.model_dump()) == average


def test_it_is_saved_declared_and_loaded(tmp_path: Path) -> None:
    path = save(tmp_path, "quick", network(), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    card = read_card(path)
    assert card.field is AVERAGE
    x, times = noise(0, 0, 4, (2,), torch.float32), torch.tensor([[0.0, 1.0]]).repeat(4, 1)
    assert torch.equal(load(path).velocity(x, times), network()(x, times))
    plain = save(
        tmp_path, "plain", network(FieldKind.VELOCITY), Decoder.identity((2,)), dataset={}, training={}, seed=0
    )
    assert "field" not in json.loads((plain / CARD_FILE).read_bytes())
    assert read_card(plain).field is FieldKind.VELOCITY


@pytest.mark.parametrize("field", list(FieldKind))
def test_a_card_that_declares_another_field_than_its_network_is_refused(tmp_path: Path, field: FieldKind) -> None:
    path = save(tmp_path, "odd", network(field), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    card = json.loads((path / CARD_FILE).read_bytes())
    card["field"] = "velocity" if field is AVERAGE else "average_velocity"
    del card["card_sha256"]
    (path / CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match=r"field: found (average_)?velocity, the architecture has"):
        load(path)


@pytest.mark.parametrize("made", [network(), unet()], ids=["residual_mlp", "unet"])
def test_it_has_no_compiled_form(made: Network) -> None:
    assert choose(made) == Form(made, reason="a field of average velocity has no compiled form")


def test_rows_are_padded_with_both_times_and_keep_their_bits() -> None:
    field = field_rows(network(), (2,), torch.float32, max_rows=128)
    assert field.counts
    x, t = noise(0, 0, 37, (2,), torch.float32), torch.rand(37, generator=torch.Generator().manual_seed(0))
    times = torch.stack((t, torch.ones(37)), dim=1)
    whole = field(x, times)
    for rows in (slice(0, 1), slice(3, 8), slice(20, 37)):
        assert torch.equal(field(x[rows], times[rows]), whole[rows])


def test_guidance_is_one_number_a_row_beside_two_times() -> None:
    condition = NamedCondition.label(classes=3)
    made = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, condition=condition, field=AVERAGE))
    takes, x = NamedConditions({"condition": condition}), noise(0, 0, 3, (2,), torch.float32)
    times, labels = torch.tensor([[0.0, 1.0]]).repeat(3, 1), torch.tensor([0, 1, 2])
    found = guided(made.requires_grad_(False), takes, x, times, labels, torch.tensor([1.0, 0.0, 2.0]))
    with_label, without = made(x, times, labels), made(x, times, torch.tensor([3, 3, 3]))
    torch.testing.assert_close(found[0], with_label[0])
    torch.testing.assert_close(found[1], without[1])
    torch.testing.assert_close(found[2], 2 * with_label[2] - without[2])
