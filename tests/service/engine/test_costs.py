"""What a job is expected to cost before it has begun."""

import pytest
import torch

from models.checkpoint import Checkpoint
from service.engine.device import device_of
from service.engine.model import Model
from service.engine.runner import Arena

from .conftest import job


@pytest.fixture
def model(net: Checkpoint) -> Model:
    return Model("net", Arena(net, device_of(torch.device("cpu"))))


def test_plans_are_known_exactly(model: Model) -> None:
    assert model.cost(job(solver="rk4", steps=7)) == 28


def test_max_step_says_what_a_job_takes_at_least_before_any_was_seen(model: Model) -> None:
    guess = model.cost(job())
    assert model.cost(job(max_step=0.5)) == guess
    assert model.cost(job(max_step=1e-3)) == 6002 > guess
    assert model.cost(job(max_step=1e-3, first_step=1e-4, t_span=(1.0, 0.5))) == 3001
    assert model.cost(job(max_nfe=7)) == 7


def test_what_a_short_step_costs_is_not_expected_of_others(model: Model) -> None:
    model.learn(job(), 50.0)
    model.learn(job(max_step=1e-3), 6500.0)
    assert model.cost(job()) == 50
    assert model.cost(job(solver="dopri5", rtol=1e-2, atol=1e-2)) == 50
    assert model.cost(job(max_step=1e-3)) == 6500
    assert model.cost(job(max_step=1e-2)) == 602  # not seen yet
    assert model.cost(job(max_step=0.9)) == 50
