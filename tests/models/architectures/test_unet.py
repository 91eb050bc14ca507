from pathlib import Path

import pytest
import torch

from models.architectures import ArchitectureError, build
from models.architectures.unet import UNet, UNetConfig
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.forms.rows import field_rows
from models.noise import noise


def network(**fields: object) -> UNet:
    torch.manual_seed(0)
    return UNet(UNetConfig.model_validate({"shape": (1, 8, 8), "hidden": 8, **fields})).requires_grad_(False)


def test_a_picture_has_a_velocity_of_its_shape_at_every_size():
    for shape, levels, blocks in (((1, 8, 8), 3, 1), ((3, 12, 20), 2, 2), ((1, 5, 7), 1, 1)):
        x = noise(0, 0, 3, shape)
        v = network(shape=shape, levels=levels, blocks=blocks)(x, torch.linspace(0, 1, 3))
        assert v.shape == x.shape
        assert v.isfinite().all()


def test_the_shipped_size_is_small():
    net = UNet(UNetConfig(shape=(1, 28, 28), condition=NamedCondition.label(classes=10)))
    assert sum(p.numel() for p in net.parameters()) < 1_000_000


def test_time_and_condition_matter():
    net = network(condition=NamedCondition.label(classes=2))
    x = noise(0, 0, 1, (1, 8, 8)).expand(3, 1, 8, 8)
    v = net(x, torch.full((3,), 0.5), torch.tensor([0, 1, 2]))
    assert len({v[row].sum().item() for row in range(3)}) == 3
    assert not torch.equal(net(x, torch.zeros(3)), net(x, torch.ones(3)))


def test_rows_do_not_depend_on_their_neighbours_where_it_is_said():
    net = network(condition=NamedCondition.label(classes=3))
    field = field_rows(net, (1, 8, 8), torch.float32, max_rows=128, condition=net.condition)
    assert field.counts
    x, t, labels = noise(1, 0, 40, (1, 8, 8)), torch.linspace(0, 1, 40), torch.arange(40) % 4
    whole = field(x, t, labels)
    for rows in ([0], [7, 3, 39], list(range(5, 30))):
        assert torch.equal(field(x[rows], t[rows], labels[rows]), whole[rows])


def test_it_is_a_checkpoint_like_any_other(tmp_path: Path):
    net = network(condition=NamedCondition.label(classes=2))
    decoder = Decoder.identity((1, 8, 8), data_shape=(8, 8))
    loaded = load(save(tmp_path, "m", net, decoder, dataset={}, training={}, seed=0))
    x = noise(0, 0, 2, (1, 8, 8))
    assert torch.equal(loaded.velocity(x, torch.ones(2)), net(x, torch.ones(2)))


@pytest.mark.parametrize("shape", [(1, 10, 8), (1, 8, 6), (0, 8, 8), (1, 1 << 13, 1 << 13)])
def test_a_picture_that_does_not_halve_is_refused(shape: tuple[int, int, int]):
    with pytest.raises(ArchitectureError, match="3 levels need a height and a width divisible by 4"):
        build("unet", {"shape": shape})
