"""Many requests at once: no response depends on the others."""

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest

from .conftest import Live

pytestmark = pytest.mark.anyio

SOLVES: list[dict[str, Any]] = [
    {"solver": "euler", "steps": 30},
    {"solver": "rk4", "steps": 7},
    {"solver": "ab3", "steps": 11},
    {"solver": "dopri5"},
    {"solver": "tsit5", "rtol": 1e-3, "atol": 1e-3},
]


def sampling(live: Live, connections: int = 256) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections)
    return httpx.AsyncClient(base_url=live.url, timeout=60, limits=limits)


async def ask(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/v1/sample", json={"model": "net", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def essence(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "latency"}


async def test_one_diverging_request_among_seven_good_ones(live: Live) -> None:
    bad = {
        "x0": [[3e38, -3e38]],
        "num_samples": 1,
        "solver": "rk4",
        "steps": 20,
    }  # which makes its first layer overflow
    good = [{"num_samples": 5, "seed": k, **SOLVES[k % 5]} for k in range(7)]
    async with sampling(live) as http:
        alone = [essence(await ask(http, **body)) for body in good]
        answers = await asyncio.gather(ask(http, **bad), *(ask(http, **body) for body in good))
    assert answers[0]["status"] == "non_finite"
    assert answers[0]["failed"] == [{"index": 0, "status": "non_finite", "t": 0.0}]
    assert [essence(answer) for answer in answers[1:]] == alone


async def test_alone_or_with_fifty_others_is_the_same_bits(live: Live) -> None:
    mine = [{"num_samples": 1 + 13 * k, "seed": k, "trace": "full", **SOLVES[k]} for k in range(5)]
    others = [{"num_samples": 1 + k % 9, "seed": 100 + k, **SOLVES[k % 5]} for k in range(50)]
    async with sampling(live) as http:
        alone = [essence(await ask(http, **body)) for body in mine]
        together = await asyncio.gather(*(ask(http, **body) for body in [*others, *mine, *others]))
    assert [essence(answer) for answer in together[50:55]] == alone


@pytest.mark.parametrize("solve", [SOLVES[1], SOLVES[3]])
async def test_sample_i_of_one_and_of_ten_thousand(live: Live, solve: dict[str, Any]) -> None:
    async with sampling(live) as http:
        many = await ask(http, num_samples=10_000, seed=9, trace="none", **solve)
        for index in (0, 4321, 9999):
            one = await ask(http, num_samples=1, seed=9, first_index=index, **solve)
            assert one["samples"][0] == many["samples"][index]


async def test_interleaved_models(live: Live) -> None:
    async with sampling(live) as http:
        bodies = [
            {"model": name, "num_samples": 4, "seed": k, "solver": "rk4", "steps": 5 + k}
            for k in range(10)
            for name in ("net", "gaussian", "mixture")
        ]
        alone = [essence(await ask(http, **body)) for body in bodies]
        together = await asyncio.gather(*(ask(http, **body) for body in bodies))
    assert [essence(answer) for answer in together] == alone
    assert {(answer["model"], answer["nfe"]) for answer in together} == {(b["model"], 4 * b["steps"]) for b in bodies}


async def test_two_hundred_requests_echo_their_own_parameters(live: Live) -> None:
    calls = {"euler": 1, "midpoint": 2, "heun2": 2, "rk4": 4, "ab3": 1}
    bodies = [
        {"solver": list(calls)[k % 5], "steps": 5 + k // 5, "seed": 7_000 + k, "num_samples": 1 + k % 3}
        for k in range(200)
    ]
    async with sampling(live) as http:
        answers = await asyncio.gather(*(ask(http, **body) for body in bodies))
    for body, answer in zip(bodies, answers, strict=True):
        assert (answer["solver"]["name"], answer["solver"]["steps"]) == (body["solver"], body["steps"])
        assert (answer["seed"], answer["shape"][0]) == (body["seed"], body["num_samples"])
        assert answer["nfe"] == calls[body["solver"]] * body["steps"]
    assert len({np.array(answer["samples"]).tobytes() for answer in answers}) == 200
