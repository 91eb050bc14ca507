"""Free shapes over HTTP with a real engine: set by the request or a condition, on all routes, and refusals."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.checkpoint.card import read_card
from models.noise import noise
from selection.frontier import Curve, StoredFrontier
from solvers import integrate
from tests.selection.support import point
from tests.service.serving import calling_models

from ..free import Mel, mel, picture

pytestmark = pytest.mark.anyio

BODY = {"model": "mel", "num_samples": 2, "seed": 3, "solver": "euler-4"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mel, Path]:
    folder = tmp_path_factory.mktemp("free")
    network, _ = mel(folder, folder / "repository")
    picture(folder, folder / "repository")
    return network, folder / "repository"


@pytest.fixture(scope="module")
async def http(made: tuple[Mel, Path]) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(made[1]) as http:
        yield http


async def ask(http: httpx.AsyncClient, path: str = "/v1/sample", **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json=BODY | body)
    return answer.json() | {"code": answer.status_code}


def mu_of(frames: int) -> np.ndarray:
    return np.linspace(-1, 1, 3 * frames).reshape(3, frames).astype(np.float32)


def expected(network: Mel, frames: int, mu: np.ndarray | None = None, samples: int = 2) -> np.ndarray:
    """Return the result of a plain loop."""
    whole = torch.zeros(samples, 3, frames) if mu is None else torch.from_numpy(mu).expand(samples, -1, -1)
    start = noise(3, 0, samples, (3, frames), free=(1,))
    return integrate(lambda x, t: network(x, t, whole[: len(x)]), start, solver="euler", steps=4).x.numpy()


async def test_the_request_or_a_condition_sets_the_shape(http: httpx.AsyncClient, made: tuple[Mel, Path]) -> None:
    words = await ask(http, shape={"T": 12})
    assert words["code"] == 200, words
    assert words["shape"] == [2, 3, 12]
    np.testing.assert_allclose(words["samples"], expected(made[0], 12), rtol=0, atol=1e-5)
    mu = mu_of(10)
    follows = await ask(http, conditions={"mu": mu.tolist()})
    np.testing.assert_allclose(follows["samples"], expected(made[0], 10, mu), rtol=0, atol=1e-5)
    both = await ask(http, conditions={"mu": mu.tolist()}, shape={"T": 10})
    assert both["samples"] == follows["samples"]


async def test_two_free_axes(http: httpx.AsyncClient) -> None:
    found = await ask(http, model="picture", shape={"H": 6, "W": 9})
    assert found["shape"] == [2, 1, 6, 9]
    answer = await http.post(
        "/v1/sample", json=BODY | {"model": "picture", "shape": {"W": 9, "H": 6}}, headers={"Accept": "image/png"}
    )
    assert answer.status_code == 200
    assert np.abs(found["samples"]).max() <= 1


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "shape.T", 'T is missing; give shape {"T": N}, N from 4 to 40 in multiples of 2, or the condition mu'),
        ({"shape": {"T": 11}}, "shape.T", "has T = 11, expected 4 to 40 in multiples of 2; nearest: 10 and 12"),
        ({"shape": {"T": 42}}, "shape.T", "has T = 42, expected 4 to 40"),
        ({"shape": {"T": 0}}, "shape.T", "has T = 0, expected 4 to 40"),
        ({"shape": {"T": -2}}, "shape.T", "has T = -2"),
        ({"shape": {"T": 10**30}}, "shape.T", "expected 4 to 40"),
        ({"shape": {"T": 12.0}}, "shape.T", "12.0, expected an integer"),
        ({"shape": {"T": True}}, "shape.T", "true, expected an integer"),
        ({"shape": {"T": "12"}}, "shape.T", "expected an integer, 4 to 40"),
        ({"shape": {"T": None}}, "shape.T", "null, expected an integer"),
        ({"shape": [12]}, "shape", "a list of 1; it must be an object"),
        ({"shape": 12}, "shape", "must be an object"),
        ({"shape": {"T": 12, "K": 3}}, "shape.K", "no free axis 'K'; those it has are T"),
        ({"model": "picture", "shape": {"H": 6}}, "shape.W", "W is missing"),
        (
            {"shape": {"T": 12}, "conditions": {"mu": mu_of(10).tolist()}},
            "conditions.mu",
            "condition 'mu' has T = 10, but shape has T = 12; they must agree",
        ),
        ({"conditions": {"mu": mu_of(11).tolist()}}, "conditions.mu", "has T = 11, expected 4 to 40 in multiples of 2"),
        ({"conditions": {"mu": mu_of(60).tolist()}}, "conditions.mu", "T = 60, expected 1 to 40"),
        (
            {"x0": np.zeros((2, 3, 8)).tolist(), "shape": {"T": 12}},
            "x0",
            "x0 has T = 8, but shape has T = 12; they must agree",
        ),
        (
            {"guidance": 2, "conditions": {"mu": mu_of(12).tolist()}, "negative": {"mu": [[0.0] * 8] * 3}},
            "negative.mu",
            "negative 'mu' has T = 8, but condition 'mu' has T = 12",
        ),
        ({"shape": {"T": 12}, "budget": {"max_nfe": 4}}, "budget", "was not measured"),
    ],
)  # fmt: skip
async def test_a_wrong_shape_is_named(http: httpx.AsyncClient, body: dict[str, Any], field: str, message: str) -> None:
    if "budget" in body:
        answer = (await http.post("/v1/sample", json={k: v for k, v in (BODY | body).items() if k != "solver"})).json()
    else:
        answer = await ask(http, **body)
    assert answer["status"] == 422, answer
    assert answer["errors"][0]["field"] == field
    assert message in answer["errors"][0]["message"]


async def test_x0_sets_the_shape_and_a_reverse_span_returns_to_it(http: httpx.AsyncClient) -> None:
    forth = await ask(http, shape={"T": 8}, solver="rk4-20")
    again = await ask(http, solver="rk4-20", x0=noise(3, 0, 2, (3, 8), free=(1,)).tolist())
    np.testing.assert_allclose(again["samples"], forth["samples"], rtol=0, atol=1e-6)
    found = (await http.post("/v1/models/mel/encode", json={"samples": forth["samples"], "solver": "rk4-20"})).json()
    np.testing.assert_allclose(found["x0"], noise(3, 0, 2, (3, 8), free=(1,)), rtol=0, atol=1e-4)
    states = {"samples": forth["samples"], "solver": "rk4-20", "decode": False, "shape": {"T": 8}}
    assert (await http.post("/v1/models/mel/encode", json=states)).json()["x0"] == found["x0"]


async def test_operations(http: httpx.AsyncClient) -> None:
    data = (await ask(http, shape={"T": 4}))["samples"]
    dense = (await http.post("/v1/models/mel/log_prob", json={"samples": data, "solver": "rk4-4"})).json()
    assert len(dense["log_prob"]) == 2, dense
    body = {"num_samples": 1, "shape": {"T": 4}, "times": [0, 1]}
    found = (await http.post("/v1/models/mel/diagnose", json=body)).json()
    assert np.shape(found["eigenvalues_real"]) == (1, 2, 12), found
    wrong = (await http.post("/v1/models/mel/diagnose", json={"num_samples": 1})).json()
    assert wrong["errors"][0]["field"] == "shape.T"
    odd = (await http.post("/v1/models/mel/encode", json={"samples": [np.zeros((3, 5)).tolist()]})).json()
    assert "samples has T = 5, expected 4 to 40" in odd["errors"][0]["message"]


async def test_stream_npz_and_the_protocol(http: httpx.AsyncClient) -> None:
    plain = await ask(http, shape={"T": 12})
    events = (await http.post("/v1/sample/stream", json=BODY | {"shape": {"T": 12}, "save_at": [0.5, 1.0]})).text
    [done] = [event for event in events.split("\n\n") if "event: completed" in event]
    streamed = json.loads(done.split("data: ", 1)[1])
    assert streamed["samples"] == plain["samples"]
    file = io.BytesIO()
    arrays: dict[str, Any] = {"request": np.array(json.dumps(BODY)), "conditions.mu": mu_of(12)}
    np.savez(file, **arrays)
    headers = {"Content-Type": "application/x-npz", "Accept": "application/x-npz"}
    answer = await http.post("/v1/sample", content=file.getvalue(), headers=headers)
    whole = await ask(http, conditions={"mu": mu_of(12).tolist()})
    np.testing.assert_array_equal(
        np.load(io.BytesIO(answer.content))["samples"], np.float32(np.array(whole["samples"]))
    )
    parameters = {"num_samples": 2, "seed": 3, "solver": "euler-4", "shape.T": 12}
    found = (await http.post("/v2/models/mel/infer", json={"parameters": parameters, "inputs": []})).json()
    [samples] = [output for output in found["outputs"] if output["name"] == "samples"]
    assert samples["shape"] == [2, 3, 12]
    np.testing.assert_allclose(np.reshape(samples["data"], (2, 3, 12)), plain["samples"], rtol=1e-6)
    wrong = await http.post("/v2/models/mel/infer", json={"parameters": {**parameters, "shape.T": 13}, "inputs": []})
    assert wrong.status_code in (400, 422)
    assert "T = 13" in wrong.json()["error"]


async def test_replay(http: httpx.AsyncClient) -> None:
    first = await ask(http, model="picture", shape={"H": 5, "W": 8}, num_samples=3)
    again = (await http.post("/v1/replay", json=first)).json()
    assert again["digest_matches"] is True, again
    assert again["samples"] == first["samples"]
    conditions = {"mu": mu_of(12).tolist()}
    first = await ask(http, conditions=conditions)
    again = (await http.post("/v1/replay", json=first | {"conditions": conditions})).json()
    assert again["digest_matches"] is True, again


async def test_models_show_axes(http: httpx.AsyncClient) -> None:
    listed = {model["name"]: model for model in (await http.get("/v1/models")).json()["models"]}
    assert listed["mel"]["event_shape"] == listed["mel"]["data_shape"] == [3, "T"]
    assert listed["mel"]["axes"] == {"T": {"min": 4, "max": 40, "multiple": 2}}
    card = (await http.get("/v1/models/mel")).json()["served"][0]["card"]
    assert card["axes"] == {"T": {"min": 4, "max": 40, "multiple": 2}}
    assert card["noise"] == "philox-ndtri-free-v1"
    described = (await http.get("/v2/models/picture")).json()
    assert described["inputs"][0] == {"name": "x0", "datatype": "FP32", "shape": [-1, 1, -1, -1]}
    assert described["outputs"][0]["shape"] == [-1, 1, -1, -1]


async def test_only_equal_shapes_share_calls(http: httpx.AsyncClient) -> None:
    frames = [8, 12, 8, 12, 8, 20]
    alone = [await ask(http, shape={"T": each}, seed=place, num_samples=40) for place, each in enumerate(frames)]
    requests = [ask(http, shape={"T": each}, seed=place, num_samples=40) for place, each in enumerate(frames)]
    together = await asyncio.gather(*requests)
    assert [each["samples"] for each in together] == [each["samples"] for each in alone]


async def test_memory_counts_the_numbers_of_a_sample(made: tuple[Mel, Path]) -> None:
    async with calling_models(made[1], max_job_bytes=2**14) as http:
        short, long = [await ask(http, shape={"T": frames}, num_samples=40) for frames in (4, 40)]
    assert short["code"] == 200, short
    assert long["code"] == 413, long


async def test_a_frontier_applies_to_the_shape_it_was_measured_at(
    http: httpx.AsyncClient, made: tuple[Mel, Path]
) -> None:
    folder = made[1] / "picture" / "1"
    frontier = StoredFrontier(
        weights_sha256=read_card(folder).weights_sha256,
        reference="dopri5",
        sizes={"H": 6, "W": 9},
        curves=(Curve(samples=64, seed=0, spread=1.0, points=(point("euler-3", 3, 0.02),)),),
    )
    frontier.write(folder)
    body = {"model": "picture", "num_samples": 2, "budget": {"max_error": 0.05, "max_ms": 60_000}}
    chosen = await http.post("/v1/sample", json=body | {"shape": {"H": 6, "W": 9}})
    assert chosen.status_code == 200, chosen.text
    assert chosen.json()["budget"]["solver"] == "euler-3"
    other = (await http.post("/v1/sample", json=body | {"shape": {"H": 6, "W": 8}})).json()
    assert "was measured at H = 6, W = 9, and this request has H = 6, W = 8" in other["errors"][0]["message"]
    assert "--shape H=6 --shape W=8" in other["errors"][0]["message"]


async def test_the_command_that_measures_has_a_size_for_each_free_axis(
    http: httpx.AsyncClient, made: tuple[Mel, Path]
) -> None:
    (made[1] / "picture" / "1" / "frontier.json").unlink(missing_ok=True)
    missing = (await http.get("/v1/models/picture/frontier")).json()["detail"]
    assert missing.endswith(f"python -m models measure {made[1]}/picture/1 --shape H=N --shape W=N")


async def test_with_named_conditions_the_command_says_how_to_give_examples(
    http: httpx.AsyncClient, made: tuple[Mel, Path]
) -> None:
    refused = await http.post(
        "/v1/sample", json={"model": "mel", "num_samples": 1, "shape": {"T": 12}, "budget": {"max_error": 0.1}}
    )
    frontier = await http.get("/v1/models/mel/frontier")
    assert (refused.status_code, frontier.status_code) == (422, 404)
    for answer, size in ((refused, "12"), (frontier, "N")):
        assert answer.json()["detail"].endswith(
            f"python -m models measure {made[1]}/mel/1 --shape T={size} --condition FILE.npz (examples of its "
            "conditions: an array for each of mu)"
        )
