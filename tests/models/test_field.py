"""Velocities with their conditions and guidance, solved offline."""

from dataclasses import replace

import numpy as np
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.conditions import ONE, NamedCondition, NamedConditions
from models.field import Field, solve
from models.velocity import FieldKind
from solvers import SolverSpec


def test_a_field_of_average_velocity_is_guided_by_one_number_a_sample() -> None:
    entry = NamedCondition.label(classes=3)
    config = ResidualMLPConfig(dim=2, hidden=8, blocks=1, condition=entry, field=FieldKind.AVERAGE)
    network, x0 = ResidualMLP(config).requires_grad_(False), torch.zeros(3, 2)
    takes, labels, strength = NamedConditions({ONE: entry}), torch.tensor([0, 1, 2]), torch.tensor([2.0, 0.0, 1.0])
    found = solve(Field(network, labels, takes, strength), x0, SolverSpec.parse(config.field.solver or "")).x
    step = torch.tensor([[0.0, 1.0]]).expand(3, 2)
    given, null = network(x0, step, labels), network(x0, step)
    torch.testing.assert_close(found - x0, null + strength[:, None] * (given - null))


def test_samples_from_a_row_on_have_their_own_conditions_and_strengths() -> None:
    entry = NamedCondition.vector(width=3)
    network = ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1, condition=entry)).requires_grad_(False)
    torch.nn.init.normal_(network.output.weight, generator=torch.Generator().manual_seed(0))
    x, t, vectors = torch.zeros(4, 2), torch.full((4,), 0.5), torch.arange(12.0).reshape(4, 3)
    whole = Field(network, vectors, NamedConditions({ONE: entry}), torch.tensor([1.0, 0.0, 2.0, 3.0]))
    later = replace(whole, first=1)
    expected = whole(x, t, np.arange(4))
    assert not torch.allclose(expected[2:], expected[1:3])
    torch.testing.assert_close(later(x[2:], t[2:], np.array([1, 2])), expected[2:])
