"""Conditions by name over HTTP: JSON, npz, the protocol and refusals, with a real engine."""

import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.serving import calling_models

from ..named import imported

pytestmark = pytest.mark.anyio

NPZ = {"Content-Type": "application/x-npz"}
TEXT = np.linspace(-1, 1, 12).reshape(3, 4)
GIVEN: dict[str, Any] = {
    "text": TEXT.tolist(),
    "mask": [True, True, False],
    "image": np.arange(12).reshape(3, 2, 2).tolist(),
    "label": "b",
}
BODY = {"model": "named", "num_samples": 3, "seed": 0, "solver": "rk4-5"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("named")
    imported(folder, folder / "repository")
    return folder / "repository"


async def served(root: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(root, **settings) as http:
        yield http


@pytest.fixture(scope="module")
async def http(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async for client in served(root):
        yield client


@pytest.fixture
async def narrow(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async for client in served(root, max_condition_bytes=400):
        yield client


async def ask(http: httpx.AsyncClient, path: str = "/v1/sample", **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json=BODY | {"conditions": GIVEN} | body)
    return answer.json() | {"code": answer.status_code}


def npz(request: dict[str, Any], **arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, request=np.array(json.dumps(request)), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def arrays(text: np.ndarray | None = None) -> dict[str, np.ndarray]:
    return {
        "conditions.text": (TEXT if text is None else text).astype(np.float32),
        "conditions.mask": np.array(GIVEN["mask"]),
        "conditions.image": np.array(GIVEN["image"], dtype=np.uint8),
        "conditions.label": np.array(1),
    }


async def test_json_npz_and_the_protocol_agree(http: httpx.AsyncClient) -> None:
    answered = await ask(http)
    assert answered["code"] == 200, answered
    answer = await http.post("/v1/sample", content=npz(BODY, **arrays()), headers=NPZ)
    assert answer.status_code == 200, answer.text
    assert answer.json()["samples"] == answered["samples"]
    inputs = [
        {
            "name": f"condition.{name}",
            "shape": [1, *np.shape(value)],
            "datatype": kind,
            "data": np.array(value).tolist(),
        }
        for name, value, kind in (
            ("text", TEXT, "FP32"),
            ("mask", GIVEN["mask"], "BOOL"),
            ("image", GIVEN["image"], "UINT8"),
            ("label", 1, "INT64"),
        )
    ]
    for tensor in inputs:
        tensor["data"] = np.ravel(tensor["data"]).tolist()
    body = {"parameters": {"num_samples": 3, "seed": 0, "solver": "rk4-5"}, "inputs": inputs}
    found = (await http.post("/v2/models/named/infer", json=body)).json()
    [samples] = [output for output in found["outputs"] if output["name"] == "samples"]
    np.testing.assert_allclose(np.reshape(samples["data"], (3, 3)), answered["samples"], rtol=1e-6)
    described = (await http.get("/v2/models/named")).json()["inputs"]
    for member in ("condition", "negative"):
        assert {"name": f"{member}.text", "datatype": "FP32", "shape": [-1, -1, 4]} in described


async def test_the_protocol_takes_guidance_of_several_terms_as_text(http: httpx.AsyncClient) -> None:
    guidance = {"terms": [{"weight": 2, "condition": "all"}, {"weight": -1, "drop": ["label"]}], "rescale": 0.5}
    wanted = await ask(http, conditions={"label": 1}, negative={"label": 2}, guidance=guidance)
    inputs = [
        {"name": f"{member}.label", "shape": [1], "datatype": "INT64", "data": [label]}
        for member, label in (("condition", 1), ("negative", 2))
    ]
    parameters = {"num_samples": 3, "seed": 0, "solver": "rk4-5", "guidance": json.dumps(guidance)}
    found = (await http.post("/v2/models/named/infer", json={"parameters": parameters, "inputs": inputs})).json()
    assert found["parameters"]["digest"] == wanted["digest"]
    for given, message in (("2x", 'guidance is "2x"'), ("[2]", 'guidance is "[2]"'), (guidance, "as JSON text")):
        answer = await http.post("/v2/models/named/infer", json={"parameters": parameters | {"guidance": given}})
        assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text


async def test_one_for_each_sample_and_one_for_all(http: httpx.AsyncClient) -> None:
    labels = [await ask(http, conditions=GIVEN | {"label": label}) for label in (0, 1)]
    each = await ask(http, conditions=GIVEN | {"label": ["a", "b", "a"]})
    assert each["samples"] == [labels[0]["samples"][0], labels[1]["samples"][1], labels[0]["samples"][2]]


async def test_guidance_and_negatives(http: httpx.AsyncClient) -> None:
    plain = await ask(http)
    terms = [
        {"weight": 3, "condition": "all"},
        {"weight": 1, "drop": ["text", "mask"]},
        {"weight": -3, "condition": "null"},
    ]
    several = await ask(http, guidance={"terms": terms, "interval": [0, 0.8]})
    assert several["code"] == 200, several
    assert plain["network_rows"] == 3 * 20
    assert several["network_rows"] < 3 * 3 * 20
    as_terms = [{"weight": 2, "condition": "all"}, {"weight": -1, "condition": "null"}]
    twice = [await ask(http, guidance=answered) for answered in (2, {"terms": as_terms}, {"strength": 2})]
    assert twice[0]["samples"] == twice[1]["samples"] == twice[2]["samples"] != plain["samples"]
    other = await ask(http, guidance=2, negative={"label": "c"})
    assert other["samples"] != twice[0]["samples"]


async def test_terms_may_have_conditions_of_their_own(http: httpx.AsyncClient) -> None:
    """In JSON, in npz and as the protocol's text; a term that has all of the request's values gives the same bits."""
    terms = [{"weight": w, "conditions": {"label": label}} for w, label in ((1, 0), (1, "c"), (1, 3))]
    guidance = {"terms": [*terms, {"weight": -2, "condition": "null", "conditions": {"strength": 1}}]}
    unlabelled = {name: value for name, value in GIVEN.items() if name != "label"}
    first = await ask(http, conditions=unlabelled, guidance=guidance)
    assert (first["code"], first["network_rows"]) == (200, 4 * 3 * 20), first
    other = await ask(http, conditions=unlabelled, guidance={"terms": [*guidance["terms"][1:], terms[1]]})
    assert other["samples"] != first["samples"]
    parameters = {"num_samples": 3, "seed": 0, "solver": "rk4-5", "guidance": json.dumps(guidance)}
    inputs = [
        {"name": f"condition.{name}", "shape": list(value.shape), "datatype": kind, "data": value.ravel().tolist()}
        for name, kind, value in (
            ("text", "FP32", TEXT),
            ("mask", "BOOL", np.array(GIVEN["mask"])),
            ("image", "UINT8", np.array(GIVEN["image"])),
        )
    ]
    answer = (await http.post("/v2/models/named/infer", json={"parameters": parameters, "inputs": inputs})).json()
    assert answer["parameters"]["digest"] == first["digest"]
    binary = {name: value for name, value in arrays().items() if name != "conditions.label"}
    answer = await http.post("/v1/sample", content=npz(BODY | {"guidance": guidance}, **binary), headers=NPZ)
    assert answer.json()["digest"] == first["digest"]
    own = [{"weight": 3, "conditions": GIVEN}, {"weight": -2, "drop": ["text"], "conditions": {"label": "b"}}]
    same = [{"weight": 3, "condition": "all"}, {"weight": -2, "drop": ["text"]}]
    answers = [await ask(http, guidance={"terms": terms, "interval": [0, 0.5]}) for terms in (own, same)]
    assert answers[0]["digest"] == answers[1]["digest"]


async def test_a_replay_needs_the_values_of_terms_again(http: httpx.AsyncClient) -> None:
    terms = [{"weight": 2, "conditions": {"label": 0}}, {"weight": -1, "condition": "null"}]
    first = await ask(http, guidance={"terms": terms})
    again = {name: value for name, value in first.items() if name != "code"} | {"conditions": GIVEN}
    for guidance, code in (
        (None, 422),
        ({"terms": terms}, 200),
        ({"terms": [terms[0] | {"weight": 2.0}, terms[1]]}, 200),
    ):
        answer = await http.post("/v1/replay", json=again | ({} if guidance is None else {"guidance": guidance}))
        assert answer.status_code == code, answer.text
    assert answer.json()["digest_matches"]
    terms[0]["conditions"] = {"label": 1}
    answer = await http.post("/v1/replay", json=again | {"guidance": {"terms": terms}})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "guidance"), answer.text


async def test_stream_and_operations_accept_named_conditions(http: httpx.AsyncClient) -> None:
    answered = await ask(http)
    events = (await http.post("/v1/sample/stream", json=BODY | {"conditions": GIVEN})).text
    [completed] = [line for event in events.split("\n\n") if "event: completed" in event for line in event.split("\n")][
        1:
    ]
    assert json.loads(completed.removeprefix("data: "))["samples"] == answered["samples"]
    body = {"conditions": GIVEN, "solver": "rk4-10"}
    encoded = (await http.post("/v1/models/named/encode", json=body | {"samples": answered["samples"]})).json()
    back = await ask(http, x0=encoded["x0"], solver="rk4-10")
    np.testing.assert_allclose(back["samples"], answered["samples"], atol=1e-2)
    for operation in ("log_prob", "diagnose"):
        own = {"samples": answered["samples"]} if operation == "log_prob" else {"num_samples": 2, "times": [0.0, 1.0]}
        answer = await http.post(f"/v1/models/named/{operation}", json=body | own)
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("change", "field", "fault"),
    [
        ({"text": None}, "", ""),
        ({"words": [1.0]}, "conditions.words", "there is no condition 'words'"),
        ({"text": [[1.0, 2.0]]}, "conditions.text", "has the shape [1, 2], expected float32 of shape [L up to 6, 4]"),
        ({"text": [[0.0] * 4] * 7}, "conditions.text", "has L = 7, expected 1 to 6"),
        ({"mask": [True, True]}, "conditions.text", "has L = 3, but condition 'mask' has L = 2; they must agree"),
        ({"mask": [1, 1, 0]}, "conditions.mask", "bool"),
        ({"image": [[[256] * 2] * 2] * 3}, "conditions.image", "outside 0 to 255"),
        ({"image": [[[0.5] * 2] * 2] * 3}, "conditions.image", "int"),
        ({"label": "x"}, "conditions.label", "a whole number from 0 to 4 or one of a, b, c, d, e"),
        ({"label": 5}, "conditions.label", "is 5, expected a class label, a whole number from 0 to 4"),
        ({"label": [1, 2]}, "conditions.label", "has the shape [2]"),
        ({"strength": "much"}, "conditions.strength", '"much"'),
    ],
)
async def test_refused_conditions_are_named(
    http: httpx.AsyncClient, change: dict[str, Any], field: str, fault: str
) -> None:
    found = await ask(http, conditions=GIVEN | change)
    assert found["code"] == (422 if field else 200), found
    if field:
        assert [fault["field"] for fault in found["errors"]] == [field]
        assert fault in found["errors"][0]["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"guidance": {"terms": [{"weight": 2, "condition": "all"}]}}, "guidance"),
        ({"guidance": {"terms": [{"weight": 1, "drop": ["words"]}]}}, "guidance"),
        ({"guidance": {"terms": [{"weight": 1}]}}, "guidance"),
        ({"guidance": {"terms": [{"weight": w, "condition": "all"} for w in (1e20, 1, -1e20)]}}, "guidance"),
        ({"guidance": {"terms": [{"weight": 1, "drop": ["strength"]}]}}, "guidance"),
        ({"guidance": {"strength": 2, "interval": [0.5, 0.1]}}, "guidance"),
        ({"guidance": {"strength": 2, "channels": 4}}, "guidance.channels"),
        ({"guidance": {"strength": 2, "rescale": 1.5}}, "guidance.rescale"),
        ({"guidance": {"strength": 0, "rescale": 0.5}}, "guidance"),
        ({"guidance": {"strength": 0, "projection": True}}, "guidance"),
        ({"guidance": "2"}, "guidance"),
        ({"guidance": {"terms": [{"weight": 1, "conditions": {"words": 1}}]}}, "guidance.terms.0.conditions.words"),
        ({"guidance": {"terms": [{"weight": 1, "conditions": {"label": 9}}]}}, "guidance.terms.0.conditions.label"),
        ({"guidance": {"terms": [{"weight": 1, "conditions": {"label": [1, 2, 3]}}]}}, "guidance.terms.0.conditions"),
        ({"guidance": {"terms": [{"weight": 1, "conditions": {"text": [[0.0] * 4] * 2}}]}}, "guidance.terms.0"),
        ({"guidance": {"terms": [{"weight": 1, "conditions": 3}]}}, "guidance.terms.0.conditions"),
        ({"guidance": {"terms": [{"weight": 1, "conditions": {}}]}}, "guidance"),
        ({"guidance": {"terms": [{"weight": 1, "conditions": {"label": 1}, "projection": True}]}}, "guidance.terms.0"),
        (
            {"guidance": {"terms": [{"weight": 1, "conditions": {"label": 1}}], "projection": True}},
            "guidance",
        ),
        (
            {
                "conditions": {name: GIVEN[name] for name in ("mask", "image", "label")},
                "guidance": {"terms": [{"weight": 1, "conditions": {"label": 1}}]},
                "shape": {"L": 7},
            },
            "shape",
        ),
        ({"negative": {"label": 1}}, "negative"),
        ({"condition": 1}, "condition"),
        ({"conditions": None, "condition": 1}, "condition"),
    ],
)
async def test_guidance_that_is_refused(http: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    found = await ask(http, **body)
    assert found["code"] == 422, found
    assert found["errors"][0]["field"].startswith(field)


async def test_bytes_of_conditions_are_limited(narrow: httpx.AsyncClient) -> None:
    found = await ask(narrow, num_samples=100, conditions=GIVEN | {"label": [1] * 100})
    assert (found["code"], found["type"].rsplit("/")[-1].rsplit("#")[-1]) == (413, "job-too-large"), found
    assert "PATHLINE_MAX_CONDITION_BYTES" in found["detail"]
    assert (await ask(narrow, conditions={"label": 1}))["code"] == 200


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("request.json", json.dumps(BODY))
        archive.writestr("conditions.text.npy", bytes(1 << 26))
    return file.getvalue()


def claims(shape: str, content: bytes = b"") -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("request.json", json.dumps(BODY))
        member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + content
        archive.writestr("conditions.text.npy", member)
    return file.getvalue()


@pytest.mark.parametrize(
    ("body", "status", "fault"),
    [
        (bomb(), 413, "compressed or not"),
        (claims("(100000, 100000)"), 422, "has 0 bytes; float32 of shape [100000, 100000] takes 40,000,000,000"),
        (b"PK\x03\x04 and no more", 400, "not a valid npz"),
        (npz(BODY, words=np.ones(2)), 422, "is unknown"),
        (npz(BODY, **{"conditions.text": np.array(["a"])}), 422, "must hold numbers"),
        (npz(BODY, **arrays(TEXT * np.nan)), 422, "not finite"),
        (npz(BODY, **(arrays() | {"conditions.mask": np.ones(3)})), 422, "is float64, expected bool"),
        (npz(BODY | {"conditions": {"text": []}}, **arrays()), 422, "given in the JSON and as an array"),
    ],
)
async def test_npz_that_is_refused(http: httpx.AsyncClient, body: bytes, status: int, fault: str) -> None:
    answer = await http.post("/v1/sample", content=body, headers=NPZ)
    assert answer.status_code == status, answer.text
    assert fault in answer.text
    assert (await ask(http))["code"] == 200
