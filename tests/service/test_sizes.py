"""Answers are never larger than predicted."""

from typing import Any

import pytest

from service.encoders import ENCODERS
from service.models import Models
from service.schemas import SampleRequest
from service.served import Served
from service.settings import Settings
from service.sizes import attempts, predict_bytes
from solvers.resolve import resolve

pytestmark = pytest.mark.anyio


@pytest.fixture
def moons(settings: Settings, engine: Any) -> Served:
    models = Models(settings.models_dir, engine)
    models.load_all()
    return models.find("moons")


def test_most_attempts() -> None:
    assert attempts(resolve(solver="rk4", steps=7)) == 7
    assert attempts(resolve(max_nfe=100)) == 100 // 6
    assert attempts(resolve(max_nfe=2)) == 1


@pytest.mark.parametrize("media", list(ENCODERS))
@pytest.mark.parametrize("trace", ["none", "summary", "full"])
async def test_no_answer_is_larger_than_predicted(running: Any, moons: Served, media: str, trace: str) -> None:
    ask: dict[str, Any] = {"model": "moons", "num_samples": 2_000, "trace": trace, "save_at": [0.5, 1.0], "max_nfe": 60}
    answer = await running.http.post("/v1/sample", json=ask, headers={"Accept": media})
    predicted = predict_bytes(SampleRequest(**ask), moons, running.engine.jobs[0].solve, ENCODERS[media])
    assert answer.status_code == 200
    assert len(answer.content) <= predicted + 5_000


def test_data_in_float64_of_a_float32_model_take_twice_the_bytes(moons: Served) -> None:
    ask, solve = SampleRequest(model="moons", num_samples=1_000, trace="none"), resolve(solver="rk4", steps=1)
    encoder = ENCODERS["application/x-npz"]
    before = predict_bytes(ask, moons, solve, encoder)
    decoder = moons.card.decoder.model_copy(update={"dtype": "float64"})
    object.__setattr__(moons, "card", moons.card.model_copy(update={"decoder": decoder}))
    assert predict_bytes(ask, moons, solve, encoder) == before + 1_000 * 2 * 4
    assert predict_bytes(ask.model_copy(update={"decode": False}), moons, solve, encoder) == before
