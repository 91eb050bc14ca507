"""A prelude and a decoder program behind HTTP: values, bits, guidance, bad input, and their description."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from models.noise import noise
from solvers import integrate
from tests.service.serving import calling_models

from ..latent import Latent, imported

pytestmark = pytest.mark.anyio

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 4, 4), dtype=np.uint8)
STATE = [0.5, -1.0, 0.25]
GIVEN: dict[str, Any] = {"image": IMAGE.tolist(), "state": STATE}
BODY: dict[str, Any] = {"model": "latent", "num_samples": 3, "seed": 5, "solver": "rk4-5"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("latent")


@pytest.fixture(scope="module")
def made(root: Path) -> Latent:
    return imported(root, root / "repository")


@pytest.fixture(scope="module")
async def http(made: Latent, root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(root / "repository") as http:
        yield http


async def ask(http: httpx.AsyncClient, path: str = "/v1/sample", **body: Any) -> dict[str, Any]:
    answer = await http.post(path, json=BODY | {"conditions": GIVEN} | body)
    return answer.json() | {"code": answer.status_code}


def inputs_of(
    made: Latent, image: np.ndarray | None, state: list[float] | None, rows: int, strength: float = 1.0
) -> Any:
    pixels = torch.zeros(rows, 3, 4, 4) if image is None else torch.from_numpy(image).float().mul(1 / 255)[None]
    pixels = pixels.expand(rows, -1, -1, -1)
    tokens, counts = made.encoder(pixels, torch.full((rows,), image is None), torch.full((rows,), strength))
    return tokens, counts, torch.tensor(state or [0.0] * 3).expand(rows, -1)


def solved(made: Latent, rows: int, field: Any) -> Tensor:
    with torch.no_grad():
        x = integrate(field, noise(5, 0, rows, (4,)), solver="rk4", steps=5).x
        return made.decoder(x)


async def test_samples_equal_those_of_a_plain_loop(http: httpx.AsyncClient, made: Latent) -> None:
    image = IMAGE // 2  # of this test alone, so that no other has left the prelude's result
    given = GIVEN | {"image": image.tolist()}
    answered = await ask(http, conditions=given)
    assert answered["code"] == 200, answered
    assert answered["shape"] == [3, 3, 2, 2]
    plain = solved(made, 3, lambda x, t: made.velocity(x, t, *inputs_of(made, image, STATE, 3)))
    np.testing.assert_allclose(answered["samples"], plain.numpy(), atol=1e-5)
    assert answered["latency"]["prelude_s"] > 0
    assert answered["latency"]["decoder_s"] > 0
    states = await ask(http, conditions=given, decode=False)
    assert states["shape"] == [3, 4]
    assert "decoder_s" not in states["latency"]
    with torch.no_grad():
        decoded = made.decoder(torch.tensor(states["samples"]))
    np.testing.assert_allclose(answered["samples"], decoded.numpy(), atol=1e-6)


async def test_the_prelude_runs_once_for_each_distinct_condition(http: httpx.AsyncClient) -> None:
    async def rows() -> tuple[float, float]:
        text = (await http.get("/metrics")).text
        found = dict(re.findall(r'pathline_batch_rows_(sum|count)\{model="latent",operation="prelude"\} (\S+)', text))
        return float(found.get("sum", 0)), float(found.get("count", 0))

    before, image = await rows(), (IMAGE // 3).tolist()
    for _ in range(2):  # the second time, its result is kept
        await ask(http, num_samples=40, solver="rk4-10", conditions={"image": image, "state": STATE})
    once = await rows()
    assert (once[0] - before[0], once[1] - before[1]) == (1, 1)
    assert 'pathline_prelude_rows_total{model="latent",result="hit"}' in (await http.get("/metrics")).text
    images = [(IMAGE // 5).tolist()] * 30 + [(IMAGE // 7).tolist()] * 10
    await ask(http, num_samples=40, conditions={"image": images, "state": STATE})
    assert (await rows())[0] - once[0] == 2
    text = (await http.get("/metrics")).text
    assert 'pathline_prelude_seconds_count{model="latent"}' in text
    assert 'pathline_decoder_seconds_count{model="latent"}' in text
    assert 'operation="decoder"' in text


async def test_nulls_and_negatives_go_through_the_prelude(http: httpx.AsyncClient, made: Latent) -> None:
    def guided(negative: np.ndarray | None) -> Tensor:
        def field(x: Tensor, t: Tensor) -> Tensor:
            base = made.velocity(x, t, *inputs_of(made, negative, None, len(x)))
            return base + 2.5 * (made.velocity(x, t, *inputs_of(made, IMAGE, STATE, len(x))) - base)

        return solved(made, 3, field)

    null = await ask(http, guidance=2.5)
    assert null["code"] == 200, null
    assert null["network_rows"] == 2 * 20 * 3
    np.testing.assert_allclose(null["samples"], guided(None).numpy(), atol=1e-4)
    other = 255 - IMAGE
    negative = await ask(http, guidance=2.5, negative={"image": other.tolist()})
    np.testing.assert_allclose(negative["samples"], guided(other).numpy(), atol=1e-4)
    terms = [{"weight": 3.0, "condition": "all"}, {"weight": -2.0, "drop": ["image"]}]
    dropped = await ask(http, guidance={"terms": terms})

    def field(x: Tensor, t: Tensor) -> Tensor:
        base = made.velocity(x, t, *inputs_of(made, None, STATE, len(x)))
        return base + 3.0 * (made.velocity(x, t, *inputs_of(made, IMAGE, STATE, len(x))) - base)

    np.testing.assert_allclose(dropped["samples"], solved(made, 3, field).numpy(), atol=1e-4)


async def test_sixteen_requests_at_once_have_the_bits_of_each_alone(http: httpx.AsyncClient) -> None:
    draw = np.random.default_rng(1)
    bodies = []
    for k in range(16):
        image = draw.integers(0, 256, (3, 4, 4)).tolist()
        body = {"num_samples": 1 + k % 5, "seed": k, "solver": ("rk4-5", "ab2-8", "dopri5@1e-3", "euler-6")[k % 4]}
        body |= {"conditions": {"image": image, "state": draw.normal(size=3).tolist()}} if k % 3 else {}
        bodies.append(body | ({"guidance": 1.0 + k / 8} if k % 2 else {}) | ({"save_at": [1.0]} if k == 4 else {}))
    alone = [await ask(http, **body) for body in bodies]
    together = await asyncio.gather(*(ask(http, **body) for body in bodies))
    assert all(each["code"] == 200 and each["deterministic"] for each in alone), alone
    assert [each["digest"] for each in together] == [each["digest"] for each in alone]
    assert together[4]["saved"]["states"] == alone[4]["saved"]["states"]
    many = await ask(http, num_samples=200, seed=0)
    first = await ask(http, num_samples=3, seed=0)
    assert many["samples"][:3] == first["samples"]


async def test_streams_and_replays_and_npz(http: httpx.AsyncClient) -> None:
    answered = await ask(http, save_at=[0.4, 1.0])
    async with http.stream(
        "POST", "/v1/sample/stream", json=BODY | {"conditions": GIVEN, "save_at": [0.4, 1.0]}
    ) as answer:
        text = "".join([part async for part in answer.aiter_text()])
    events = [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", text)]
    states = [content["states"] for name, content in events if name == "sample"]
    assert states == [[each[k] for each in answered["saved"]["states"]] for k in range(2)]
    assert events[-1][0] == "completed"
    assert events[-1][1]["samples"] == answered["samples"]
    again = (await http.post("/v1/replay", json=answered | {"conditions": GIVEN})).json()
    assert again["digest_matches"], again
    assert again["samples"] == answered["samples"]


async def test_a_picture_by_the_open_inference_protocol(http: httpx.AsyncClient) -> None:
    inputs = [
        {"name": "condition.image", "datatype": "UINT8", "shape": [1, 3, 4, 4], "data": IMAGE.flatten().tolist()},
        {"name": "condition.state", "datatype": "FP32", "shape": [1, 3], "data": STATE},
    ]
    parameters = {"num_samples": 3, "seed": 5, "solver": "rk4-5"}
    answer = await http.post("/v2/models/latent/infer", json={"inputs": inputs, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    found = {each["name"]: each for each in answer.json()["outputs"]}
    assert found["samples"]["shape"] == [3, 3, 2, 2]
    np.testing.assert_array_equal(
        np.float32(found["samples"]["data"]), np.float32((await ask(http))["samples"]).flatten()
    )
    described = (await http.get("/v2/models/latent")).json()
    names = [each["name"] for each in described["inputs"]]
    assert "condition.image" in names
    assert "condition.tokens" not in names


async def test_the_description_of_the_model(http: httpx.AsyncClient) -> None:
    [line] = (await http.get("/v1/models")).json()["models"]
    assert set(line["conditions"]) == {"image", "strength", "state"}
    assert line["conditions"]["image"]["shape"] == [3, 4, 4]
    assert line["data_shape"] == [3, 2, 2]
    [version] = (await http.get("/v1/models/latent")).json()["served"]
    assert version["card"]["prelude"]["program"]["steps"] > 3
    assert version["card"]["decoder"]["program"]["steps"] > 3


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"conditions": {"tokens": [[0.0] * 8] * 2}}, "conditions.tokens", "there is no condition 'tokens'"),
        ({"conditions": {"image": [[0]]}}, "conditions.image", "expected uint8 of shape [3, 4, 4]"),
        ({"conditions": GIVEN | {"missing": True}}, "conditions.missing", "there is no condition 'missing'"),
        ({"guidance": {"terms": [{"weight": 1, "drop": ["tokens"]}]}}, "guidance", "this model has image"),
    ],
)
async def test_conditions_that_the_prelude_does_not_take_are_refused(
    http: httpx.AsyncClient, body: dict[str, Any], field: str, words: str
) -> None:
    refused = await ask(http, **body)
    assert refused["code"] == 422
    assert refused["errors"][0]["field"] == field
    assert words in refused["errors"][0]["message"]


async def test_a_failing_prelude_or_decoder_fails_its_request_alone(http: httpx.AsyncClient) -> None:
    good = BODY | {"num_samples": 4, "seed": 9, "solver": "rk4-30"}
    alone = await ask(http, **good)
    high = {"x0": [[9.0, 0, 0, 0]] * 2, "num_samples": 2, "solver": "euler-2"}
    odd = {"x0": [[0.0, 9.0, 0, 0], [0.0] * 4], "num_samples": 2, "solver": "euler-2"}
    bodies = [{"conditions": GIVEN | {"strength": 7.0}}, high, odd]
    answers = await asyncio.gather(ask(http, **good), *(ask(http, **body) for body in bodies), ask(http, **good))
    assert [each["code"] for each in answers] == [200, 500, 500, 500, 200], answers
    assert answers[0]["digest"] == answers[-1]["digest"] == alone["digest"]
    assert "the prelude failed" in answers[1]["detail"]
    assert "the decoder failed" in answers[2]["detail"]
    assert "not finite" in answers[3]["detail"]
    assert (await ask(http, **high, decode=False))["code"] == 200


async def test_data_cannot_be_encoded_through_a_decoder_program(http: httpx.AsyncClient) -> None:
    data = np.zeros((2, 3, 2, 2)).tolist()
    for operation, fade in (("encode", 11), ("log_prob", 13)):
        # an image of its own, so that no other request has left the prelude's result
        own = {"samples": data, "conditions": GIVEN | {"image": (IMAGE // fade).tolist()}, "solver": "rk4-5"}
        answer = await http.post(f"/v1/models/latent/{operation}", json=own)
        assert answer.status_code == 422
        assert "its decoder is a program" in answer.json()["errors"][0]["message"]
        states = own | {"samples": [[0.1, 0.2, 0.3, 0.4]] * 2, "decode": False}
        answer = await http.post(f"/v1/models/latent/{operation}", json=states)
        assert answer.status_code == 200, answer.text
        assert answer.json()["latency"]["prelude_s"] > 0
    answer = await http.post("/v1/models/latent/diagnose", json={"conditions": GIVEN, "num_samples": 2, "times": [0.5]})
    assert answer.status_code == 200, answer.text


async def test_partial_answers_are_decoded_too(http: httpx.AsyncClient) -> None:
    answered = await ask(http, num_samples=64, solver="euler-5000", timeout_s=0.5, on_timeout="partial")
    assert answered["code"] == 200, answered
    assert answered["shape"] == [64, 3, 2, 2]


async def test_an_npz_stream_holds_the_decoded_samples(http: httpx.AsyncClient) -> None:
    accept = {"Accept": "text/event-stream; completed=npz"}
    answer = await http.post("/v1/sample/stream", json=BODY | {"conditions": GIVEN}, headers=accept)
    found = re.search(r'event: completed\ndata: {"npz":"([^"]*)"}', answer.text)
    assert found is not None, answer.text
    assert base64.b64decode(found[1])[:2] == b"PK"
