"""What meets a person who comes from another solver library."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from solvers import integrate


class Decay(nn.Module):
    """A field with the argument order of torchdiffeq."""

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        assert t.ndim == 1
        return -y


def test_fields_of_time_and_state_are_recognised_by_the_names_of_their_arguments():
    x0 = torch.ones(3, 2, dtype=torch.float64)
    ours = integrate(lambda x, t: -x + t[:, None], x0).x
    for theirs in (lambda t, x: -x + t[:, None], lambda time, y: -y + time[:, None]):
        assert torch.equal(integrate(theirs, x0).x, ours)
    assert torch.equal(integrate(Decay(), x0).x, integrate(lambda x, t: -x, x0).x)
    assert torch.equal(integrate(lambda a, b: -a + b[:, None], x0).x, ours), "other names say nothing"


def test_a_start_that_requires_gradients_is_warned_of():
    with pytest.warns(UserWarning, match=r"integrate passes none; use torchdiffeq\.odeint") as caught:
        solution = integrate(lambda x, t: -x, torch.ones(1, 1, requires_grad=True), steps=2, solver="euler")
    assert caught[0].filename == __file__
    assert not solution.x.requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        integrate(nn.Bilinear(1, 1, 1), torch.ones(0, 1), steps=1, solver="euler")


def test_a_solution_is_printed_on_a_screen():
    text = repr(integrate(lambda x, t: -x, torch.ones(1000, 3), solver="rk4", steps=5))
    assert text == "Solution(rk4: x (1000, 3) torch.float32; nfe 20 to 20, mean 20.0; 1000 success)"
    assert repr(integrate(lambda x, t: -x, torch.ones(0, 3))).endswith("nfe 0; empty)")
