"""Stochastic samplers through every door: the same bits in any company, and the reasons of refusals."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.architectures.analytic import Gaussian
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.conventions import TimeCard
from models.decoder import Decoder
from models.noise import noise
from models.velocity import FieldKind
from solvers import integrate
from tests.service.serving import sampled

pytestmark = pytest.mark.anyio

DIFFUSION = {"scale": 0.7, "schedule": "flow_grpo", "temperature": 0.9}
BODY = {"model": "net", "num_samples": 3, "seed": 7, "first_index": 5, "solver": "sde-6", "diffusion": DIFFUSION}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    identity, common = Decoder.identity((2,)), {"dataset": {}, "training": {}, "seed": 0}
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1))
    save(root, "net", net, identity, **common)
    save(root, "coupled", net, identity, noise_independent=False, **common)
    save(root, "scaled", net, identity, time=TimeCard(predicts="eps", path="vp", noise_at=1, data_at=0), **common)
    average = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, field=FieldKind.AVERAGE))
    save(root, "average", average, identity, **common)
    exact = Gaussian()
    save(root, "gaussian", exact, identity, **common)
    return root


async def sample(http: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    return await sampled(http, BODY | changes)


@pytest.mark.parametrize("solver", ["sde-6", "sde_heun-4"])
async def test_a_sample_has_the_same_bits_in_any_company(http: httpx.AsyncClient, solver: str) -> None:
    alone = await sample(http, solver=solver)
    others: list[dict[str, Any]] = [
        {"num_samples": 400, "first_index": 0},
        {"num_samples": 100, "seed": 8, "solver": "dopri5", "diffusion": None},
        {"num_samples": 1, "first_index": 6},
        {"model": "gaussian"},
    ]
    together = await asyncio.gather(*(sample(http, **({"solver": solver} | other)) for other in ({}, *others)))
    assert together[0]["samples"] == alone["samples"] == together[1]["samples"][5:8]
    assert together[3]["samples"] == alone["samples"][1:2]
    assert together[0]["digest"] == alone["digest"]
    assert together[4]["samples"] != alone["samples"]
    assert (await sample(http, solver=solver, x0=alone["samples"], seed=9))["samples"] != alone["samples"]


async def test_every_door_gives_the_same_samples_and_records_the_noise(http: httpx.AsyncClient) -> None:
    answer = await sample(http)
    assert answer["solver"]["diffusion"] == DIFFUSION
    assert answer["solver"]["text"] == "sde-6+flow_grpo(0.7,0.9)"
    assert answer["step_noise"] == "philox-as241-v1"
    assert "step_noise" not in await sample(http, solver="euler-6", diffusion=None)
    for text in ({"solver": answer["solver"]["text"], "diffusion": None}, {"diffusion": "flow_grpo(0.7,0.9)"}):
        assert (await sample(http, **text))["digest"] == answer["digest"]

    assert (await http.post("/v1/replay", json=answer)).json()["digest_matches"] is True
    file = io.BytesIO()
    np.savez(file, request=json.dumps(BODY))
    npz = await http.post("/v1/sample", content=file.getvalue(), headers={"content-type": "application/x-npz"})
    assert npz.json()["samples"] == answer["samples"]
    assert json.dumps(answer["samples"]).replace(" ", "") in (await http.post("/v1/sample/stream", json=BODY)).text
    parameters = {name: value for name, value in BODY.items() if name != "model"} | {"diffusion": "flow_grpo(0.7,0.9)"}
    oip = (await http.post("/v2/models/net/infer", json={"parameters": parameters})).json()
    assert oip["parameters"]["digest"] == answer["digest"]


async def test_offline_paths_are_those_of_the_service(http: httpx.AsyncClient) -> None:
    """With the exact velocity of the model: the same starting noise, the same noise of steps."""
    at = [0.5, 1.0]
    body = {"model": "gaussian", "num_samples": 40, "first_index": 0, "solver": "sde_heun-8", "save_at": at}
    answer = await sample(http, **body)
    exact = Gaussian()
    x0 = noise(7, 0, 40, (2,), torch.float64)
    offline = integrate(exact.double(), x0, solver="sde_heun-8", diffusion=DIFFUSION, save_at=at, seed=7)
    assert offline.saved is not None
    np.testing.assert_allclose(answer["saved"]["states"], offline.saved.numpy(), atol=1e-4)


async def test_log_densities_of_steps(http: httpx.AsyncClient) -> None:
    """Those of the normal distributions between the saved states, of the exact velocity of the model."""
    times = [0.0, 0.25, 0.5, 0.75, 1.0]
    body = {"model": "gaussian", "solver": "sde-4", "diffusion": None, "save_at": times, "log_prob": True}
    answer = await sample(http, **body)
    x = torch.tensor(answer["saved"]["states"], dtype=torch.float64)
    for n, t in enumerate(times[:-1]):
        v = Gaussian().double()(x[:, n], torch.full((3,), t, dtype=torch.float64))
        mean = x[:, n] + 0.25 * ((1 + t / 2) * v - x[:, n] / 2)
        exact = torch.distributions.Normal(mean, (0.25 * (1 - t)) ** 0.5).log_prob(x[:, n + 1]).sum(dim=1)
        np.testing.assert_allclose([row[n] for row in answer["log_prob"]], exact.numpy(), atol=1e-4)
    replayed = (await http.post("/v1/replay", json=answer)).json()
    assert replayed["log_prob"] == answer["log_prob"]
    binary = await http.post("/v1/sample", json=BODY | body, headers={"accept": "application/x-npz"})
    assert np.load(io.BytesIO(binary.content))["log_prob"].tolist() == answer["log_prob"]
    parameters = {"num_samples": 3, "seed": 7, "first_index": 5, "solver": "sde-4", "log_prob": True}
    oip = (await http.post("/v2/models/gaussian/infer", json={"parameters": parameters})).json()
    [output] = [output for output in oip["outputs"] if output["name"] == "log_prob"]
    assert output["shape"] == [3, 4]
    assert output["data"] == [number for row in answer["log_prob"] for number in row]
    assert "log_prob" not in await sample(http)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"model": "coupled"}, "solver", "'coupled' was trained on noise that depends on the data"),
        ({"model": "scaled"}, "solver", "'scaled' starts from states that are not standard normal noise"),
        ({"model": "average"}, "solver", "sde does not fit a field of average velocity"),
        ({"t_span": [0.5, 1.0]}, "x0", "there is no noise to draw"),
        ({"t_span": [1.0, 0.0], "x0": [[0, 0]] * 3}, "solver", "goes from noise to data only"),
        ({"solver": "sde-6+batch"}, "error_control", "error_control is for error control"),
        ({"solver": "sde-6/tuned"}, "grid", "this one has none"),
        ({"log_prob": True, "solver": "sde_heun-3"}, "log_prob", "is no normal distribution"),
        ({"log_prob": True, "diffusion": "linear(0)"}, "log_prob", "have no noise, and so no density"),
        ({"log_prob": True, "diffusion": "linear(1,0)"}, "log_prob", "have no noise, and so no density"),
        ({"log_prob": True, "diffusion": None, "solver": "dopri5"}, "log_prob", "dopri5@1e-5 have no noise"),
        ({"solver": "euler-6"}, "diffusion", "diffusion is for sde and sde_heun"),
        ({"diffusion": {"scale": -1}}, "diffusion.scale", "greater than or equal to 0"),
        ({"diffusion": {"schedule": "cosine"}}, "diffusion.schedule", "'linear', 'flow_grpo' or 'constant'"),
        ({"diffusion": "linear(1,2,3)"}, "diffusion", "write linear, linear(SCALE) or linear(SCALE,TEMPERATURE)"),
    ],
)
async def test_refusals_say_why(http: httpx.AsyncClient, changes: dict[str, Any], field: str, words: str) -> None:
    response = await http.post("/v1/sample", json=BODY | changes)
    assert response.status_code == 422
    [fault] = response.json()["errors"]
    assert fault["field"] == field
    assert words in fault["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("models/net/encode", {"samples": [[0, 0]], "solver": "sde-5"}),
        ("models/net/log_prob", {"samples": [[0, 0]], "solver": "sde-5"}),
        ("models/net/diagnose", {"num_samples": 1, "solver": "sde-5", "times": [0, 1]}),
        ("models/net/frontier", {"num_samples": 100, "solvers": ["sde-5"]}),
    ],
)
async def test_operations_that_follow_the_ode_refuse(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    response = await http.post(f"/v1/{path}", json=body)
    assert response.status_code == 422
    assert "is stochastic" in response.json()["errors"][0]["message"]
