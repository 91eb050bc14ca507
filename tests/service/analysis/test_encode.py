"""Encoding: data to noise and back."""

import io
import re
from functools import reduce
from typing import Any

import httpx
import numpy as np
import pytest

from .conftest import Real

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("model", "tolerance", "near"), [("gaussian", 1e-9, 1e-7), ("mixture", 1e-9, 1e-6), ("net", 1e-6, 3e-4)]
)
async def test_data_to_noise_to_data_is_a_round_trip_within_the_tolerance(
    real: Real, model: str, tolerance: float, near: float
) -> None:
    solver = {"solver": "dopri5", "rtol": tolerance, "atol": tolerance}
    data = (await real.sample(model, num_samples=20, seed=3, **solver))["samples"]
    there = await real.ask(model, "encode", samples=data, **solver)
    assert there["shape"] == [20, 2]
    assert there["status"] == "success"
    assert "residual" not in there
    back = await real.sample(model, num_samples=20, x0=there["x0"], **solver)
    np.testing.assert_allclose(back["samples"], data, rtol=0, atol=near)


async def test_encoding_returns_the_noise_of_the_samples(real: Real) -> None:
    data = np.array((await real.sample("gaussian", num_samples=5, seed=1, rtol=1e-10, atol=1e-10))["samples"])
    found = await real.ask("gaussian", "encode", samples=data.tolist(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found["x0"], (data - 2.0) / 0.5, atol=1e-8)  # x(1) = m + s x(0)


async def test_encoding_equals_a_reverse_span_bit_for_bit(real: Real) -> None:
    data = [[1.0, 0.5], [-0.5, 2.0]]
    encoded = await real.ask("net", "encode", samples=data)
    sampled = await real.sample("net", num_samples=2, x0=data, t_span=[1, 0])
    assert encoded["x0"] == sampled["samples"]
    assert encoded["nfe_per_sample"] == sampled["nfe_per_sample"]
    alone = await real.ask("net", "encode", samples=data[1:])
    assert alone["x0"] == encoded["x0"][1:]


@pytest.mark.parametrize("model", ["scaled", "components"])
async def test_data_pass_through_the_inverse_of_the_decoder(real: Real, model: str) -> None:
    data = np.array((await real.sample(model, num_samples=6, seed=0, rtol=1e-9, atol=1e-9))["samples"])
    found = await real.ask(model, "encode", samples=data.tolist(), rtol=1e-9, atol=1e-9)
    assert found["shape"] == [6, 3]
    assert np.max(found["residual"]) < 1e-12
    latent = (await real.sample(model, num_samples=6, seed=0, rtol=1e-9, atol=1e-9, decode=False))["samples"]
    same = await real.ask(model, "encode", samples=latent, decode=False, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found["x0"], same["x0"], atol=1e-8)


async def test_data_far_from_zero_keep_digits_that_float32_would_lose(real: Real) -> None:
    ask: dict[str, Any] = {"num_samples": 8, "seed": 0, "rtol": 1e-6, "atol": 1e-6}
    states = np.array((await real.sample("far", **ask, decode=False))["samples"])
    data = np.array((await real.sample("far", **ask))["samples"])
    np.testing.assert_allclose(data, 1e9 + states * [1.0, 0.1], rtol=0, atol=2**-22)
    headers = {"Accept": "application/x-npz"}
    answer = await real.http.post("/v1/sample", json={"model": "far", **ask}, headers=headers)
    with np.load(io.BytesIO(answer.content)) as archive:
        assert archive["samples"].dtype == np.float64
        np.testing.assert_array_equal(archive["samples"], data)
    there = await real.ask("far", "encode", samples=data.tolist(), rtol=1e-6, atol=1e-6)
    assert np.max(there["residual"]) < 2**-20
    same = await real.ask("net", "encode", samples=states.tolist(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(there["x0"], same["x0"], atol=1e-4)


async def test_the_residual_outside_the_components_is_reported(real: Real) -> None:
    data = np.array((await real.sample("components", num_samples=1, seed=0))["samples"])
    data[0, 0, 0] += 1.0
    found = await real.ask("components", "encode", samples=data.tolist())
    assert 0.05 < found["residual"][0] <= 1.0


async def test_npz_has_the_same_content(real: Real) -> None:
    body = {"samples": [[1.0, 2.0]]}
    answer = await real.http.post("/v1/models/net/encode", json=body, headers={"Accept": "application/x-npz"})
    with np.load(io.BytesIO(answer.content)) as archive:
        assert set(archive.files) == {"x0", "meta"}
        assert archive["x0"].dtype == np.float32
        json = await real.ask("net", "encode", samples=[[1.0, 2.0]])
        np.testing.assert_array_equal(archive["x0"], np.array(json["x0"], np.float32))


async def test_conditions_and_guidance_apply(real: Real) -> None:
    data = [[1.0, 0.5], [1.0, 0.5]]
    found = await real.ask("labels", "encode", samples=data, condition=[0, 2], guidance=2.0, solver="rk4", steps=5)
    assert found["x0"][0] != found["x0"][1]
    assert found["network_rows"] == 2 * 2 * 20
    reverse = await real.sample(
        "labels", num_samples=2, x0=data, t_span=[1, 0], condition=[0, 2], guidance=2.0, solver="rk4", steps=5
    )
    assert found["x0"] == reverse["samples"]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("net", {}, "'samples' is required"),
    ("net", {"samples": []}, "at least one sample"),
    ("net", {"samples": "x"}, "at least one sample"),
    ("net", {"samples": [[1.0, 2.0, 3.0]]}, r"must be \(num_samples, \*data_shape\) = \[1, 2\]"),
    ("net", {"samples": [[1.0], [1.0, 2.0]]}, "samples is ragged"),
    ("net", {"samples": [[1.0, [2.0]]]}, r"samples\[0\]\[1\] is a list"),
    ("net", {"samples": reduce(lambda inner, _: [inner], range(99), [1.0])}, "samples has the shape"),
    ("net", {"samples": [[1e300, 0.0]]}, "not finite in float32"),
    ("net", {"samples": [[True, 0.0]]}, "numbers only"),
    ("net", {"samples": [[0.0, 0.0]], "model": "net"}, "unknown field 'model'"),
    ("net", {"samples": [[0.0, 0.0]], "t_span": [1, 0]}, "unknown field 't_span'"),
    ("net", {"samples": [[0.0, 0.0]], "steps": 5, "rtol": 1e-3}, "steps"),
    ("net", {"samples": [[0.0, 0.0]], "condition": 1}, "unconditional"),
    ("net", {"samples": [[0.0, 0.0]], "timeout_s": 1e9}, "over the limit of 600"),
    ("net", {"samples": [[0.0, 0.0]] * 100_001}, "samples = 100001 samples is over the limit of 100000"),
    ("components", {"samples": [[0.0] * 6]}, r"\*data_shape\) = \[1, 2, 3\]"),
    ("components", {"samples": [[0.0] * 6], "decode": False}, r"\*event_shape\) = \[1, 3\]"),
    ("flat", {"samples": [[0.0] * 3]}, "its scale holds zeros; send states, with decode false"),
]


@pytest.mark.parametrize(("model", "body", "match"), BAD)
@pytest.mark.parametrize("operation", ["encode", "log_prob"])
async def test_faults_are_named(real: Real, model: str, body: dict[str, Any], match: str, operation: str) -> None:
    found = await real.ask(model, operation, 422, **body)
    assert re.search(match, found["detail"]), found["detail"]
    assert found["errors"][0]["field"]


@pytest.mark.parametrize("operation", ["encode", "log_prob", "diagnose"])
async def test_models_versions_formats_and_json(real: Real, operation: str) -> None:
    body = {} if operation == "diagnose" else {"samples": [[0.0, 0.0]]}
    missing = await real.ask("nothing", operation, 404, **body)
    assert missing["type"] == "/problems/unknown-model"
    assert (await real.ask("net", operation, 404, version=9, **body))["type"] == "/problems/unknown-version"
    path = f"/v1/models/net/{operation}"
    picture = await real.http.post(path, json=body, headers={"Accept": "image/png"})
    assert picture.status_code == 406
    assert picture.json()["offered"] == ["application/json", "application/x-npz"]
    nan = await real.http.post(path, content=b'{"samples": [[NaN, 1]]}', headers={"Content-Type": "application/json"})
    assert nan.status_code == 400
    assert "no NaN" in nan.json()["detail"]
    assert (await real.http.get(path)).status_code == 405


async def test_a_sample_that_does_not_reach_the_end_is_null(real: Real) -> None:
    found = await real.ask("net", "encode", samples=[[0.0, 0.0], [1.0, 1.0]], max_nfe=9, rtol=1e-6, atol=1e-6)
    assert found["status"] == "max_nfe"
    assert found["x0"] == [None, None]
    assert [fault["index"] for fault in found["failed"]] == [0, 1]


async def test_a_deadline(real: Real) -> None:
    # A plan that is too slow even alone is refused; how many calls the other takes is not known beforehand.
    # Both take seconds; the time before they begin is a small part of the limit.
    body = {"samples": [[0.0, 0.0]] * 5000, "timeout_s": 0.2}
    plan: httpx.Response = await real.http.post(
        "/v1/models/net/encode", json={**body, "solver": "euler", "steps": 10_000}
    )
    assert plan.status_code == 422
    assert plan.json()["needed_s"] > 0.2
    adaptive = {**body, "solver": "bosh3", "rtol": 1e-7, "atol": 1e-7}
    assert (await real.http.post("/v1/models/net/encode", json=adaptive)).status_code == 504
