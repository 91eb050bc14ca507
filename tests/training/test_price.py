"""The price of a flow, on fields with known paths."""

import math

import pytest
import torch
from torch import Tensor, nn

from models.architectures.analytic import Gaussian
from models.checkpoint.frontier import Curve, Point
from models.endpoint_error import Field, endpoint_error, exact_ends
from models.noise import noise
from solvers import integrate
from training.errors import TrainingError
from training.price import price


class Constant(nn.Module):
    """Every path is a straight line at constant speed."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.full_like(x, 2.0)


class Decay(nn.Module):
    """dx/dt = -3 x."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return -3 * x


class Lost(nn.Module):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.full_like(x, math.nan)


X0 = noise(0, 0, 16, (2,), torch.float64)


def test_a_straight_flow_costs_one_evaluation() -> None:
    found = price(Constant(), X0)
    assert found.nfe["euler"] == [1, 1]
    assert found.cheapest == [("euler-1", 1), ("euler-1", 1)]
    assert found.straightness == pytest.approx(1)
    assert found.bend == pytest.approx(0, abs=1e-12)
    assert found.stiffness == pytest.approx(0, abs=1e-9)


def test_stiffness_is_the_eigenvalue_and_ends_are_exact() -> None:
    found = price(Decay(), X0)
    assert found.stiffness == pytest.approx(3, rel=0.05)
    assert found.straightness == pytest.approx(1)  # straight paths, but not at constant speed
    assert found.bend > 0.3
    torch.testing.assert_close(exact_ends(Field(Decay()), X0), X0 * math.exp(-3), rtol=0, atol=1e-8)
    # RK4's error is h^4 l^5 e^-3 / 120, relative e^-3; Euler's h l^2 / 2 is under 1 % from 450 steps on, too many.
    assert found.nfe["euler"] == [None, None]
    assert found.nfe["rk4"][0] is not None
    assert found.cheapest[0] is not None
    assert found.cheapest[0][1] == min(cost[0] for cost in found.nfe.values() if cost[0] is not None)
    name, steps = found.cheapest[0][0].split("-")
    x = integrate(Decay(), X0, solver=name, steps=int(steps)).x
    ends = exact_ends(Field(Decay()), X0)
    assert endpoint_error(x, ends) <= 0.01 * found.spread


def test_errors_are_relative_to_the_spread() -> None:
    ends = exact_ends(Field(Gaussian().double()), X0)
    found = price(Gaussian().double(), X0)
    assert found.spread == pytest.approx(endpoint_error(ends, ends.mean(0, keepdim=True)))
    assert found.spread == pytest.approx(0.5 * math.sqrt(2), rel=0.3)  # 16 samples of N(2, 0.5^2) in the plane


def test_the_lines_name_the_cheapest_or_that_there_is_none() -> None:
    found = price(Decay(), X0)
    one, two, three = found.lines()
    assert "for 1.0% of the spread" in one
    assert two.startswith("NFE for 1.0% and 0.1%: euler over 200; midpoint ")
    assert f"; rk4 {found.nfe['rk4'][0]} and {found.nfe['rk4'][1]}; " in two
    assert "stiffness 3" in three or "stiffness 2.9" in three


def test_what_was_not_tried_in_time_is_not_said_to_cost_over_200() -> None:
    point = Point(solver="rk4-5", nfe=20, nfe_most=20, error=0.5, error_95=0.6)
    curve = Curve(samples=16, spread=1.0, complete=False, points=(point,))
    one, two, _ = price(Decay(), X0, curve=curve).lines()
    assert "rk4 over 20;" in two
    assert "over 200" not in one + two
    assert one.startswith("price: more NFE than were tried for 1.0% of the spread")
    assert "euler not tried;" in two
    whole = price(Decay(), X0, curve=curve.model_copy(update={"complete": True}))
    assert "rk4 over 200;" in list(whole.lines())[1]


def test_a_network_that_gives_no_numbers_is_refused() -> None:
    with pytest.raises(TrainingError, match="none of 16 paths reached t = 1"):
        price(Lost(), X0)
