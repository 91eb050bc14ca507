"""Jobs as the engine receives them."""

from typing import Any

import numpy as np
import pytest

from service.errors import ProblemError
from service.ledger import Hold, Ledger
from service.registry.version import ModelVersion
from service.requests.schemas import SampleRequest
from service.requests.validation import to_array, validate_sample
from service.responses.arrays import ENCODERS
from service.settings import Settings
from solvers import resolve

JSON = ENCODERS["application/json"]


def take(wanted: int, deadline: float, conditions: int) -> Hold:
    return Ledger(10**12).take(wanted, deadline)


def test_job(moons: ModelVersion, settings: Settings) -> None:
    request = SampleRequest(model="moons", num_samples=3, seed=7, first_index=5, on_timeout="partial", trace="none")
    job = validate_sample(request, moons, settings, JSON, take).job
    assert (job.model, job.version, job.num_samples, job.seed, job.first_index) == ("moons", 2, 3, 7, 5)
    assert (job.partial, job.trace, job.x0, job.save_at) == (True, "none", None, None)
    assert job.solve is resolve()  # equal requests share one compiled solver


def test_limits_are_inclusive(moons: ModelVersion, settings: Settings) -> None:
    limits = settings.model_copy(update={"max_samples": 5, "max_steps": 6, "max_nfe": 24})
    request = SampleRequest(model="moons", num_samples=5, solver="rk4", steps=6, max_nfe=24)
    assert validate_sample(request, moons, limits, JSON, take).job.num_samples == 5


@pytest.mark.parametrize("x0", [[[1, 2], [3, 4]], [[1, 2.0], [3, 4]]])
def test_numbers(x0: Any) -> None:
    array = to_array(x0, (2, 2))
    assert array.dtype == np.float64
    assert array.tolist() == [[1, 2], [3, 4]]


def test_integers_beyond_64_bits_are_numbers() -> None:
    assert to_array([[10**20, -(10**20)]], (1, 2)).tolist() == [[1e20, -1e20]]


def test_more_dimensions() -> None:
    assert to_array([[[1], [2]]], (1, 2, 1)).shape == (1, 2, 1)


@pytest.mark.parametrize("x0", [[[True, False]], [[True, 0]], [[1.5, False]], [["1", 2]], [[None, 1]], True, "x"])
def test_what_is_no_number(x0: Any) -> None:
    with pytest.raises(ProblemError, match="numbers only"):
        to_array(x0, (1, 2))


@pytest.mark.parametrize("other", [1, 1.5])
def test_too_large(other: float) -> None:
    with pytest.raises(ProblemError, match="too large for a double"):
        to_array([[10**400, other]], (1, 2))
