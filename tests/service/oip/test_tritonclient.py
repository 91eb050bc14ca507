"""Triton's own HTTP client against a real process: it reads our responses, with the same bits as /v1/sample."""

import io
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from tests.service.serving import serving

FIXED = {"num_samples": 64, "seed": 11, "solver": "rk4", "steps": 6}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("oip")
    torch.manual_seed(0)
    about: dict[str, Any] = {"dataset": {}, "training": {}, "seed": 0}
    config = ResidualMLPConfig(dim=2, hidden=16, blocks=1)
    save(root, "net", ResidualMLP(config), Decoder.identity((2,)), **about)
    save(root, "net", ResidualMLP(config), Decoder.identity((2,)), **about)
    labelled = ResidualMLP(config.model_copy(update={"condition": NamedCondition.label(classes=3)}))
    save(root, "labelled", labelled, Decoder.identity((2,)), **about)
    with serving(root) as (address, _):
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(url.removeprefix("http://")) as client:
        yield client


def v1(url: str, **body: Any) -> dict[str, np.ndarray]:
    answer = httpx.post(f"{url}/v1/sample", json=body, headers={"Accept": "application/x-npz"})
    with np.load(io.BytesIO(answer.content)) as archive:
        return dict(archive)


def tensor(name: str, array: np.ndarray, datatype: str, binary: bool) -> InferInput:
    made = InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def test_health_and_metadata(client: InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("net")
    assert client.is_model_ready("net", "1")
    assert not client.is_model_ready("net", "3")
    assert not client.is_model_ready("nobody")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("net")["versions"] == ["1", "2"]
    assert client.get_model_metadata("labelled", "1")["inputs"][1]["name"] == "condition"


@pytest.mark.parametrize("binary", [True, False])
def test_the_bits_of_v1_sample(client: InferenceServerClient, url: str, binary: bool) -> None:
    names = ("samples", "nfe", "t", "status", "trace_t", "trace_accepted")
    outputs = [InferRequestedOutput(name, binary_data=binary) for name in names]
    result = client.infer("net", [], outputs=outputs, parameters=FIXED, request_id="seven")
    expected = v1(url, model="net", **FIXED)
    for name in ("samples", "nfe", "t", "trace_t", "trace_accepted"):
        found = result.as_numpy(name)
        assert found is not None
        assert found.dtype == expected[name].dtype
        np.testing.assert_array_equal(found, expected[name])
    status = result.as_numpy("status")
    assert status is not None
    assert {str(s, "utf-8") if isinstance(s, bytes) else s for s in status} == {"success"}
    response = result.get_response()
    assert (response["id"], response["parameters"]["seed"]) == ("seven", 11)


def test_all_outputs_come_as_bytes_where_none_is_named(client: InferenceServerClient, url: str) -> None:
    result = client.infer("net", [], model_version="1", parameters={**FIXED, "solver": "dopri5", "steps": None})
    expected = v1(url, model="net", version=1, **{**FIXED, "solver": "dopri5", "steps": None})
    np.testing.assert_array_equal(result.as_numpy("samples"), expected["samples"])
    np.testing.assert_array_equal(result.as_numpy("trace_error"), expected["trace_error"])
    assert result.get_response()["model_version"] == "1"


@pytest.mark.parametrize("binary", [True, False])
def test_tensors_go_in(client: InferenceServerClient, url: str, binary: bool) -> None:
    x0 = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    labels = np.array([0, 1, 2, 1, 0])
    inputs = [tensor("x0", x0, "FP32", binary), tensor("condition", labels, "INT64", binary)]
    result = client.infer("labelled", inputs, parameters={"solver": "heun2", "steps": 5, "guidance": 2.0})
    parameters = {"solver": "heun2", "steps": 5, "guidance": 2.0, "num_samples": 5, "x0": x0.tolist()}
    expected = v1(url, model="labelled", condition=labels.tolist(), **parameters)
    np.testing.assert_array_equal(result.as_numpy("samples"), expected["samples"])
    assert result.get_response()["parameters"]["network_rows"] == 5 * 10 * 2


def test_pages_of_one_seed(client: InferenceServerClient) -> None:
    def page(first: int, count: int) -> np.ndarray:
        parameters = {**FIXED, "first_index": first, "num_samples": count}
        found = client.infer("net", [], parameters=parameters).as_numpy("samples")
        assert found is not None
        return found

    np.testing.assert_array_equal(np.concatenate([page(0, 3), page(3, 7)]), page(0, 10))


@pytest.mark.parametrize(
    ("model", "inputs", "parameters", "status", "message"),
    [
        ("nobody", [], {}, "404", "model 'nobody' is unknown"),
        ("net", [], {"stepz": 3}, "400", "did you mean 'steps'"),
        ("net", [tensor("x0", np.zeros((2, 2)), "FP64", True)], {"num_samples": 9}, "400", "x0 has the shape"),
        ("net", [tensor("x0", np.zeros((2, 2), bool), "BOOL", True)], {}, "400", "holds booleans"),
        ("labelled", [tensor("condition", np.array([5]), "INT64", False)], {"num_samples": 1}, "400", "from 0 to 2"),
    ],
)
def test_errors_reach_the_caller(
    client: InferenceServerClient, model: str, inputs: Any, parameters: Any, status: str, message: str
) -> None:
    with pytest.raises(InferenceServerException, match=message) as caught:
        client.infer(model, inputs, parameters=parameters)
    assert caught.value.status() == status


def test_many_numbers_both_ways(client: InferenceServerClient) -> None:
    parameters = {"num_samples": 100_000, "seed": 3, "solver": "euler", "steps": 1, "trace": "none"}
    x0 = np.random.default_rng(1).normal(size=(100_000, 2)).astype(np.float32)
    found = client.infer("net", [tensor("x0", x0, "FP32", True)], parameters=parameters).as_numpy("samples")
    assert found is not None
    assert found.shape == (100_000, 2)
    assert np.isfinite(found).all()


def test_configuration_statistics_and_index(client: InferenceServerClient, url: str) -> None:
    config: dict[str, Any] = client.get_model_config("net", "2")
    assert (config["name"], config["max_batch_size"]) == ("net", 0)
    assert config["input"][0] == {"name": "x0", "data_type": "TYPE_FP32", "dims": [-1, 2], "optional": True}
    outputs = {output["name"]: output for output in config["output"]}
    assert (outputs["status"]["data_type"], outputs["nfe"]["data_type"]) == ("TYPE_STRING", "TYPE_INT64")
    for version in ("1", "2"):  # the index tells which versions are in memory
        v1(url, model="net", version=int(version), **FIXED)
    index: Any = client.get_model_repository_index()
    assert [(entry["name"], entry["version"], entry["state"]) for entry in index] == [
        ("labelled", "1", "READY"),
        ("net", "1", "READY"),
        ("net", "2", "READY"),
    ]
    [before] = client.get_inference_statistics("net")["model_stats"]
    for _ in range(3):
        client.infer("net", [], parameters=FIXED)
    [after] = client.get_inference_statistics("net")["model_stats"]
    assert after["version"] == "2"
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] >= 3 * 4
    for part in ("success", "queue", "compute_infer"):
        assert after["inference_stats"][part]["count"] == after["inference_count"]
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert [each["name"] for each in client.get_inference_statistics()["model_stats"]] == ["labelled", "net"]


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_its_priority_and_its_timeout_in_microseconds(client: InferenceServerClient, priority: int) -> None:
    assert client.infer("net", [], parameters=FIXED, priority=priority, timeout=60_000_000).as_numpy("nfe") is not None
    with pytest.raises(InferenceServerException, match="timeout_s"):
        client.infer("net", [], parameters=FIXED, timeout=10**10)
