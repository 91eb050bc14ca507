"""The temperature of the starting noise, through every door."""

import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from models.noise import noise

pytestmark = pytest.mark.anyio

BODY = {"model": "net", "num_samples": 3, "seed": 7, "solver": "rk4-5", "noise_scale": 0.5}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1))
    save(root, "net", net, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return root


async def test_it_is_a_factor_of_the_noise_and_is_recorded(http: httpx.AsyncClient) -> None:
    answer = (await http.post("/v1/sample", json=BODY)).json()
    start = (noise(7, 0, 3, (2,)) * 0.5).tolist()
    given = {name: BODY[name] for name in ("model", "num_samples", "solver")} | {"x0": start}
    assert answer["samples"] == (await http.post("/v1/sample", json=given)).json()["samples"]
    assert answer["noise_scale"] == 0.5
    plain = (await http.post("/v1/sample", json=BODY | {"noise_scale": 1.0})).json()
    assert plain["samples"] != answer["samples"]

    again = (await http.post("/v1/replay", json=answer)).json()
    assert (again["digest_matches"], again["noise_scale"]) == (True, 0.5)
    file = io.BytesIO()
    np.savez(file, request=json.dumps(BODY))
    npz = await http.post("/v1/sample", content=file.getvalue(), headers={"content-type": "application/x-npz"})
    assert npz.json()["samples"] == answer["samples"]
    assert json.dumps(answer["samples"]).replace(" ", "") in (await http.post("/v1/sample/stream", json=BODY)).text
    parameters = {name: value for name, value in BODY.items() if name != "model"}
    oip = (await http.post("/v2/models/net/infer", json={"parameters": parameters})).json()
    assert (oip["parameters"]["digest"], oip["parameters"]["noise_scale"]) == (answer["digest"], 0.5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sample", {"noise_scale": -0.1}),
        ("/v1/sample", {"noise_scale": 1e9}),
        ("/v1/sample", {"num_samples": 1, "noise_scale": 0.5, "x0": [[0.0, 0.0]]}),
        ("/v1/models/net/log_prob", {"samples": [[0.0, 0.0]], "noise_scale": 0.5}),
        ("/v1/models/net/encode", {"samples": [[0.0, 0.0]], "noise_scale": 0.5}),
    ],
)
async def test_where_it_has_no_meaning_it_is_refused(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    if path == "/v1/sample":
        body = {"model": "net", **body}
    answer = await http.post(path, json=body)
    assert answer.status_code == 422
    assert [fault["field"] for fault in answer.json()["errors"]] == ["noise_scale"]
