"""Sample requests that must be refused: the status, the field, and a message that says what is allowed."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.anyio

INVALID = [
    ({"num_samples": 0}, "num_samples", "greater than or equal to 1"),
    ({"num_samples": 10**9}, "num_samples", "100000"),
    ({"num_samples": 1.0}, "num_samples", "valid integer"),
    ({"num_samples": True}, "num_samples", "true"),
    ({"steps": 10**9, "solver": "rk4"}, "steps", "10000"),
    ({"steps": 0, "solver": "rk4"}, "steps", "greater than or equal to 1"),
    ({"steps": 20, "rtol": 1e-3}, "steps", "contradict"),
    ({"solver": "rk4", "steps": 20, "rtol": 1e-3}, "rtol", "rk4"),
    ({"solver": "rk4"}, "steps", "needs steps"),
    ({"solver": "rk5", "steps": 2}, "solver", "dopri5"),
    ({"solver": 4}, "solver", "valid string"),
    ({"rtol": -1e-3}, "rtol", "greater than 0"),
    ({"atol": 0.0}, "atol", "greater than 0"),
    ({"rtol": 1e-9}, "rtol", "floor of 1e-07"),
    ({"rtol": "1e-3"}, "rtol", "valid number"),
    ({"seed": -1}, "seed", "-1"),
    ({"seed": 2**63}, "seed", "9223372036854775808"),
    ({"seed": 2**64}, "seed", "18446744073709551616"),
    ({"seed": "7"}, "seed", "valid integer"),
    ({"seed": 7.0}, "seed", "valid integer"),
    ({"seed": True}, "seed", "true"),
    ({"first_index": -1}, "first_index", "-1"),
    ({"first_index": 2**63 - 1}, "first_index", "2**63"),
    ({"first_index": 5, "error_control": "batch"}, "first_index", "batch"),
    ({"stepz": 3}, "stepz", "did you mean 'steps'"),
    ({"colour": 3}, "colour", "allowed: model, version"),
    ({"model": None}, "model", "null"),
    ({"model": ""}, "model", "it must not be empty"),
    ({"model": "m" * 201}, "model", "it must have at most 200 characters"),
    ({"version": 0}, "version", "greater than or equal to 1"),
    ({"grid": 3}, "grid", "list of times"),
    ({"grid": "zigzag", "solver": "euler", "steps": 2}, "grid", "uniform"),
    ({"grid": {"shift": 3}, "solver": "euler", "steps": 2}, "grid", "needs 'name' too"),
    ({"grid": [0, 10**400, 1], "solver": "euler"}, "grid", "double"),
    ({"grid": [0.0, 0.5, 0.4, 1.0], "solver": "euler"}, "grid", "strictly"),
    ({"grid": [i / 20000 for i in range(20001)], "solver": "euler"}, "grid", "10000"),
    ({"start": "rk"}, "start", "Adams-Bashforth"),
    ({"error_control": "none"}, "error_control", "sample"),
    ({"controller": "pid"}, "controller", "paper"),
    ({"first_step": -0.1}, "first_step", "greater than 0"),
    ({"max_step": 0}, "max_step", "greater than 0"),
    ({"max_step": "0.1"}, "max_step", "valid number"),
    ({"max_step": 0.1, "first_step": 0.2}, "first_step", "over max_step = 0.1"),
    ({"max_step": 1e-4}, "max_step", "takes dopri5 at least 60002 calls from 0 to 1, over max_nfe = 10000"),
    ({"max_step": 0.1, "solver": "rk4", "steps": 4}, "max_step", "with fixed steps leave it out"),
    ({"max_nfe": 0}, "max_nfe", "greater than or equal to 1"),
    ({"max_nfe": 10**6}, "max_nfe", "100000"),
    ({"max_nfe": 10, "solver": "rk4", "steps": 20}, "max_nfe", "80"),
    ({"condition": 3}, "condition", "unconditional"),
    ({"guidance": 2.0}, "guidance", "unconditional"),
    ({"t_span": [0.5, 1.0]}, "x0", "give x0"),
    ({"t_span": [0, 2]}, "t_span", "leaves [0, 1]"),
    ({"t_span": [0, 0]}, "t_span", "must differ"),
    ({"t_span": [0, 10**400]}, "t_span.1", "too large for a double"),
    ({"t_span": [0]}, "t_span.1", "required"),
    ({"t_span": "01"}, "t_span", "it must be a list of numbers"),
    ({"x0": [[0.0, 1.0]], "num_samples": 2}, "x0", "[2, 2]"),
    ({"x0": [[0.0, 1.0], [1.0]], "num_samples": 2}, "x0", "ragged"),
    ({"x0": [["0", "1"]], "num_samples": 1}, "x0", "numbers only"),
    ({"x0": [[None, 1.0]], "num_samples": 1}, "x0", "numbers only"),
    ({"x0": [[1e300, 1.0]], "num_samples": 1}, "x0", "not finite in float32"),
    ({"x0": 5, "num_samples": 1}, "x0", "[1, 2]"),
    ({"x0": [[True, False], [0, 1]], "num_samples": 2}, "x0", "numbers only"),
    ({"x0": [[0.5, True]], "num_samples": 1}, "x0", "numbers only"),
    ({"x0": [[{}, 1]], "num_samples": 1}, "x0", "numbers only"),
    ({"x0": [[10**400, 1]], "num_samples": 1}, "x0", "too large for a double"),
    ({"x0": [[10**400, 1.5]], "num_samples": 1}, "x0", "too large for a double"),
    ({"trace": "all"}, "trace", "summary"),
    ({"save_at": []}, "save_at", "it must hold at least 1 number(s)"),
    ({"save_at": ["0.5"]}, "save_at.0", "valid number"),
    ({"t_span": [0, 0.5, 1]}, "t_span", "it must hold at most 2 numbers"),
    ({"save_at": [2.0]}, "save_at", "outside the span"),
    ({"save_at": [0.5, 0.25]}, "save_at", "follows"),
    ({"save_at": [0.3], "solver": "rk4", "steps": 4}, "save_at", "nearest is 0.25"),
    ({"save_at": [i / 2000 for i in range(2000)]}, "save_at", "1000"),
    ({"decode": 1}, "decode", "boolean"),
    ({"timeout_s": 0}, "timeout_s", "greater than 0"),
    ({"timeout_s": 1e9}, "timeout_s", "600"),
    ({"on_timeout": "ignore"}, "on_timeout", "partial"),
    ({"num_samples": 100_000, "trace": "full"}, "num_samples", "268,435,456"),
]


@pytest.mark.parametrize(("body", "field", "words"), INVALID, ids=lambda value: str(value)[:40])
async def test_invalid_field(shared: Any, body: dict[str, Any], field: str, words: str) -> None:
    answer = await shared.http.post(
        "/v1/sample",
        content=json.dumps({"model": "moons", **body}),
        headers={"Content-Type": "application/json"},
    )
    problem = answer.json()
    assert answer.status_code == problem["status"] == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "/problems/invalid-request"
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert [error["field"] for error in problem["errors"]] == [field]
    assert words in problem["errors"][0]["message"]
    assert words in problem["detail"]
    assert shared.engine.jobs == []


async def test_all_faults_are_reported_together(running: Any) -> None:
    problem = (await running.post(num_samples=0, seed=-1)).json()
    assert [error["field"] for error in problem["errors"]] == ["num_samples", "seed"]


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        {"solver": LONG},
        {"model": LONG},
        {"start": LONG, "solver": "ab3", "steps": 8},
        {"controller": LONG},
        {"error_control": LONG},
        {"grid": LONG, "solver": "euler", "steps": 2},
        {"grid": {"name": "shift", LONG: 1}, "solver": "euler", "steps": 2},
        {LONG: 1},
        {f"field{k}": 1 for k in range(5000)},
        {"save_at": ["0"] * 5000},
        {"steps": 10**4000, "solver": "rk4"},
        {"num_samples": 10**4000},
        {"version": 10**4000},
    ],
    ids=lambda body: str(body)[:30],
)
async def test_input_is_not_repeated_at_length(shared: Any, body: dict[str, Any]) -> None:
    answer = await shared.http.post("/v1/sample", json={"model": "moons", **body})
    assert answer.status_code in (404, 422)
    assert len(answer.content) < 12_000
    assert len(answer.json().get("errors", [])) <= 20
    assert len(answer.json()["detail"]) <= 1001


async def test_additional_faults_are_counted(shared: Any) -> None:
    problem = (await shared.post(**{f"field{k}": 1 for k in range(5000)})).json()
    assert len(problem["errors"]) == 20
    assert problem["more_errors"] == 4980
    assert problem["detail"].endswith("and 4980 more")


async def test_long_addresses_and_headers_are_truncated(shared: Any) -> None:
    for path in ("/", "/v1/models/"):
        assert len((await shared.http.get(path + LONG[:50_000])).content) < 3000
    assert len((await shared.post({"Accept": LONG})).content) < 3000
    assert len((await shared.post({"Content-Type": LONG})).content) < 3000
    assert len((await shared.post({"Content-Encoding": LONG})).content) < 3000


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"model": "moons"} x', b'{"model": NaN}', b'{"rtol": Infinity}', b'{"model": "\xff"}', b"[" * 10**5],
)
async def test_malformed_json(shared: Any, body: bytes) -> None:
    answer = await shared.http.post("/v1/sample", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["type"] == "/problems/malformed-json"
    assert ("no NaN" in answer.json()["detail"]) == (b"N" in body or b"I" in body)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"moons"', b"3"])
async def test_json_that_is_not_an_object(shared: Any, body: bytes) -> None:
    answer = await shared.http.post("/v1/sample", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "must be a JSON object" in answer.json()["detail"]


async def test_model_is_required(shared: Any) -> None:
    answer = await shared.http.post("/v1/sample", json={})
    assert answer.json()["errors"] == [{"field": "model", "message": "the field 'model' is required"}]


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_content_type(shared: Any, media: str | None) -> None:
    headers = {} if media is None else {"Content-Type": media}
    answer = await shared.http.post("/v1/sample", content=b'{"model": "moons"}', headers=headers)
    assert answer.status_code == 415
    assert answer.headers["accept-post"] == "application/json, application/x-npz"


async def test_compressed_body(shared: Any) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = await shared.http.post("/v1/sample", content=b"x", headers=headers)
    assert answer.status_code == 415
    assert "gzip" in answer.json()["detail"]


async def test_unknown_model_lists_the_existing_ones(shared: Any) -> None:
    answer = await shared.http.post("/v1/sample", json={"model": "../moons"})
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/unknown-model"
    assert answer.json()["available"] == ["broken", "digits", "gaussian", "moons"]


async def test_unknown_version_lists_the_existing_ones(shared: Any) -> None:
    answer = await shared.post(version=7)
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/unknown-version"
    assert answer.json()["available"] == [1, 2]


async def test_broken_model_reports_the_reason(shared: Any, repository: Path) -> None:
    answer = await shared.http.post("/v1/sample", json={"model": "broken"})
    assert answer.status_code == 503
    assert answer.json()["type"] == "/problems/model-unavailable"
    assert "broken/1/weights.safetensors" in answer.json()["detail"]
    assert str(repository) not in answer.text


async def test_not_acceptable(shared: Any) -> None:
    answer = await shared.post({"Accept": "text/html, application/json;q=0"})
    assert answer.status_code == 406
    assert answer.json()["offered"] == [
        "application/json",
        "application/x-npz",
        "application/x-npy",
        "image/png",
    ]
    assert shared.engine.jobs == []
