"""Conditions, guidance, states from the client and parts of the span over HTTP, with a real engine."""

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
from models.conditions import NamedCondition
from models.decoder import Decoder

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    conditions = {
        "labels": NamedCondition.label(classes=3, names=("cat", "dog", "owl")),
        "vectors": NamedCondition.vector(width=2),
        "strict": NamedCondition.label(classes=3, null=False),
        "years": NamedCondition.label(classes=3, names=("1", "2", "2020")),
        "scaled": NamedCondition.vector(width=2, mean=[2000.0, 65536.0], scale=[0.25, 2.0**-16]),
        "plain": None,
    }
    for name, condition in conditions.items():
        torch.manual_seed(0)
        model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, max_frequency=4.0, condition=condition))
        save(root, name, model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return root


async def ask(http: httpx.AsyncClient, model: str, **body: Any) -> dict[str, Any]:
    body = {"model": model, "num_samples": 3, "seed": 0, "solver": "rk4", "steps": 5} | body
    answer = await http.post("/v1/sample", json=body)
    return answer.json() | {"code": answer.status_code}


async def test_labels_for_all_for_each_and_by_name(http: httpx.AsyncClient) -> None:
    one, two = [await ask(http, "labels", condition=label) for label in (0, 1)]
    assert one["samples"] != two["samples"]
    mixed = await ask(http, "labels", condition=[0, 1, 0])
    assert mixed["samples"] == [one["samples"][0], two["samples"][1], one["samples"][2]]
    assert (await ask(http, "labels", condition=["cat", "dog", 0]))["samples"] == mixed["samples"]
    assert mixed["network_rows"] == 3 * 20


async def test_of_conditions_at_fault_those_of_the_samples_are_named_first(http: httpx.AsyncClient) -> None:
    terms = [{"weight": 2, "condition": "all"}, {"weight": -1, "conditions": {"condition": 9}}]
    both = await ask(http, "labels", condition=9, guidance={"terms": terms})
    own = await ask(http, "labels", condition=1, guidance={"terms": terms})
    fields = [answer["errors"][0]["field"] for answer in (both, own)]
    assert fields == ["condition", "guidance.terms.1.conditions"]


async def test_where_names_are_numbers_a_number_is_a_name(http: httpx.AsyncClient) -> None:
    by_name = [await ask(http, "years", condition=name) for name in ("1", "2", "2020")]
    by_number = [await ask(http, "years", condition=number) for number in (1, 2, 2020)]
    assert [each["samples"] for each in by_number] == [each["samples"] for each in by_name]
    assert len({str(each["samples"]) for each in by_number}) == 3
    assert [each["class"] for each in by_number] == ["1", "2", "2020"]
    mixed = await ask(http, "years", condition=[2020, "1", 2])
    assert mixed["class"] == ["2020", "1", "2"]
    assert mixed["samples"] == [by_name[k]["samples"][row] for row, k in enumerate((2, 0, 1))]
    file = io.BytesIO()
    np.savez(file, request=json.dumps({"model": "years", "num_samples": 3, "seed": 0, "solver": "rk4-5"}), condition=2)
    answer = await http.post("/v1/sample", content=file.getvalue(), headers={"content-type": "application/x-npz"})
    assert answer.json()["samples"] == by_name[1]["samples"]
    tensors = [{"name": "condition", "shape": [3], "datatype": "INT64", "data": [2020, 1, 2]}]
    parameters = {"num_samples": 3, "seed": 0, "solver": "rk4-5"}
    answer = await http.post("/v2/models/years/infer", json={"inputs": tensors, "parameters": parameters})
    found = {each["name"]: each["data"] for each in answer.json()["outputs"]}
    assert found["samples"] == [number for row in mixed["samples"] for number in row]
    for number in (0, 3, 2019):
        refused = await ask(http, "years", condition=number)
        assert f"condition is {number}, expected a class label, one of 1, 2, 2020" in str(refused["errors"])
    for answer in (by_number[2], mixed):
        again = (await http.post("/v1/replay", json=answer)).json()
        assert (again["digest_matches"], again["class"]) == (True, answer["class"])


async def test_the_answer_names_the_class(http: httpx.AsyncClient) -> None:
    assert (await ask(http, "labels", condition=1))["class"] == "dog"
    assert (await ask(http, "labels", condition=["cat", 2, 2]))["class"] == ["cat", "owl", "owl"]
    assert (await ask(http, "strict", condition=2))["class"] == "2"
    for model in ("labels", "vectors", "plain"):
        assert "class" not in await ask(http, model)


async def test_guidance_costs_two_rows_per_call_and_reports_it(http: httpx.AsyncClient) -> None:
    plain = await ask(http, "labels", condition=1)
    for guidance, rows in ((2.0, 120), (1, 60), (0, 60)):
        answer = await ask(http, "labels", condition=1, guidance=guidance)
        assert (answer["nfe"], answer["network_rows"]) == (20, rows)
        assert (answer["samples"] == plain["samples"]) == (guidance == 1)


@pytest.mark.parametrize(("model", "condition", "negative"), [("labels", 1, 2), ("vectors", [0.5, -1.0], [2.0, 0.0])])
async def test_a_negative_for_all_samples_equals_one_for_each(
    http: httpx.AsyncClient, model: str, condition: Any, negative: Any
) -> None:
    one = await ask(http, model, condition=condition, guidance=2.0, negative=negative)
    each = await ask(http, model, condition=condition, guidance=2.0, negative=[negative] * 3)
    assert (one["code"], each["code"]) == (200, 200)
    assert one["samples"] == each["samples"]


async def test_a_negative_replaces_the_null_of_a_model_without_one(http: httpx.AsyncClient) -> None:
    one, two = [await ask(http, "strict", condition=label) for label in (1, 2)]
    found = await ask(http, "strict", condition=1, guidance=0, negative=2)
    assert (found["samples"], found["code"]) == (two["samples"], 200)
    named = await ask(http, "strict", condition=1, guidance=2.0, negative={"condition": 2})
    alone = await ask(http, "strict", condition=1, guidance=2.0, negative=2)
    assert alone["samples"] == named["samples"] != one["samples"]


async def test_vectors_for_all_and_for_each(http: httpx.AsyncClient) -> None:
    one, two = [await ask(http, "vectors", condition=vector) for vector in ([0.5, -1], [2, 0])]
    mixed = await ask(http, "vectors", condition=[[0.5, -1], [2, 0], [0.5, -1]])
    assert mixed["samples"] == [one["samples"][0], two["samples"][1], one["samples"][2]]


@pytest.mark.parametrize("correction", [{"projection": True}, {"rescale": 0.75}])
async def test_corrected_guidance(http: httpx.AsyncClient, correction: dict[str, Any]) -> None:
    plain = await ask(http, "labels", condition=1, guidance=2.0)
    found = await ask(http, "labels", condition=1, guidance={"strength": 2.0, **correction})
    assert (found["network_rows"], found["samples"] == plain["samples"]) == (plain["network_rows"], False)
    again = (await http.post("/v1/replay", json=found)).json()
    assert again["digest_matches"]
    own: dict[str, dict[str, Any]] = {"log_prob": {"samples": [[0.5, 0.25]]}, "diagnose": {"num_samples": 1}}
    for operation, body in own.items():
        body |= {"condition": 1, "guidance": {"strength": 2.0, **correction}}
        refused = await http.post(f"/v1/models/labels/{operation}", json=body)
        assert refused.json()["errors"][0]["field"] == "guidance"


VALUES, SCALED = [0.5, -0.75], [2002, 16384]  # the same to the network


async def test_every_door_standardises(http: httpx.AsyncClient) -> None:
    """`scaled` has the weights of `vectors`, and takes (value - mean) * scale."""
    plain = await ask(http, "vectors", condition=VALUES)
    null = await ask(http, "vectors")
    assert plain["samples"] != null["samples"]
    assert (await ask(http, "scaled", condition=SCALED))["samples"] == plain["samples"]
    assert (await ask(http, "scaled"))["samples"] == null["samples"]
    each = await ask(http, "scaled", conditions={"condition": [SCALED, [float(x) for x in SCALED], SCALED]})
    assert each["samples"] == plain["samples"]
    guided = await ask(http, "vectors", condition=VALUES, guidance=2.0, negative=[1.0, 2.0])
    assert (await ask(http, "scaled", condition=SCALED, guidance=2.0, negative=[2004, 196608]))["samples"] == guided[
        "samples"
    ]
    request = {"model": "scaled", "num_samples": 3, "seed": 0, "solver": "rk4-5"}
    for dtype in (np.int32, np.float32, np.float64):
        file = io.BytesIO()
        np.savez(file, request=json.dumps(request), condition=np.array(SCALED, dtype=dtype))
        answer = await http.post("/v1/sample", content=file.getvalue(), headers={"content-type": "application/x-npz"})
        assert answer.json()["samples"] == plain["samples"]
    tensor = {"name": "condition", "shape": [2], "datatype": "FP64", "data": SCALED}
    parameters = {"num_samples": 3, "seed": 0, "solver": "rk4-5"}
    answer = await http.post("/v2/models/scaled/infer", json={"inputs": [tensor], "parameters": parameters})
    found = {each["name"]: each["data"] for each in answer.json()["outputs"]}
    assert found["samples"] == [number for row in plain["samples"] for number in row]


@pytest.mark.parametrize("operation", ["encode", "log_prob", "diagnose"])
async def test_operations_standardise(http: httpx.AsyncClient, operation: str) -> None:
    own: dict[str, Any] = {"num_samples": 2, "seed": 0, "times": [0.0, 1.0]} if operation == "diagnose" else {}
    own = own or {"samples": [[0.5, 0.25], [1.0, -1.0]]}
    answers = [
        (await http.post(f"/v1/models/{model}/{operation}", json={**own, "solver": "rk4-5", "condition": value})).json()
        for model, value in (("vectors", VALUES), ("scaled", SCALED))
    ]
    member = {"encode": "x0", "log_prob": "log_prob", "diagnose": "stiffness"}[operation]
    assert answers[0][member] == answers[1][member]


async def test_a_standardised_condition_is_replayed_as_it_came(http: httpx.AsyncClient) -> None:
    first = await ask(http, "scaled", condition=SCALED)
    again = await http.post("/v1/replay", json=first | {"condition": SCALED})
    assert (again.json()["digest_matches"], again.json()["samples"]) == (True, first["samples"])
    other = await http.post("/v1/replay", json=first | {"condition": VALUES})
    assert other.status_code == 422


@pytest.mark.parametrize(
    ("model", "body", "field", "words"),
    [
        ("labels", {"condition": 3}, "condition", "whole number from 0 to 2 or one of cat, dog, owl"),
        ("labels", {"condition": "cow"}, "condition", "one of cat, dog, owl"),
        ("labels", {"condition": True}, "condition", "class label"),
        ("labels", {"condition": [0, 1]}, "condition", "has the shape [2], expected a class label"),
        ("labels", {"condition": [0, 1, -1]}, "condition", "class label"),
        ("labels", {"condition": {"a": 1}}, "condition", "class label"),
        ("labels", {"condition": 10**400}, "condition", "class label"),
        ("labels", {"guidance": 2.0}, "guidance", "without a condition"),
        ("vectors", {"condition": [1.0]}, "condition", "vector of 2"),
        ("vectors", {"condition": [[1, 2], [3]]}, "condition", "vector of 2"),
        ("vectors", {"condition": "x"}, "condition", "vector of 2"),
        ("vectors", {"condition": [1e300, 0]}, "condition", "not finite"),
        ("strict", {}, "condition", "so give a condition"),
        ("strict", {"condition": 0, "guidance": 2.0}, "guidance", "without a null"),
        ("plain", {"condition": 0}, "condition", "unconditional"),
        ("plain", {"guidance": 1.0}, "guidance", "unconditional"),
    ],
)
async def test_conditions_that_do_not_fit_are_refused(
    http: httpx.AsyncClient, model: str, body: dict[str, Any], field: str, words: str
) -> None:
    answer = await ask(http, model, **body)
    assert answer["code"] == 422
    assert answer["errors"][0]["field"] == field
    assert words in answer["errors"][0]["message"]


@pytest.mark.parametrize("model", ["plain", "labels"])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
async def test_data_to_noise_to_data_is_a_round_trip(http: httpx.AsyncClient, model: str, tolerance: float) -> None:
    given: dict[str, Any] = {"solver": "dopri5", "steps": None, "rtol": tolerance, "atol": tolerance}
    if model == "labels":
        given |= {"condition": 2, "guidance": 1.5}
    data = (await ask(http, model, **given))["samples"]
    noise = await ask(http, model, x0=data, t_span=[1, 0], **given)
    back = await ask(http, model, x0=noise["samples"], t_span=[0, 1], **given)
    # the tolerance is for a step; the error of two whole paths is some times that
    assert np.abs(np.array(back["samples"]) - np.array(data)).max() < max(20 * tolerance, 1e-5)


async def test_a_span_in_two_parts_equals_the_whole_span(http: httpx.AsyncClient) -> None:
    whole = await ask(http, "plain", steps=10)
    half = await ask(http, "plain", steps=5, t_span=[0, 0.5])
    rest = await ask(http, "plain", steps=5, t_span=[0.5, 1], x0=half["samples"])
    np.testing.assert_allclose(rest["samples"], whole["samples"], atol=1e-5)
