"""Known values through every door: exact, the same bits in any company, and the reasons of refusals."""

import asyncio
import io
import json
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.noise import noise
from models.velocity import FieldKind
from solvers import integrate
from tests.service.serving import sampled

pytestmark = pytest.mark.anyio

WIDTH = 4
KNOWN = {"values": [0.5, 0.0, -1.25, 0.0], "mask": [1, 0, 1, 0]}
SOFT = {"values": [0.5, 9.0, -1.25, 3.0], "mask": [1, 0, 0.5, 0.25], "mode": "guided", "max_weight": 4.0}
BODY = {"model": "net", "num_samples": 3, "seed": 7, "first_index": 5, "solver": "rk4-3", "known": KNOWN}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    identity, common = Decoder.identity((WIDTH,)), {"dataset": {}, "training": {}, "seed": 0}
    net = ResidualMLP(ResidualMLPConfig(dim=WIDTH, hidden=16, blocks=1))
    save(root, "net", net, identity, **common)
    label = NamedCondition.label(classes=3)
    classes = ResidualMLP(ResidualMLPConfig(dim=WIDTH, hidden=16, blocks=1, condition=label))
    save(root, "classes", classes, identity, **common)
    affine = Decoder.affine(torch.tensor([2.0, 0.5, 4.0, 1.0]), torch.tensor([1.0, -1.0, 0.0, 3.0]), data_shape=(2, 2))
    save(root, "scaled", net, affine, **common)
    fixed = (torch.tensor([1]), torch.tensor([7.0]))
    bounded = Decoder.affine(torch.ones(WIDTH), torch.zeros(WIDTH), clip=(-8.0, 8.0), constants=fixed)
    save(root, "bounded", net, bounded, **common)
    save(root, "pca", net, Decoder.pca(torch.zeros(6), torch.randn(WIDTH, 6), torch.ones(WIDTH), (2, 3)), **common)
    save(root, "coupled", net, identity, noise_independent=False, **common)
    average = ResidualMLP(ResidualMLPConfig(dim=WIDTH, hidden=16, blocks=1, field=FieldKind.AVERAGE))
    save(root, "average", average, identity, **common)
    return root


async def sample(http: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    return await sampled(http, BODY | changes)


@pytest.mark.parametrize("known", [KNOWN, KNOWN | {"resample": 2}, SOFT], ids=["replace", "resample", "guided"])
@pytest.mark.parametrize("solver", ["euler-6", "dopri5@1e-3", "ab3-5", "sde-4"])
async def test_a_sample_has_the_same_bits_in_any_company(
    http: httpx.AsyncClient, solver: str, known: dict[str, Any]
) -> None:
    if (known.get("resample") and solver != "euler-6") or (known is SOFT and solver == "sde-4"):
        return  # these are refused
    alone, plain = await sample(http, solver=solver, known=known), await sample(http, solver=solver, known=None)
    each = known | {"values": [known["values"], [9.0] * WIDTH, [0.1] * WIDTH]}
    others: list[dict[str, Any]] = [
        {"num_samples": 2500, "first_index": 0},  # more than a part of the row budget: in slices
        {"known": None, "num_samples": 100, "first_index": 0},
        {"num_samples": 1, "first_index": 6, "priority": "bulk"},
        {"known": each},
        {"known": KNOWN if known is SOFT else SOFT, "solver": "heun2-3", "num_samples": 50},
    ]
    body = {"solver": solver, "known": known}
    together = await asyncio.gather(*(sample(http, **(body | other)) for other in ({}, *others)))
    assert together[0]["samples"] == alone["samples"] == together[1]["samples"][5:8]
    assert together[2]["samples"][5:8] == plain["samples"]
    assert together[3]["samples"] == alone["samples"][1:2]
    assert together[4]["samples"][0] == alone["samples"][0]
    assert together[4]["samples"][1] != alone["samples"][1]
    assert alone["nfe_per_sample"]["max"] <= plain["nfe_per_sample"]["max"] or known is not KNOWN
    for row in alone["samples"] if known is not SOFT else ():
        assert (row[0], row[2]) == (0.5, -1.25)


async def test_every_door_gives_the_same_samples(http: httpx.AsyncClient) -> None:
    for known in (KNOWN, SOFT):
        answer = await sample(http, known=known)
        again = {**answer, "known": known}
        replayed = await http.post("/v1/replay", json=again)
        assert replayed.json()["digest_matches"] is True, replayed.text
        arrays = {f"known.{name}": np.array(known[name]) for name in ("values", "mask")}
        scalars = {name: value for name, value in known.items() if name not in ("values", "mask")}
        file = io.BytesIO()
        np.savez(file, request=json.dumps(BODY | {"known": scalars}), **arrays)  # type: ignore[arg-type]
        npz = await http.post("/v1/sample", content=file.getvalue(), headers={"content-type": "application/x-npz"})
        assert npz.json()["samples"] == answer["samples"], npz.text
        stream = await http.post("/v1/sample/stream", json=BODY | {"known": known})
        assert json.dumps(answer["samples"]).replace(" ", "") in stream.text
        parameters = {name: value for name, value in BODY.items() if name not in ("model", "known")}
        parameters |= {f"known.{name}": value for name, value in scalars.items()}
        inputs = [
            {"name": name, "datatype": "FP64", "shape": list(array.shape), "data": array.astype(float).tolist()}
            for name, array in arrays.items()
        ]
        oip = (await http.post("/v2/models/net/infer", json={"parameters": parameters, "inputs": inputs})).json()
        assert oip["parameters"]["digest"] == answer["digest"], oip


async def test_a_replay_needs_the_values_again(http: httpx.AsyncClient) -> None:
    answer = await sample(http, solver="euler-4", known=KNOWN | {"resample": 2})
    assert answer["solver"]["text"] == "euler-4+resample=2"
    assert answer["known_values"] == {"mode": "replace", "values": "data"}
    for body, field in (
        (answer, "known"),
        (answer | {"known": KNOWN | {"resample": 2, "values": [0.5, 0, -1, 0]}}, "known"),
        (answer | {"known": KNOWN}, "solver"),
    ):
        response = await http.post("/v1/replay", json=body)
        assert response.status_code == 422, response.text
        assert response.json()["errors"][0]["field"] == field
    again = answer | {"known": KNOWN | {"resample": 2}}
    assert (await http.post("/v1/replay", json=again)).json()["digest_matches"] is True
    by_text = await sample(http, solver="euler-4+resample=2", known=KNOWN)
    refused = await http.post("/v1/replay", json=by_text | {"known": KNOWN})
    assert "give known.resample = 2" in refused.json()["detail"]
    again = by_text | {"known": KNOWN | {"resample": 2}}
    assert (await http.post("/v1/replay", json=again)).json()["digest_matches"] is True


async def test_values_are_data_where_each_number_is_one_of_the_state(http: httpx.AsyncClient) -> None:
    values, mask = [[3.0, 0.0], [0.0, 5.0]], [[True, False], [False, True]]
    answer = await sample(http, model="scaled", known={"values": values, "mask": mask})
    states = await sample(http, model="scaled", decode=False, known={"values": [1.0, 0, 0, 2.0], "mask": [1, 0, 0, 1]})
    assert (answer["known_values"]["values"], states["known_values"]["values"]) == ("data", "states")
    for data, state in zip(answer["samples"], states["samples"], strict=True):
        assert (data[0][0], data[1][1], state[0], state[3]) == (3.0, 5.0, 1.0, 2.0)
        np.testing.assert_allclose(np.ravel(data), np.array(state) * [2, 0.5, 4, 1] + [1, -1, 0, 3], rtol=1e-6)
    pca = await sample(http, model="pca")
    assert pca["known_values"]["values"] == "states"
    assert (await sample(http, model="pca", decode=False))["samples"] == (await sample(http))["samples"]


async def test_guidance_is_the_formula_written_out(http: httpx.AsyncClient, root: Path) -> None:
    """Euler steps with autograd in float64; classifier-free guidance is combined first, and costs its rows."""
    field = load(root / "classes" / "1").velocity.double()
    y, w = (torch.tensor(SOFT[name], dtype=torch.float64) for name in ("values", "mask"))

    def guided(x: Tensor, t: Tensor, strength: float | None) -> Tensor:
        with torch.enable_grad():
            at = x.clone().requires_grad_()
            label, null = (torch.full((len(x),), number) for number in (1, 3))
            v = field(at, t, label)
            v = v if strength is None else strength * v + (1 - strength) * field(at, t, null)
            end = at + (1 - t)[:, None] * v
            [gradient] = torch.autograd.grad((w * (y - end) ** 2).sum() / 2, at)
        r2 = (1 - t) ** 2 / (t**2 + (1 - t) ** 2)
        factor = ((1 - t) / (t * r2)).clamp(max=4.0)
        return v.detach() - factor[:, None] * gradient

    x0 = noise(7, 5, 3, (WIDTH,), torch.float32).double()
    for strength in (None, 2.5):
        more = {} if strength is None else {"guidance": strength}
        answer = await sample(http, model="classes", solver="euler-10", known=SOFT, condition=1, **more)
        expected = integrate(lambda x, t, g=strength: guided(x, t, g), x0, solver="euler-10").x
        np.testing.assert_allclose(answer["samples"], expected.numpy(), atol=1e-4)
        assert answer["network_rows"] == 3 * 10 * 3 * (1 if strength is None else 2)
        assert answer["nfe"] == 10
    body: dict[str, Any] = {"model": "classes", "solver": "euler-10", "known": SOFT}
    others = [
        {"condition": 1, "guidance": 2.5},
        {"condition": 2, "num_samples": 40},
        {"condition": 0, "num_samples": 200, "guidance": {"strength": 3.0, "interval": [0.0, 0.5]}},
    ]
    together = await asyncio.gather(*(sample(http, **(body | other)) for other in others))
    assert together[0]["samples"] == answer["samples"]
    assert together[2]["network_rows"] == 200 * 3 * (10 + 6)  # of two terms at t = 0 to 0.5 only
    plain = await sample(http, model="classes", solver="euler-10", known=None, condition=1)
    assert np.abs(np.array(plain["samples"]) - answer["samples"]).max() > 0.05


GUIDED = KNOWN | {"mode": "guided"}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"known": KNOWN | {"values": [1, 2, 3]}}, "known.values", "has the shape [3]; it must be [4] for all samples"),
        ({"known": KNOWN | {"values": [[0.0] * WIDTH] * 2}}, "known.values", "or [3, 4] (data of model 'net')"),
        ({"known": KNOWN | {"values": 3}}, "known.values", "has the shape []"),
        ({"known": KNOWN | {"values": [1, 2, "x", 4]}}, "known.values", 'known.values[2] is "x"'),
        ({"known": KNOWN | {"values": [1, True, 3, 4]}}, "known.values", "known.values[1] is true"),
        ({"known": KNOWN | {"mask": [[1, 0], [0, 1]]}}, "known.mask", "does not broadcast"),
        ({"known": KNOWN | {"mask": [1, 0, None, 0]}}, "known.mask", "known.mask[2] is null"),
        ({"known": KNOWN | {"mask": [1, 0, 2, 0]}}, "known.mask", "not from 0 (unknown) to 1 (known)"),
        ({"known": KNOWN | {"mask": [1, 0, 0.5, 0]}}, "known.mask", "which only mode 'guided' takes"),
        ({"model": "bounded", "known": KNOWN | {"mask": [0, 1, 0, 0]}}, "known.values", "[1] = 0, but samples of this"),
        (
            {"model": "bounded", "known": KNOWN | {"values": [0, 7, 9, 0]}},
            "known.values",
            "[2] = 9, but samples of this",
        ),
        ({"known": KNOWN | {"mask": [1, 1, 1, 1]}}, "known.mask", "everything is known; leave something"),
        ({"known": KNOWN | {"mask": [0]}}, "known.mask", "nothing is known; leave known out"),
        ({"known": KNOWN | {"mask": [[1, 0, 0, 0], [0] * 4, [1, 0, 0, 0]]}}, "known.mask", "of sample 1"),
        ({"known": KNOWN | {"values": [1e39, 0, 0, 0]}}, "known.values", "not finite where known.mask says"),
        ({"known": KNOWN | {"max_weight": 2.0}}, "known.max_weight", "bounds mode 'guided'"),
        ({"known": KNOWN | {"weights": 2.0}}, "known.weights", "unknown field"),
        ({"known": KNOWN | {"resample": 0}}, "known.resample", "greater than or equal to 1"),
        ({"known": KNOWN | {"resample": 2}, "solver": "dopri5"}, "resample", "not those of dopri5 under error control"),
        ({"known": KNOWN | {"resample": 2}, "noise_scale": 0.5}, "noise_scale", "draws noise of scale 1"),
        ({"known": KNOWN | {"resample": 2}, "model": "coupled"}, "solver", "noise that depends on the data"),
        ({"known": GUIDED | {"resample": 2}}, "solver", "resample is for known values in mode 'replace'"),
        ({"known": None, "solver": "euler-4+resample=2"}, "solver", "resample is for known values"),
        ({"known": GUIDED, "solver": "sde-6"}, "known.mode", "not that of a path"),
        ({"known": GUIDED, "model": "average", "solver": "euler-1"}, "name", "field of average velocity"),
        (
            {"known": GUIDED, "model": "classes", "condition": 1, "guidance": {"strength": 2, "projection": True}},
            "guidance",
            "guidance.projection",
        ),
        ({"log_prob": True, "solver": "sde-6"}, "log_prob", "without known values"),
        ({"budget": {"max_nfe": 8}, "solver": None}, "budget", "name a solver instead"),
        ({"t_span": [1.0, 0.0], "x0": [[0.0] * WIDTH] * 3}, "t_span", "from noise to data, not from 1 to 0"),
    ],
)
async def test_refusals(http: httpx.AsyncClient, changes: dict[str, Any], field: str, words: str) -> None:
    body = {name: value for name, value in (BODY | changes).items() if value is not None}
    response = await http.post("/v1/sample", json=body)
    assert response.status_code == 422, response.text
    [error] = response.json()["errors"]
    assert (error["field"], words in error["message"]) == (field, True), error
    assert (await http.post("/v1/sample/stream", json=body)).status_code == 422


async def test_an_answer_tells_whether_its_own_operation_is_deterministic(running: Any) -> None:
    guided = {"known": {"values": [0.5, 0.0], "mask": [1, 0], "mode": "guided"}}
    fixed = {"model": "moons", "num_samples": 2, "seed": 0, "solver": "rk4-2"}
    assert (await running.post(**fixed)).json()["deterministic"] is True
    running.engine.deterministic = False  # of what is prepared from now on
    assert (await running.post(**fixed, **guided)).json()["deterministic"] is False
    events = (await running.http.post("/v1/sample/stream", json={**fixed, **guided})).text
    assert events.count('"deterministic":false') == 2
    assert (await running.post(**fixed)).json()["deterministic"] is True


async def test_values_that_are_not_finite_matter_only_where_they_are_known(http: httpx.AsyncClient) -> None:
    expected = await sample(http)
    for values, status in (([0.5, math.nan, -1.25, math.inf], 200), ([math.nan, 0, -1.25, 0], 422)):
        file = io.BytesIO()
        entries: dict[str, Any] = {"known.values": np.array(values), "known.mask": np.array([True, False, True, False])}
        np.savez(file, request=json.dumps({k: v for k, v in BODY.items() if k != "known"}), **entries)
        npz = await http.post("/v1/sample", content=file.getvalue(), headers={"content-type": "application/x-npz"})
        assert npz.status_code == status, npz.text
        if status == 200:
            assert npz.json()["samples"] == expected["samples"]
        else:
            assert npz.json()["errors"][0]["field"] == "known.values"


async def test_analysis_takes_no_known_values(http: httpx.AsyncClient) -> None:
    body = {"samples": [[0.0] * WIDTH], "known": KNOWN}
    for operation in ("encode", "log_prob"):
        response = await http.post(f"/v1/models/net/{operation}", json=body)
        assert response.status_code == 422
        assert "unknown field 'known'" in response.text
        repeated = {"samples": [[0.0] * WIDTH], "solver": "euler-4+resample=2"}
        assert (await http.post(f"/v1/models/net/{operation}", json=repeated)).status_code == 422
