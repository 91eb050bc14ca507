"""Columns that never change or are whole: data come back so from every endpoint, and states are left as they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pathline._decode import decode_npz
from pathline._request import sample_request

from .conftest import Real

pytestmark = pytest.mark.anyio

FIXED: dict[str, Any] = {"num_samples": 60, "seed": 3, "solver": "rk4", "steps": 4}


def rounded(data: Any) -> np.ndarray:
    """The right values: column 1 always 0.0016, column 2 whole from 0 to 4."""
    right = np.array(data)
    right[..., 1] = 0.0016
    right[..., 2] = right[..., 2].round().clip(0, 4)
    return right


async def test_samples_and_saved_states_in_json(real: Real) -> None:
    plain = await real.sample("table-unrounded", **FIXED, save_at=[0.0, 0.5, 1.0])
    found = await real.sample("table", **FIXED, save_at=[0.0, 0.5, 1.0])
    np.testing.assert_array_equal(found["samples"], rounded(plain["samples"]))
    np.testing.assert_array_equal(found["saved"]["states"], rounded(plain["saved"]["states"]))
    whole = np.array(found["samples"])[:, 2]
    assert set(whole) <= {0.0, 1.0, 2.0, 3.0, 4.0}
    assert len(set(whole)) > 2


async def test_states_are_not_rounded(real: Real) -> None:
    states = await real.sample("table", **FIXED, decode=False)
    assert states["samples"] == (await real.sample("table-unrounded", **FIXED, decode=False))["samples"]


async def test_binary_answers_streams_and_the_open_inference_protocol(real: Real) -> None:
    data = (await real.sample("table", **FIXED))["samples"]
    body = {"model": "table", **FIXED}
    answer = await real.http.post("/v1/sample", json=body, headers={"Accept": "application/x-npy"})
    assert answer.content[-60 * 3 * 8 :] == np.array(data).tobytes()
    events = (await real.http.post("/v1/sample/stream", json=body)).text
    assert "0.0016," in events
    answer = await real.http.post("/v2/models/table/infer", json={"parameters": FIXED})
    outputs = {output["name"]: output for output in answer.json()["outputs"]}
    assert np.reshape(outputs["samples"]["data"], (60, 3)).tolist() == data


async def test_data_are_encoded_by_the_affine_inverse_and_come_back(real: Real) -> None:
    data = (await real.sample("table", **FIXED))["samples"]
    tight = {"rtol": 1e-10, "atol": 1e-10}
    encoded = await real.ask("table", "encode", samples=data, **tight)
    plain = await real.ask("table-unrounded", "encode", samples=data, **tight)
    assert encoded["x0"] == plain["x0"]
    assert max(encoded["residual"]) == 0
    again = await real.sample("table", num_samples=60, x0=encoded["x0"], **tight)
    np.testing.assert_array_equal(np.array(again["samples"])[:, 1:], np.array(data)[:, 1:])
    np.testing.assert_allclose(again["samples"], data, atol=1e-7)
    densities = [await real.ask(name, "log_prob", samples=data, **tight) for name in ("table", "table-unrounded")]
    assert densities[0]["log_prob"] == densities[1]["log_prob"]


async def test_the_card_describes_the_columns(real: Real) -> None:
    (served,) = (await real.http.get("/v1/models/table")).json()["served"]
    card = served["card"]
    assert card["decoder"]["columns"][2] == {"name": "n", "kind": "whole", "low": 0.0, "high": 4.0}


async def test_names_and_kinds_of_columns_come_with_data_through_every_door(real: Real, tmp_path: Path) -> None:
    found = await real.sample("table", **FIXED)
    names = [column["name"] for column in found["columns"]]
    assert [column["kind"] for column in found["columns"]] == ["number", "number", "whole"]
    assert found["columns"][0] == {"name": "x", "kind": "number", "unit": "m", "decimals": 2}
    assert "columns" not in await real.sample("table", **FIXED, decode=False)
    body = {"model": "table", **FIXED}
    answer = await real.http.post("/v1/sample", json=body, headers={"Accept": "application/x-npz"})
    result = decode_npz(answer.content, sample_request("table", 60, {"seed": 3, "solver": "rk4", "steps": 4}))
    table = result.named(result.samples)
    assert (list(table), table["n"].dtype) == (names, np.int64)
    result.save(tmp_path / "rows.csv")
    head, first, *_ = (tmp_path / "rows.csv").read_text().splitlines()
    assert head == "x [m],c,n,nfe,t,status"
    assert first.split(",")[0] == f"{found['samples'][0][0]:.2f}"
    (samples,) = [
        output for output in (await real.http.get("/v2/models/table")).json()["outputs"] if output["name"] == "samples"
    ]
    assert json.loads(samples["parameters"]["columns"]) == found["columns"]
    answer = await real.http.post("/v1/replay", json=found)
    assert answer.json()["digest_matches"] is True, answer.text
