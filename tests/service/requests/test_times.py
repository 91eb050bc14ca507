"""Rounded times on every route: the rule of `solvers.grids`, and equal jobs from every kind of client."""

import json
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from service.oip.tensors import HEADER

pytestmark = pytest.mark.anyio

TENTHS = [k / 10 for k in range(11)]
SUMS = [0.0, *accumulate([0.1] * 10)]
FLOAT32 = np.array(TENTHS, dtype=np.float32)
EULER: dict[str, Any] = {"solver": "euler", "steps": 10}


async def infer(shared: Any, parameters: dict[str, Any], **tensors: Any) -> Any:
    """Send a request with binary tensors."""
    names = {"float16": "FP16", "float32": "FP32", "float64": "FP64"}
    parts = {name: np.asarray(value) for name, value in tensors.items()}
    inputs = [
        {"name": name, "shape": list(part.shape), "datatype": names[part.dtype.name],
         "parameters": {"binary_data_size": part.nbytes}} for name, part in parts.items()
    ]  # fmt: skip
    head = json.dumps({"parameters": {"num_samples": 1, **parameters}, "inputs": inputs}).encode()
    content = b"".join([head, *(part.tobytes() for part in parts.values())])
    return await shared.http.post("/v2/models/moons/infer", content=content, headers={HEADER: str(len(head))})


@pytest.mark.parametrize("times", [SUMS, FLOAT32.tolist(), [round(t, 6) for t in TENTHS]], ids=str)
async def test_save_at(shared: Any, times: list[float]) -> None:
    answer = (await shared.post(**EULER, num_samples=1, save_at=times)).json()
    job = shared.engine.jobs[0]
    assert answer["saved"]["t"] == job.save_at.tolist() == job.plan.times.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("steps", [3, 10, 48])
async def test_save_at_as_a_tensor(shared: Any, steps: int, dtype: Any) -> None:
    times = np.linspace(0, 1, steps + 1).astype(dtype)
    answer = await infer(shared, {"solver": "euler", "steps": steps}, save_at=times)
    assert answer.status_code == 200, answer.text
    assert shared.engine.jobs[0].save_at.tolist() == shared.engine.jobs[0].plan.times.tolist()


async def test_half_precision_in_json_is_half_precision_too(shared: Any) -> None:
    tensor = {"name": "save_at", "shape": [2], "datatype": "FP16", "data": [0.1, 1 / 3]}
    body = {"parameters": {"num_samples": 1, "solver": "euler", "grid": "uniform", "steps": 30}, "inputs": [tensor]}
    answer = await shared.http.post("/v2/models/moons/infer", json=body)
    assert answer.status_code == 200, answer.text
    assert shared.engine.jobs[0].save_at.tolist() == shared.engine.jobs[0].plan.times[[3, 10]].tolist()


async def test_a_half_precision_number_in_plain_json_is_no_grid_point(shared: Any) -> None:
    answer = await shared.post(**EULER, save_at=[float(np.float16(0.1))])
    assert answer.json()["detail"] == "save_at = 0.0999756 is not a grid point; the nearest is 0.1"


@pytest.mark.parametrize("grid", [[1e-8, 0.5, 1 - 2**-24], [0, 0.5, SUMS[-1]], [0, 0.5, 1 + 2**-23]], ids=str)
async def test_grids_whose_ends_are_rounded(shared: Any, grid: list[float]) -> None:
    answer = await shared.post(solver="euler", grid=grid, num_samples=1)
    assert answer.json()["solver"]["grid"] == [0, 0.5, 1]


async def test_a_grid_and_a_span_of_half_precision(shared: Any) -> None:
    half = np.array([0.1, 0.2, 0.3], dtype=np.float16)
    x0 = np.zeros((1, 2), dtype=np.float32)
    answer = await infer(shared, {"solver": "euler"}, grid=half, t_span=np.array([0.1, 0.3]), x0=x0)
    assert answer.status_code == 200, answer.text
    assert shared.engine.jobs[0].plan.times.tolist() == [0.1, float(half[1]), 0.3]


@pytest.mark.parametrize("t_span", [[1e-8, SUMS[-1]], [0, 1 + 2**-23], [2**-24, 1 - 2**-24]], ids=str)
async def test_a_span_that_is_all_but_whole_is_whole(shared: Any, t_span: list[float]) -> None:
    """It needs no x0, and there is no message that [0, 1] leaves [0, 1]."""
    assert (await shared.post(t_span=t_span, num_samples=1)).status_code == 200
    assert shared.engine.jobs[0].plan.t_span == (0.0, 1.0)


async def test_an_end_of_the_span_that_is_a_sum(shared: Any) -> None:
    ask: dict[str, Any] = {"num_samples": 1, "t_span": [0, 0.3], "save_at": [0.1 + 0.2]}
    assert (await shared.post(**ask)).status_code == 200
    assert shared.engine.jobs[0].save_at.tolist() == [0.3]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"t_span": [0, 1 + 6e-7]}, "t_span = [0, 1.0000006] leaves [0, 1], where model 'moons' is defined"),
        ({"t_span": [-6e-7, 1]}, "t_span = [-6e-07, 1] leaves [0, 1], where model 'moons' is defined"),
        ({"t_span": [0, 0.3], "save_at": [0.3000002]}, "save_at = 0.3000002 is outside the span from 0 to 0.3"),
        ({"save_at": [0.5, 0.49999999]}, "save_at must move strictly from 0 to 1, but 0.49999999 follows 0.5"),
        (
            {**EULER, "save_at": [0.1, 0.1 + 1e-8]},
            "save_at holds 0.1 and 0.10000001, which both stand for 0.1; leave one out",
        ),
        (
            {"solver": "euler", "grid": [0, 0.5, 1 - 6e-7]},
            "the grid runs from 0 to 0.999999, t_span from 0 to 1; make them match",
        ),
    ],
)
async def test_messages_print_numbers_that_differ(shared: Any, body: dict[str, Any], message: str) -> None:
    answer = await shared.post(**body)
    assert answer.status_code == 422
    assert answer.json()["detail"] == message
