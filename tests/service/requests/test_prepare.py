"""Jobs as the engine gets them."""

from typing import Any

import pytest

from service.registry.registry import Models
from service.registry.served import Served
from service.requests.prepare import prepare
from service.requests.schemas import SampleRequest
from service.responses.encoders import ENCODERS
from service.settings import Settings
from solvers import resolve

JSON = ENCODERS["application/json"]


@pytest.fixture
def moons(settings: Settings, engine: Any) -> Served:
    models = Models(settings.models_dir, engine)
    models.load_all()
    return models.find("moons")


def test_job(moons: Served, settings: Settings) -> None:
    request = SampleRequest(model="moons", num_samples=3, seed=7, first_index=5, on_timeout="partial", trace="none")
    job = prepare(request, moons, settings, JSON)
    assert (job.model, job.version, job.num_samples, job.seed, job.first_index) == ("moons", 2, 3, 7, 5)
    assert (job.partial, job.trace, job.x0, job.save_at) == (True, "none", None, None)
    assert job.solve is resolve()  # equal requests share one compiled solver


def test_limits_are_inclusive(moons: Served, settings: Settings) -> None:
    limits = settings.model_copy(update={"max_samples": 5, "max_steps": 6, "max_nfe": 24})
    request = SampleRequest(model="moons", num_samples=5, solver="rk4", steps=6, max_nfe=24)
    assert prepare(request, moons, limits, JSON).num_samples == 5
