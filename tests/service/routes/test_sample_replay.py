"""``POST /v1/replay``: the same samples again, and every reason for a refusal."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.card import read_card
from models.checkpoint.plans import Plans, StoredPlan
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from service.requests.replays import Answer
from service.routes.replay import ReplayResponse
from tests.service.serving import conforming

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models: plain with tuned plans, by label, by a vector of 80 numbers, and one with a decoder."""
    root = tmp_path_factory.mktemp("replayed")
    about: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0}
    torch.manual_seed(0)
    size: dict[str, Any] = {"hidden": 8, "blocks": 1, "time_width": 4}
    conditions = {"plain": None, "labels": NamedCondition.label(classes=3), "vectors": NamedCondition.vector(width=80)}
    for name, condition in conditions.items():
        network = ResidualMLP(ResidualMLPConfig(dim=2, condition=condition, **size))
        save(root, name, network, Decoder.identity((2,)), **about)
    _tune(root / "plain" / "1", steps=3)
    pca = Decoder.pca(torch.full((16,), 0.5), torch.randn(3, 16), torch.ones(3), (4, 4), clip=(0.0, 1.0))
    save(root, "digits", ResidualMLP(ResidualMLPConfig(dim=3, **size)), pca, **about)
    return root


def _tune(folder: Path, steps: int) -> None:
    """Write a plan of some weights and a grid of as many steps."""
    times = tuple((k / steps) ** 1.5 for k in range(steps + 1))
    rows = tuple(tuple(0.1 * (1 + n - j) for j in range(n + 1)) for n in range(steps))
    given = {"weights": rows, "x0_weights": (0.05,) * steps}
    plan = StoredPlan(solver=f"tuned-{steps}", times=times, **given, error=0.1, start_error=0.2)
    grid = StoredPlan(solver=f"ab2-{steps}/tuned", times=times, error=0.1, start_error=0.2)
    Plans(weights_sha256=read_card(folder).weights_sha256, plans=(plan, grid)).write(folder)


async def _sampled(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await http.post("/v1/sample", json={"model": "plain", "num_samples": 3, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def _replayed(http: httpx.AsyncClient, answer: dict[str, Any], **body: Any) -> httpx.Response:
    return await http.post("/v1/replay", json=answer | body)


NO_HASH = "sha256:" + "0" * 64
VECTORS = [[(-1) ** k * k / 7 for k in range(80)]] * 2 + [[0.5] * 80]
GRID = [0.0, *(k**1.5 / 100**1.5 for k in range(1, 100)), 1.0]


@pytest.mark.parametrize(
    ("body", "again"),
    [
        ({}, {}),
        ({"solver": "rk4", "steps": 4, "seed": 2**63 - 1 - 3, "first_index": 2}, {}),
        ({"solver": "ab3-7/shift(3)+rk", "trace": "full", "save_at": [1.0]}, {}),
        ({"solver": "tsit5@1e-3/1e-6+batch+max_nfe=400", "save_at": [0.1, 0.3000001192]}, {}),
        ({"solver": "rk4", "grid": [0, 0.1 + 0.2, 1], "t_span": [0, 1]}, {}),
        ({"solver": "euler", "grid": GRID}, {}),
        ({"solver": "tuned-3", "trace": "full", "save_at": [1.0]}, {}),
        ({"solver": "ab2", "steps": 3, "grid": "tuned"}, {}),
        ({"x0": [[0.1, 2], [3, 4], [5, 1e-8]], "t_span": [0.3, 0.9], "decode": False}, {}),
        ({"x0": [[k, -k] for k in range(40)], "num_samples": 40}, {"x0": [[k, -k] for k in range(40)]}),
        ({"model": "labels", "condition": 2, "guidance": 1.5}, {}),
        ({"model": "labels", "condition": [0, 1, 2]}, {}),
        ({"model": "labels"}, {}),
        ({"model": "vectors", "condition": VECTORS, "guidance": 2.0}, {"condition": VECTORS}),
        ({"model": "vectors", "condition": VECTORS[0]}, {"condition": VECTORS[0]}),
        ({"model": "digits", "num_samples": 7}, {}),
        ({"solver": "rk4-3000", "max_nfe": 20_000}, {}),
        ({"solver": "rk4-9", "save_at": [k / 9 for k in range(1, 10)], "trace": "none"}, {}),
    ],
)
async def test_a_replay_returns_the_same_samples(http: httpx.AsyncClient, body: Any, again: Any) -> None:
    first = await _sampled(http, **body)
    answer = await _replayed(http, first, **again)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    conforming(ReplayResponse, found)
    assert (found["digest_matches"], found["differences"]) == (True, [])
    for member in ("samples", "digest", "request", "environment", "solver", "seed", "trace", "saved"):
        assert found.get(member) == first.get(member), member
    only = {name: first[name] for name in Answer.model_fields if name in first}
    assert (await _replayed(http, only, **again)).json()["digest_matches"]  # samples may be left out
    if again:
        refused = await _replayed(http, first)
        assert refused.status_code == 422
        assert next(iter(again)) in refused.json()["detail"]


async def test_repeated_inputs_must_be_the_same(http: httpx.AsyncClient) -> None:
    x0 = [[k, -k] for k in range(40)]
    first = await _sampled(http, x0=x0, num_samples=40)
    other = await _replayed(http, first, x0=[[k, 1 - k] for k in range(40)])
    assert other.status_code == 422
    assert "x0 is not the one of the first request" in other.json()["detail"]
    spare = await _replayed(http, await _sampled(http), x0=x0)
    assert spare.status_code == 422
    assert spare.json()["errors"][0]["field"] == "x0"


@pytest.mark.parametrize(
    ("body", "name", "array"),
    [
        ({"num_samples": 40}, "x0", np.arange(80.0).reshape(40, 2)),
        ({"model": "vectors"}, "condition", np.array(VECTORS)),
        ({"known": {"mask": [True, False]}}, "known.values", np.ones((3, 2))),
    ],
)
async def test_repeated_inputs_may_be_sent_as_npz(http: httpx.AsyncClient, body: Any, name: str, array: Any) -> None:
    member, _, inner = name.partition(".")
    hashed = body.get(member, {}) | {inner: array.tolist()} if inner else array.tolist()
    first = await _sampled(http, **body | {member: hashed})
    packed = io.BytesIO()
    np.savez(packed, **{"request": json.dumps(first | body), name: array})
    answer = await http.post("/v1/replay", content=packed.getvalue(), headers={"Content-Type": "application/x-npz"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["digest_matches"]


async def test_every_format_can_be_replayed(http: httpx.AsyncClient) -> None:
    body = {"model": "plain", "num_samples": 3, "seed": 5}
    first = await _sampled(http, seed=5)
    needed = {name: first[name] for name in Answer.model_fields if name in first}
    npz = await http.post("/v1/sample", json=body, headers={"Accept": "application/x-npz"})
    meta = json.loads(np.load(io.BytesIO(npz.content))["meta"].tobytes())
    assert {name: meta[name] for name in needed} == needed
    for media in ("application/x-npy", "image/png"):
        answer = await http.post("/v1/sample", json=body, headers={"Accept": media})
        document = json.loads(answer.headers["x-pathline-replay"])
        assert document == needed
        again = await http.post("/v1/replay", json=document, headers={"Accept": media})
        assert again.content == answer.content
        assert again.headers["x-pathline-digest-matches"] == "true"
    stream = await http.post("/v1/sample/stream", json=body)
    completed = json.loads(stream.text.partition("event: completed\ndata: ")[2].partition("\n")[0])
    assert {name: completed[name] for name in needed} == needed


async def test_what_does_not_fit_into_a_header_is_left_out(http: httpx.AsyncClient) -> None:
    body = {"model": "plain", "num_samples": 1, "solver": "euler", "grid": [k / 2000 for k in range(2001)]}
    answer = await http.post("/v1/sample", json=body, headers={"Accept": "application/x-npy"})
    assert (answer.status_code, "x-pathline-replay" in answer.headers) == (200, False)


async def test_differences_are_named_and_can_be_overruled(http: httpx.AsyncClient) -> None:
    first = await _sampled(http, seed=5)
    environment = first["environment"] | {"torch": "1.0", "threads": "64"}  # fused: threads do not matter
    other = first | {"checkpoint": "sha256:" + "0" * 64, "environment": environment}
    refused = await _replayed(http, other)
    assert refused.status_code == 409
    assert refused.json()["type"] == "/problems/replay-differs"
    assert [each["what"] for each in refused.json()["differences"]] == ["checkpoint", "torch"]
    assert all(each["reason"] for each in refused.json()["differences"])
    anyway = (await _replayed(http, other, force=True)).json()
    assert anyway["digest_matches"] is True  # the weights are in fact the same
    assert [each["what"] for each in anyway["differences"]] == ["checkpoint", "torch"]
    assert anyway["samples"] == first["samples"]


async def test_a_tuned_plan_is_streamed_and_batched_like_any_solver(http: httpx.AsyncClient) -> None:
    body = {"model": "plain", "num_samples": 3, "seed": 5, "solver": "tuned-3"}
    alone = (await http.post("/v1/sample", json=body)).json()
    others = [body | {"solver": solver} for solver in ("euler-7", "dopri5", "ab2-3/tuned")]
    together = await asyncio.gather(*(http.post("/v1/sample", json=each) for each in (*others, body)))
    assert together[-1].json()["samples"] == alone["samples"]
    stream = (await http.post("/v1/sample/stream", json={**body, "trace": "full"})).text
    completed = json.loads(stream.partition("event: completed\ndata: ")[2].partition("\n")[0])
    assert completed["samples"] == alone["samples"]
    assert completed["nfe"] == 3
    assert completed["trace"]


async def test_a_different_tuned_plan_is_named(http: httpx.AsyncClient) -> None:
    stock, tuned, grid = [await _sampled(http, solver=solver) for solver in ("rk4-3", "tuned-3", "ab2-3/tuned")]
    refused = await _replayed(http, stock | {"solver": stock["solver"] | {"plan": NO_HASH}})
    assert refused.status_code == 409
    assert [each["what"] for each in refused.json()["differences"]] == ["plan"]
    gone = tuned | {"solver": tuned["solver"] | {"plan": NO_HASH, "steps": 9}}
    refused = await _replayed(http, gone)
    assert refused.status_code == 409
    assert refused.json()["differences"][0]["here"] == "none of its tuned plans"
    assert "available: tuned-3" in (await _replayed(http, gone, force=True)).json()["detail"]
    mixed = grid | {"solver": tuned["solver"] | {"plan": grid["solver"]["plan"]}}  # a plan, but not that solver's
    assert (await _replayed(http, mixed)).status_code == 409
    anyway = (await _replayed(http, tuned | {"solver": tuned["solver"] | {"plan": NO_HASH}}, force=True)).json()
    assert anyway["digest_matches"] is True
    assert [each["what"] for each in anyway["differences"]] == ["plan"]


async def test_threads_matter_where_torch_computes(http: httpx.AsyncClient) -> None:
    first = await _sampled(http, model="digits")
    refused = await _replayed(http, first, environment=first["environment"] | {"threads": "64"})
    assert [each["what"] for each in refused.json()["differences"]] == ["threads"]


async def test_other_samples_are_not_a_replay(http: httpx.AsyncClient) -> None:
    other = await _sampled(http) | {"digest": NO_HASH}
    refused = await _replayed(http, other)
    assert refused.status_code == 409
    assert [each["what"] for each in refused.json()["differences"]] == ["samples"]
    anyway = (await _replayed(http, other, force=True)).json()
    assert anyway["digest_matches"] is False


async def test_a_partial_response_is_not_promised(running: Any) -> None:
    from dataclasses import replace

    running.engine.edit = lambda result: replace(result, status=np.array(["deadline"] * len(result.status)))
    first = (await running.post(num_samples=2, on_timeout="partial")).json()
    refused = await running.http.post("/v1/replay", json=first)
    assert refused.status_code == 409
    assert [each["what"] for each in refused.json()["differences"]] == ["answer"]


@pytest.mark.parametrize("body", [{}, {"token": "x"}, {"model": "plain"}, [1]], ids=["empty", "token", "model", "list"])
async def test_what_is_no_answer_is_refused(http: httpx.AsyncClient, body: Any) -> None:
    refused = await http.post("/v1/replay", json=body)
    assert refused.status_code == 422, refused.text


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"model": "elsewhere"}, 404, ""),
        ({"version": 7}, 404, ""),
        ({"version": "1"}, 422, "version"),
        ({"seed": -1}, 422, "seed"),
        ({"shape": [10**9, 2]}, 422, "num_samples"),
        ({"shape": [True, 2]}, 422, "shape.0"),
        ({"shape": []}, 422, "shape"),
        ({"solver": "rk4-3"}, 422, "solver"),
        ({"solver": {}}, 422, "solver"),
        ({"solver": {"name": "rk5", "steps": 3}}, 422, "solver"),
        ({"solver": {"name": ["rk4"]}}, 422, "solver"),
        ({"solver": {"name": "euler", "steps": 999999999}}, 422, "steps"),
        ({"solver": {"name": "rk4", "stepz": 3}}, 422, "solver"),
        *(
            ({"solver": {"name": "rk4", "steps": 3, name: value}}, 422, "solver")
            for name, value in {
                "timeout_s": 1,
                "priority": "bulk",
                "decode": False,
                "seed": 3,
                "t_span": [0, 1],
            }.items()
        ),
        *(({"solver": {"name": "rk4", "steps": 3, "plan": plan}}, 422, "solver") for plan in (1, [[]], "x", 10**400)),
        ({"solver": {"name": "rk4", "steps": 3, "plan": -1}, "force": True}, 422, "solver"),
        *(({"solver": {"name": "euler", "steps": 4, "text": text}}, 422, "solver") for text in ("rk4-20", "", None, 4)),
        ({"solver": {"name": "dopri5", "rtol": 1e-3, "text": "dopri5@1e-5"}, "force": True}, 422, "solver"),
        ({"request": {"t_span": [0.5, 1]}}, 422, "x0"),
        ({"request": {"t_span": [0, 7]}}, 422, "t_span"),
        ({"request": {"x0": [[1, 2]]}}, 422, "x0"),
        ({"request": {"condition": 4}}, 422, "condition"),
        ({"request": {"hashes": {"x0": "sha256:" + "0" * 64}}}, 422, "x0"),
        ({"request": {"hashes": {"model": "sha256:" + "0" * 64}}}, 422, "request.hashes.model.[key]"),
        ({"request": {"seed": 3}}, 422, "request.seed"),
        ({"saved": {"t": [[]]}}, 422, "saved.t.0"),
        ({"digest": "md5:1"}, 422, "digest"),
        ({"environment": {"torch": "x" * 1000}}, 422, "environment.torch"),
        ({"timeout_s": 10**9}, 422, "timeout_s"),
    ],
)
async def test_an_answer_is_validated_like_a_request(
    http: httpx.AsyncClient, changes: Any, status: int, field: str
) -> None:
    refused = await _replayed(http, await _sampled(http), **changes)
    assert refused.status_code == status, refused.text
    if field:
        assert [fault["field"] for fault in refused.json()["errors"]] == [field]
