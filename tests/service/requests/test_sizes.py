"""Responses are never larger than predicted."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from service.ledger import Ledger
from service.registry.version import ModelVersion
from service.requests.conditions import CheckedConditions
from service.requests.schemas import SampleRequest
from service.requests.sizes import kept_steps, logged_beyond, memory_bytes, response_bytes
from service.responses.arrays import ENCODERS, array_json
from solvers import resolve

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("media", list(ENCODERS))
@pytest.mark.parametrize("trace", ["none", "summary", "full"])
async def test_no_answer_is_larger_than_predicted(shared: Any, moons: ModelVersion, media: str, trace: str) -> None:
    ask: dict[str, Any] = {"model": "moons", "num_samples": 2_000, "trace": trace, "save_at": [0.5, 1.0], "max_nfe": 60}
    answer = await shared.http.post("/v1/sample", json=ask, headers={"Accept": media})
    predicted = response_bytes(SampleRequest(**ask), moons, shared.engine.jobs[0].plan, ENCODERS[media])
    assert answer.status_code == 200
    assert len(answer.content) <= predicted


def test_data_in_float64_of_a_float32_model_take_twice_the_bytes(moons: ModelVersion) -> None:
    ask, solve = SampleRequest(model="moons", num_samples=1_000, trace="none"), resolve(solver="rk4", steps=1)
    encoder = ENCODERS["application/x-npz"]
    before = response_bytes(ask, moons, solve, encoder)
    decoder = moons.card.decoder.model_copy(update={"dtype": "float64"})
    object.__setattr__(moons, "card", moons.card.model_copy(update={"decoder": decoder}))
    assert response_bytes(ask, moons, solve, encoder) == before + 1_000 * 2 * 4
    assert response_bytes(ask.model_copy(update={"decode": False}), moons, solve, encoder) == before


LONGEST = {"float32": -6.3184107e-06, "float64": -2.2250738585072014e-308}
"""Numbers that take the most characters, by dtype."""


@pytest.mark.parametrize("dtype", LONGEST)
@pytest.mark.parametrize("shape", [(5,), (7, 1), (3, 2), (3, 1, 1), (2, 1, 1, 1), (4, 28, 28)])
@pytest.mark.parametrize("depth", [1, 2])
def test_brackets_count(dtype: str, shape: tuple[int, ...], depth: int) -> None:
    shape = shape if depth == 1 else (3, *shape)
    states = np.full(shape, LONGEST[dtype], dtype=dtype)
    text = b"".join(array_json(states, min(depth, len(shape))))
    np.testing.assert_array_equal(np.array(json.loads(text), dtype=dtype), states)
    assert 0.8 * len(text) < ENCODERS["application/json"].array_bytes(shape, dtype) + 2 >= len(text)


def test_no_number_is_longer_than_said() -> None:
    rng = np.random.default_rng(0)
    for dtype, bits in (("float32", np.uint32), ("float64", np.uint64)):
        exponents = 10.0 ** rng.uniform(-8, 20, 100_000)
        drawn = [rng.integers(0, np.iinfo(bits).max, 100_000, dtype=bits).view(dtype), -exponents.astype(dtype)]
        numbers = np.concatenate(drawn)
        parts = b"".join(array_json(numbers[np.isfinite(numbers)])).split(b",")
        assert max(map(len, parts)) + 1 <= ENCODERS["application/json"].bytes_per_number[dtype]


@pytest.mark.parametrize("media", list(ENCODERS))
@pytest.mark.parametrize(
    "body", [{"solver": "rk4", "steps": 9}, {"max_nfe": 60}, {"x0": [[0.5, 0.5]] * 2_000, "max_nfe": 60}]
)
@pytest.mark.parametrize("trace", ["none", "full"])
async def test_a_job_takes_no_more_memory_than_is_set_aside(
    shared: Any, moons: ModelVersion, media: str, body: dict[str, Any], trace: str
) -> None:
    ask = {"model": "moons", "num_samples": 2_000, "trace": trace, "save_at": [1.0], **body}
    answer = await shared.http.post("/v1/sample", json=ask, headers={"Accept": media})
    assert answer.status_code == 200
    [job] = shared.engine.jobs
    result = shared.engine.submitted[0].result()
    kept = result.trace if trace == "full" else None
    columns = [] if kept is None else [kept.sample, kept.t, kept.h, kept.error, kept.accepted]
    tensors = [result.x, result.saved, *([] if job.x0 is None else [job.x0])]
    held = sum(each.nbytes for each in (*tensors, *columns, result.t, result.nfe, result.status))
    held += len(answer.content) if ENCODERS[media].whole else 0
    request, encoder = SampleRequest(**ask), ENCODERS[media]
    most = response_bytes(request, moons, job.plan, encoder)
    assert held <= memory_bytes(request, moons, job.plan, encoder, most, CheckedConditions())


def test_a_condition_for_all_takes_the_memory_of_one() -> None:
    from models.condition_values import Values
    from models.conditions import NamedCondition, NamedConditions

    def made(entry: NamedCondition, value: Any) -> torch.Tensor:
        values = Values(NamedConditions({"condition": entry}), {"condition": value}, 100_000, torch.float32)
        return values.tensors()["condition"].expanded(100_000)

    vectors, labels = made(NamedCondition.vector(width=1_000), [0.5] * 1_000), made(NamedCondition.label(classes=3), 2)
    assert (vectors.shape, labels.shape) == ((100_000, 1_000), (100_000,))
    assert vectors.untyped_storage().nbytes() == 4_000
    assert labels.untyped_storage().nbytes() == 8


def test_attempts_beyond_the_likely_number_are_set_aside_as_they_come() -> None:
    ledger = Ledger(1_000)
    hold = ledger.take(500, 1e12)
    logged = logged_beyond(hold, 30)
    logged(20)
    logged(10)
    assert ledger.reserved == 500
    logged(5)
    logged(2)
    assert ledger.reserved == 500 + 7 * 80
    hold.release()
    assert ledger.reserved == 0
    assert kept_steps(resolve(), "full") == 10_000 // 6
    assert kept_steps(resolve(), "summary") == 20
    assert kept_steps(resolve(solver="rk4", steps=7), "full") == 7
    assert kept_steps(resolve(solver="rk4", steps=7), "summary") == 0
