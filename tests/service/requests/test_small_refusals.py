"""Refusals are cheap on every route: memory in proportion to the body, and suggestions only for reported faults."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from service.app import create_app
from service.requests import parsing as bodies
from service.settings import Settings
from tests.service.conftest import FakeEngine
from tests.service.serving import calling

pytestmark = pytest.mark.anyio

ROWS = 3_000
LONG = "a" * 30_000
HUGE = 10**400
NUMBERS = [[0.5, 0.5]] * (ROWS - 1)

SMALL = 2_000_000
"""Bytes that a refusal may take in addition to a multiple of its body, for modules loaded on the way."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    conditions = {"net": None, "vectors": NamedCondition.vector(width=2), "labels": NamedCondition.label(classes=3)}
    for name, condition in conditions.items():
        torch.manual_seed(0)
        model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=4, condition=condition))
        save(root, name, model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return root


@pytest.fixture(scope="module")
async def http(root: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(models_dir=root, watch_s=0), cast(Any, FakeEngine()))
    async with calling(app) as http:
        yield http


def sample(member: str, value: Any, model: str = "net") -> tuple[str, dict[str, Any]]:
    return "/v1/sample", {"model": model, "num_samples": ROWS, member: value}


def stream(member: str, value: Any, model: str = "net") -> tuple[str, dict[str, Any]]:
    return "/v1/sample/stream", {"model": model, "num_samples": ROWS, member: value}


def encode(member: str, value: Any, model: str = "net") -> tuple[str, dict[str, Any]]:
    return f"/v1/models/{model}/encode", {"samples": NUMBERS + NUMBERS[:1]} | {member: value}


def log_prob(member: str, value: Any, model: str = "net") -> tuple[str, dict[str, Any]]:
    return f"/v1/models/{model}/log_prob", {"samples": NUMBERS + NUMBERS[:1]} | {member: value}


def diagnose(member: str, value: Any, model: str = "net") -> tuple[str, dict[str, Any]]:
    return f"/v1/models/{model}/diagnose", {"num_samples": 200, "times": [0.0], member: value}


def infer(member: str, value: Any, model: str = "net") -> tuple[str, dict[str, Any]]:
    tensor = {"name": member, "shape": [len(value) if isinstance(value, list) else 1, 2], "datatype": "FP32"}
    return f"/v2/models/{model}/infer", {"inputs": [tensor | {"data": value}]}


def parameter(member: str, value: Any) -> tuple[str, dict[str, Any]]:
    return "/v2/models/net/infer", {"parameters": {member: value}}


Door = Callable[..., tuple[str, dict[str, Any]]]

STATES: list[tuple[Door, str]] = [
    (sample, "x0"),
    (stream, "x0"),
    (encode, "samples"),
    (log_prob, "samples"),
    (infer, "x0"),
]
BAD_NUMBERS: dict[str, Any] = {
    "one long text": [LONG, *[0] * (ROWS - 1)],
    "one long text among numbers": [[0.5, LONG], *NUMBERS],
    "many texts": [["a" * 50, "b" * 50]] * ROWS,
    "a truth value": [*NUMBERS, [0.5, True]],
    "nothing": [*NUMBERS, [None, 0.5]],
    "an object": [*NUMBERS, [{}, 0.5]],
    "a huge integer": [*NUMBERS, [HUGE, 0.5]],
    "a short row": [*NUMBERS, [0.5]],
    "a long row": [*NUMBERS, [0.5] * 10_000],
    "one row deeper": [*NUMBERS, [[0.5], [0.5]]],
    "a text": LONG,
}


async def refusal(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[int, str, int, int]:
    """Send a body; return the status, the text of the response, the bytes sent and the peak memory in bytes."""
    return await _refusal(http, path, json.dumps(body))


async def _refusal(http: httpx.AsyncClient, path: str, body: str) -> tuple[int, str, int, int]:
    content = body.encode()
    tracemalloc.start()
    try:
        answer = await http.post(path, content=content, headers={"Content-Type": "application/json"})
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return answer.status_code, answer.text, len(content), taken


@pytest.mark.parametrize("kind", BAD_NUMBERS)
@pytest.mark.parametrize(("door", "member"), STATES, ids=lambda value: getattr(value, "__name__", value))
async def test_what_is_no_array_of_numbers(http: httpx.AsyncClient, door: Door, member: str, kind: str) -> None:
    path, body = door(member, BAD_NUMBERS[kind])
    status, text, sent, taken = await refusal(http, path, body)
    assert status == (400 if path.startswith("/v2") else 422)
    assert member in text or "inputs.0.data" in text
    assert len(text) < 2_000
    assert taken < 20 * sent + SMALL


@pytest.mark.parametrize("door", [sample, stream, encode, log_prob, infer], ids=lambda value: value.__name__)
@pytest.mark.parametrize("model", ["vectors", "labels"])
async def test_conditions(http: httpx.AsyncClient, door: Door, model: str) -> None:
    for value in ([LONG, *[0] * (ROWS - 1)], [[0.5, LONG], *NUMBERS], [["a", "b"]] * ROWS, LONG):
        path, body = door("condition", value, model=model)
        status, text, sent, taken = await refusal(http, path, body)
        assert status in (400, 422)
        assert "condition" in text or "inputs.0.data" in text
        assert len(text) < 2_000
        assert taken < 20 * sent + SMALL


@pytest.mark.parametrize("value", [LONG, [LONG] + [0] * 199, [[0.5, LONG]] * 200, [[0.5, True]] * 200])
async def test_states_to_diagnose(http: httpx.AsyncClient, value: Any) -> None:
    status, text, sent, taken = await refusal(http, *diagnose("x0", value))
    assert status == 422
    assert "x0" in text
    assert taken < 20 * sent + SMALL


TIMES = [(sample, "save_at"), (stream, "save_at"), (diagnose, "times"), (sample, "grid"), (sample, "t_span")]


@pytest.mark.parametrize(("door", "member"), TIMES, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.parametrize(
    "value", [["x"] * 20_000, [True] * 20_000, [[0.5]] * 20_000, [LONG, *[0.5] * 500], [HUGE] * 50]
)
async def test_times(http: httpx.AsyncClient, door: Door, member: str, value: Any) -> None:
    path, body = door(member, value)
    status, text, sent, taken = await refusal(http, path, body | {"solver": "euler"})
    assert status == 422
    assert member in text
    assert len(text) < 3_000
    assert taken < 30 * sent + SMALL


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [1] * 50_000},
        {"inputs": [{}] * 50_000},
        {"outputs": [None] * 50_000},
        {"outputs": [{f"n{i}": 0 for i in range(20_000)}]},
        {"inputs": [{"name": "x0", "shape": ["2"] * 50_000, "datatype": "FP32", "data": []}]},
        {"inputs": [{"name": "x0", "shape": [1, 2], "datatype": "FP32", "data": [["a"] * 50_000]}]},
        {"inputs": [{"name": "x0", "shape": [1, 2], "datatype": LONG, "data": [1, 2]}]},
        {"inputs": [{"name": LONG, "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]},
    ],
    ids=range(8),
)
async def test_bodies_of_the_protocol(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    status, text, sent, taken = await refusal(http, "/v2/models/net/infer", body)
    assert status == 400
    assert len(text) < 5_000
    assert taken < 30 * sent + SMALL


DOORS = [sample, stream, encode, log_prob, diagnose, parameter]


@pytest.mark.parametrize("door", DOORS, ids=lambda value: value.__name__)
async def test_suggestions_are_sought_for_what_is_shown_only(
    http: httpx.AsyncClient, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    found = bodies.get_close_matches

    def count(name: str, *arguments: Any, **options: Any) -> list[str]:
        reached.append(name)
        return found(name, *arguments, **options)

    monkeypatch.setattr(bodies, "get_close_matches", count)
    path, body = door("rtoll", 1)
    members = body.get("parameters", body)
    members |= {f"unknown{i}" * 20: 0 for i in range(6_500)}
    status, text, sent, taken = await refusal(http, path, body)
    answer = json.loads(text)
    assert len(reached) <= 20
    assert max(map(len, reached)) <= 61
    assert taken < 30 * sent + SMALL
    if path.startswith("/v2"):
        assert status == 400
        assert "and 6481 more" in answer["error"]
    else:
        assert status == 422
        assert len(answer["errors"]) == 20
        assert answer["more_errors"] == 6_481
        assert "did you mean 'rtol'?" in answer["errors"][0]["message"]
        assert answer["detail"].endswith("and 6481 more")


@pytest.mark.parametrize("header", ["9" * 4_300, "9" * 4_301, "1" + "0" * 30_000, "-1", "1e3", "²"])
async def test_a_header_of_many_digits_is_no_number_of_bytes(http: httpx.AsyncClient, header: str) -> None:
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": header.encode()}
    answer = await http.post("/v2/models/net/infer", content=b"{}", headers=headers)
    assert answer.status_code == 400
    assert "Inference-Header-Content-Length" in answer.json()["error"]


async def test_leading_zeros_are_digits_too(http: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0" * 4_300 + "2"}
    answer = await http.post("/v2/models/net/infer", content=b"{}", headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("door", DOORS, ids=lambda value: value.__name__)
@pytest.mark.parametrize(("part", "most"), [("[]", bodies.MAX_LISTS), ("{}", bodies.MAX_OBJECTS)])
async def test_more_lists_than_any_request_needs(http: httpx.AsyncClient, door: Door, part: str, most: int) -> None:
    path, body = door("zz", "HERE")
    text = json.dumps(body).replace('"HERE"', f"[{','.join([part] * (most + 1))}]")
    status, answer, sent, taken = await _refusal(http, path, text)
    assert status == 413
    assert f"the limit is {most}" in answer
    assert taken < 3 * sent + SMALL  # nothing was parsed


@pytest.mark.parametrize("door", DOORS, ids=lambda value: value.__name__)
async def test_large_bodies_are_parsed_one_after_another(
    http: httpx.AsyncClient, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, most, lock = 0, 0, threading.Lock()
    parsed = bodies.from_json

    def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun)
        threading.Event().wait(0.01)  # others could be accepted now
        try:
            return parsed(*arguments, **options)
        finally:
            with lock:
                begun -= 1

    monkeypatch.setattr(bodies, "from_json", watched)
    path, body = door("zz", "a" * bodies.LARGE_BODY)
    answers = await asyncio.gather(*(http.post(path, json=body) for _ in range(6)))
    assert {answer.status_code for answer in answers} == {400 if path.startswith("/v2") else 422}
    assert most == 1
