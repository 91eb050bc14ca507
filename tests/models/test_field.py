"""Velocities with their conditions and guidance, solved offline."""

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
