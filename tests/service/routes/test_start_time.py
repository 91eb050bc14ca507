"""Sampling that starts at a time of the network's own: a scheduler's for other steps, or one of the request."""

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.importing.declared import Declared
from models.importing.weights import import_weights
from models.noise import noise
from tests.models.scheduler_times import DDIM, STABLE
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio

CONFIG: dict[str, Any] = {"dim": 2, "hidden": 16, "blocks": 1}
EDM = Declared(predicts="x0", path="edm", start=80.0, end=0.002)
FLOW = Declared(noise_at=1, scale=1000.0, sign=1)


@pytest.fixture(scope="module")
def network() -> ResidualMLP:
    torch.manual_seed(0)
    return ResidualMLP(ResidualMLPConfig(**CONFIG)).requires_grad_(False)


@pytest.fixture(scope="module")
async def http(network: ResidualMLP, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    root = tmp_path_factory.mktemp("start")
    torch.save(network.state_dict(), root / "weights.pt")
    chain = Declared().scheduled({"_class_name": DDIM, **STABLE}, "euler-10")
    for name, declared in (("chain", chain), ("edm", EDM), ("flow", FLOW)):
        import_weights(root / "weights.pt", root / "models", name, "residual_mlp", CONFIG, declared=declared)
    async with calling_models(root / "models") as http:
        yield http


async def ask(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/v1/sample", json={"num_samples": 3, "seed": 5} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ddim(network: ResidualMLP, steps: int) -> Tensor:
    """Song et al. 2021, eq. 12 without noise, at the times of diffusers' `leading` spacing."""
    betas = torch.linspace(STABLE["beta_start"] ** 0.5, STABLE["beta_end"] ** 0.5, 1000, dtype=torch.float64) ** 2
    kept, x = (1 - betas).cumprod(0), noise(5, 0, 3, (2,)).double()
    for k in reversed(range(steps)):
        at = k * (1000 // steps) + STABLE["steps_offset"]
        before = at - 1000 // steps
        a, a_next = kept[at], kept[before] if before >= 0 else torch.ones((), dtype=torch.float64)
        e = network(x.float(), torch.full((3,), float(at))).double()
        x = (a_next / a).sqrt() * (x - (1 - a).sqrt() * e) + (1 - a_next).sqrt() * e
    return x


@pytest.mark.parametrize("steps", [10, 5, 3])
async def test_any_number_of_steps_starts_where_the_scheduler_does(
    http: httpx.AsyncClient, network: ResidualMLP, steps: int
) -> None:
    answer = await ask(http, model="chain", steps=steps)
    np.testing.assert_allclose(answer["samples"], ddim(network, steps).numpy(), rtol=1e-4, atol=1e-4)
    start = None if steps == 10 else (steps - 1) * (1000 // steps) + 1.0
    assert answer["request"].get("start_time") == start
    again = await http.post("/v1/replay", json=answer)
    assert again.json()["digest_matches"], again.text
    if start is not None:  # said by the request it is the same, and so it is with other solvers' first states
        assert (await ask(http, model="chain", steps=steps, start_time=start))["digest"] == answer["digest"]


async def test_a_request_may_say_where_to_start(http: httpx.AsyncClient, network: ResidualMLP) -> None:
    x = noise(5, 0, 3, (2,)).double()
    sigmas = np.array([40.0, 10.0, 1.0, 0.0])
    edm = 40 * x
    for now, after in pairwise(sigmas):
        level = torch.full((3,), float(now))
        edm = edm + (after - now) * (edm - network(edm.float(), level).double()) / now
    flow = 0.6 * x
    for now, after in pairwise((600.0, 300.0, 0.0)):
        flow = flow + (after - now) / 1000 * network(flow.float(), torch.full((3,), now)).double()
    t = [(1 - s / 80) / (1 + s * (1 - 1 / 80)) for s in sigmas]
    for model, start, grid, samples in (("edm", 40.0, t, edm), ("flow", 600.0, [0.4, 0.7, 1.0], flow)):
        body = {"model": model, "solver": "euler", "grid": grid, "start_time": start}
        answer = await ask(http, **body)
        np.testing.assert_allclose(answer["samples"], samples.numpy(), rtol=1e-4, atol=1e-4)
        oip = {"parameters": {"num_samples": 3, "seed": 5, "solver": "rk4-4", "start_time": start}}
        infer = (await http.post(f"/v2/models/{model}/infer", json=oip)).json()
        same = await ask(http, model=model, solver="rk4-4", start_time=start)
        assert infer["parameters"]["digest"] == same["digest"] != answer["digest"]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "chain", "start_time": 950.0},
        {"model": "chain", "start_time": -1.0},
        {"model": "edm", "start_time": 90.0},
        {"model": "flow", "start_time": 1001.0},
        {"model": "flow", "start_time": 500.0, "t_span": [0.0, 0.5]},
        {"model": "flow", "start_time": 500.0, "x0": [[0.0, 0.0]] * 3},
    ],
)
async def test_where_sampling_cannot_start_is_refused(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await http.post("/v1/sample", json={"num_samples": 3, "solver": "euler-4"} | body)
    assert (answer.status_code, [fault["field"] for fault in answer.json()["errors"]]) == (422, ["start_time"])
