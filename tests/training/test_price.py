"""The price of a flow, on fields with known paths."""

import math

import pytest
import torch
from torch import Tensor, nn

from models.field import Field
from models.noise import noise
from selection.error import exact_ends
from selection.frontier import Curve
from selection.measure import measure_curve
from tests.selection.support import point
from training.price import Price, price


class Constant(nn.Module):
    """Every path is a straight line at constant speed."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.full_like(x, 2.0)


class Decay(nn.Module):
    """dx/dt = -3 x."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return -3 * x


X0 = noise(0, 0, 16, (2,), torch.float64)


def priced(field: nn.Module, *solvers: str) -> Price:
    return price(field, X0, measure_curve(Field(field), X0, only=solvers))


def test_a_straight_flow_costs_one_evaluation() -> None:
    cost = priced(Constant(), "euler-1", "rk4-1")
    assert cost.cheapest == [("euler-1", 1), ("euler-1", 1)]
    assert cost.straightness == pytest.approx(1)
    assert cost.bend == pytest.approx(0, abs=1e-12)
    assert cost.stiffness == pytest.approx(0, abs=1e-9)


def test_stiffness_is_the_eigenvalue_and_ends_are_exact() -> None:
    cost = priced(Decay(), "euler-8", "rk4-4", "rk4-6")
    assert cost.stiffness == pytest.approx(3, rel=0.05)
    assert cost.straightness == pytest.approx(1)  # straight paths, but not at constant speed
    assert cost.bend > 0.3
    torch.testing.assert_close(exact_ends(Field(Decay()), X0), X0 * math.exp(-3), rtol=0, atol=1e-8)
    # RK4's error is h^4 l^5 e^-3 / 120, relative e^-3; four steps leave 2.7 % of the spread, and six 0.44 %.
    assert cost.cheapest == [("rk4-6", 24), None]


def test_the_lines_are_the_choice_and_what_could_be_met() -> None:
    one, two, three = priced(Decay(), "euler-8", "rk4-6").lines()
    assert one.startswith("price: rk4-6: of 2 measured solvers, the cheapest that keeps 1 %; 95 % of samples end ")
    assert two.startswith("price: no measured solver keeps 0.1 %; the most accurate is rk4-6 (keeps 0.")
    assert "stiffness 3" in three or "stiffness 2.9" in three


def test_what_was_not_tried_in_time_is_said() -> None:
    curve = Curve(samples=16, seed=0, spread=1.0, complete=False, points=(point("rk4-5", 20, 0.6),))
    assert next(price(Decay(), X0, curve).lines()).endswith("NFE); not all solvers were measured")
