"""`max_step` in every operation: echoed, respected, and refused where it does not apply."""

import json
from typing import Any

import pytest

from .conftest import Real

pytestmark = pytest.mark.anyio

SPARSE = {"rtol": 1e-2, "atol": 1e-2}
POINTS = {"samples": [[1.0, 0.5], [-0.5, 2.0]]}


async def test_samples_keep_to_the_longest_step(real: Real) -> None:
    free = await real.sample("net", num_samples=3, seed=0, trace="full", **SPARSE)
    bound = await real.sample("net", num_samples=3, seed=0, trace="full", max_step=0.05, **SPARSE)
    assert free["solver"]["max_step"] is None
    assert bound["solver"]["max_step"] == 0.05
    assert max(bound["trace"]["h"]) <= 0.05 < max(free["trace"]["h"])
    assert bound["nfe"] >= 2 + 6 * 20


@pytest.mark.parametrize("operation", ["encode", "log_prob"])
async def test_encoding_keeps_to_the_longest_step(real: Real, operation: str) -> None:
    bound = await real.ask("net", operation, **POINTS, max_step=0.05, **SPARSE)
    assert bound["solver"]["max_step"] == 0.05
    assert bound["nfe"] >= 2 + 6 * 20 > (await real.ask("net", operation, **POINTS, **SPARSE))["nfe"]


async def test_diagnosed_paths_keep_to_the_longest_step(real: Real) -> None:
    ask: dict[str, Any] = {"num_samples": 1, "seed": 0, "solver": "dopri5", "max_step": 0.05}
    found = await real.ask("net", "diagnose", **ask, **SPARSE)
    assert found["solver"]["max_step"] == 0.05
    assert found["nfe"] >= 2 + 6 * 20


async def test_a_stream_echoes_max_step(real: Real) -> None:
    body = {"model": "net", "num_samples": 1, "seed": 0, "max_step": 0.05}
    text = (await real.http.post("/v1/sample/stream", json=body)).text
    events = dict(block.split("\ndata: ", 1) for block in text.strip().split("\n\n") if "\ndata: " in block)
    assert json.loads(events["event: start"])["solver"]["max_step"] == 0.05
    assert json.loads(events["event: completed"])["nfe"] >= 2 + 6 * 20


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"max_step": 1e-5}, "max_step = 1e-05 takes dopri5 at least 600002 calls from 1 to 0, over max_nfe = 10000"),
        (
            {"max_step": 0.1, "solver": "rk4", "steps": 4},
            "max_step is for error control; with fixed steps leave it out",
        ),
        ({"max_step": -1.0}, "greater than 0"),
    ],
)
async def test_impossible_values_are_refused(real: Real, body: dict[str, Any], words: str) -> None:
    problem = await real.ask("net", "encode", 422, **POINTS, **body)
    assert words in problem["errors"][0]["message"]
