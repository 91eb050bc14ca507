"""Infer requests of the protocol, in JSON and with binary tensors, compared with /v1/sample; and refusals."""

import json
import time
from typing import Any

import httpx
import numpy as np
import pytest

from service.oip.description import UNTRIED
from service.oip.schemas import InferResponse
from service.oip.tensors import BINARY, HEADER
from tests.service.serving import conforming

pytestmark = pytest.mark.anyio

FIXED = {"num_samples": 3, "seed": 5, "solver": "rk4", "steps": 4}
X0 = np.array([[0.5, -1.25], [3.0, 4.0]], dtype=np.float32)


async def infer(shared: Any, model: str = "moons", version: str = "", **body: Any) -> httpx.Response:
    return await shared.http.post(f"/v2/models/{model}{version}/infer", json=body)


async def infer_binary(shared: Any, tensors: list[tuple[dict[str, Any], bytes]], **body: Any) -> httpx.Response:
    body["inputs"] = [{**about, "parameters": {"binary_data_size": len(content)}} for about, content in tensors]
    head = json.dumps(body).encode()
    content = b"".join([head, *(content for _, content in tensors)])
    return await shared.http.post("/v2/models/moons/infer", content=content, headers={HEADER: str(len(head))})


def arrays(answer: httpx.Response) -> dict[str, np.ndarray]:
    assert answer.status_code == 200, answer.text
    kinds = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "BOOL": np.bool_, "BYTES": str}
    outputs = conforming(InferResponse, answer.json())["outputs"]
    return {o["name"]: np.array(o["data"], dtype=kinds[o["datatype"]]).reshape(o["shape"]) for o in outputs}


def x0(data: Any = None, **changed: Any) -> dict[str, Any]:
    return {"name": "x0", "shape": [2, 2], "datatype": "FP32", "data": X0.tolist() if data is None else data} | changed


async def test_the_same_job_as_v1_sample(shared: Any) -> None:
    answer = await infer(shared, parameters=FIXED, id="mine")
    other = (await shared.post(**FIXED)).json()
    [job, job_v1] = shared.engine.jobs
    assert (job.plan, job.seed, job.num_samples, job.trace) == (job_v1.plan, 5, 3, job_v1.trace)
    body, found = answer.json(), arrays(answer)
    assert (body["model_name"], body["model_version"], body["id"]) == ("moons", "2", "mine")
    assert body["parameters"] == {
        "checkpoint": other["checkpoint"],
        "seed": 5,
        "first_index": 0,
        "deterministic": True,
        "noise": other["noise"],
        "network_rows": other["network_rows"],
        "status": "success",
        "solver": "rk4",
        "failed": 0,
        "digest": other["digest"],
        "path": other["path"],
    }
    np.testing.assert_array_equal(found["samples"], np.array(other["samples"], dtype=np.float32))
    assert found["nfe"].tolist() == [50, 51, 52]
    assert found["status"].tolist() == ["success"] * 3
    assert found["trace_t"].tolist() == other["trace"]["t"]
    assert np.isnan(found["trace_error"]).all()


async def test_every_parameter_arrives(shared: Any) -> None:
    parameters = {"seed": 2**63 - 1000, "first_index": 7, "num_samples": 2, "solver": "tsit5", "rtol": 1e-3,
                  "atol": 1e-4, "max_nfe": 500, "trace": "full", "priority": "bulk", "controller": "pi",
                  "max_step": 0.05}  # fmt: skip
    assert (await infer(shared, parameters=parameters)).status_code == 200
    assert (await shared.post(**parameters)).status_code == 200
    [job, job_v1] = shared.engine.jobs
    for name in ("seed", "first_index", "num_samples", "plan", "trace", "priority", "partial"):
        assert getattr(job, name) == getattr(job_v1, name)


async def test_the_name_may_stand_in_the_body_too(shared: Any) -> None:
    assert (await infer(shared, parameters=FIXED, model_name="moons")).status_code == 200


async def test_grid_by_name_with_its_parameter(shared: Any) -> None:
    await infer(shared, parameters={"solver": "euler", "steps": 4, "grid": "shift", "grid.value": 3.0})
    await shared.post(solver="euler", steps=4, grid={"name": "shift", "value": 3.0})
    assert shared.engine.jobs[0].plan is shared.engine.jobs[1].plan


@pytest.mark.parametrize("data", [X0.tolist(), X0.reshape(-1).tolist()])
async def test_x0_sets_the_number_of_samples(shared: Any, data: Any) -> None:
    found = arrays(await infer(shared, inputs=[x0(data)], outputs=[{"name": "samples"}]))
    assert list(found) == ["samples"]
    np.testing.assert_array_equal(found["samples"], X0 + 1)


async def test_times_are_tensors(shared: Any) -> None:
    tensors = {"grid": [0.0, 0.25, 1.0], "save_at": [0.25, 1.0], "t_span": [0.0, 1.0]}
    inputs = [{"name": k, "shape": [len(v)], "datatype": "FP64", "data": v} for k, v in tensors.items()]
    found = arrays(await infer(shared, parameters={"solver": "euler", "num_samples": 2}, inputs=inputs))
    assert shared.engine.jobs[0].plan.times.tolist() == [0.0, 0.25, 1.0]
    assert found["saved"].shape == (2, 2, 2)


async def test_binary_both_ways(shared: Any) -> None:
    about = {"name": "x0", "shape": [2, 2], "datatype": "FP32"}
    answer = await infer_binary(shared, [(about, X0.tobytes())], parameters={"binary_data_output": True})
    assert answer.headers["content-type"] == BINARY
    length = int(answer.headers[HEADER])
    rest, found = memoryview(answer.content)[length:], {}
    for output in json.loads(answer.content[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]], rest = bytes(rest[:size]), rest[size:]
        assert "data" not in output
    assert not len(rest)
    assert found["samples"] == (X0 + 1).tobytes()
    assert found["nfe"] == np.array([50, 51], dtype="<i8").tobytes()
    assert found["status"] == (b"\x07\x00\x00\x00success") * 2


async def test_binary_and_json_in_one_answer(shared: Any) -> None:
    outputs = [{"name": "nfe"}, {"name": "samples", "parameters": {"binary_data": True}}]
    answer = await infer(shared, parameters=FIXED, outputs=outputs)
    length = int(answer.headers[HEADER])
    [nfe, samples] = json.loads(answer.content[:length])["outputs"]
    assert nfe["data"] == [50, 51, 52]
    assert samples["parameters"] == {"binary_data_size": 24}
    assert len(answer.content) == length + 24


async def test_a_large_answer_comes_in_pieces(shared: Any) -> None:
    parameters = {"num_samples": 20_000, "seed": 1, "trace": "none", "solver": "euler", "steps": 1}
    found = arrays(await infer(shared, parameters=parameters, outputs=[{"name": "samples"}]))
    answer = (await shared.post(**parameters)).json()
    np.testing.assert_array_equal(found["samples"], np.array(answer["samples"], dtype=np.float32))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown parameter": ({"parameters": {"stepz": 3}}, "did you mean 'steps'"),
    "not scalar": ({"parameters": {"steps": [3]}}, "parameter 'steps' is not scalar"),
    "grid as a list": ({"parameters": {"grid": [0, 1]}}, "send grid as an input tensor"),
    "text for a number": ({"parameters": {"steps": "3"}}, 'steps = "3" is not allowed'),
    "model as a parameter": ({"parameters": {"model": "x"}}, "it belongs in the path"),
    "another model": ({"model_name": "digits"}, "it must be the one in the path, 'moons'"),
    "contradiction": ({"parameters": {"solver": "rk4", "steps": 3, "rtol": 1e-3}}, "rtol"),
    "grid without its name": ({"parameters": {"grid.value": 3.0}}, "needs the name of the grid"),
    "binary_data_output": ({"parameters": {"binary_data_output": 1}}, "must be true or false"),
    "unknown input": ({"inputs": [x0(name="x1")]}, "there is no input 'x1'"),
    "unknown datatype": ({"inputs": [x0(datatype="FLOAT")]}, "use one of BOOL"),
    "booleans for x0": (
        {"inputs": [x0([True] * 4, datatype="BOOL")]},
        "input 'x0' holds booleans; it must hold numbers",
    ),
    "integers beyond 63 bits": ({"inputs": [x0([2**63, 2, 3, 4], datatype="UINT64")]}, "integers must be below 2**63"),
    "too few numbers": ({"inputs": [x0([1.0, 2.0])]}, "holds 2 numbers; shape [2, 2] takes 4"),
    "wrong event shape": ({"inputs": [x0(shape=[4, 1])]}, "x0 has the shape [4, 1]; it must be"),
    "other num_samples": ({"inputs": [x0()], "parameters": {"num_samples": 3}}, "x0 has the shape [2, 2]"),
    "scalar x0": ({"inputs": [x0([1.0], shape=[])]}, "x0 has the shape []"),
    "ragged": ({"inputs": [x0([[1.0, 2.0], 3.0, 4.0])]}, "mixes numbers and lists"),
    "booleans": (
        {"inputs": [x0([True, 1.0, 1.0, 1.0])]},
        "holds true as number 0, counted from 0, which is not FP32",
    ),
    "out of range": ({"inputs": [x0([1e39, 1.0, 1.0, 1.0])]}, "not finite"),
    "negative shape": ({"inputs": [x0(shape=[-1, 2])]}, "inputs.0.shape.0"),
    "shape beyond memory": ({"inputs": [x0([], shape=[0, *[2**31 - 1] * 3])]}, "has no numbers in shape"),
    "no data": ({"inputs": [{"name": "x0", "shape": [2, 2], "datatype": "FP32"}]}, "needs data or"),
    "sent twice": ({"inputs": [x0(), x0()]}, "was sent twice"),
    "binary without the header": (
        {"inputs": [{"name": "x0", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}]},
        "the header Inference-Header-Content-Length is missing",
    ),
    "condition": ({"parameters": {"condition": 1}}, "model 'moons' is unconditional"),
    "unknown output": ({"outputs": [{"name": "x"}]}, "there is no output 'x'; outputs: samples, nfe"),
    "saved without times": ({"outputs": [{"name": "saved"}]}, "it needs the input save_at"),
    "classification": ({"outputs": [{"name": "nfe", "parameters": {"classification": 2}}]}, "only binary_data"),
    "unknown member": ({"params": {}}, "unknown field 'params'"),
    "shared memory": ({"inputs": [x0(parameters={"shared_memory_region": "a"})]}, "only binary_data_size"),
    "over a limit": ({"parameters": {"num_samples": 10**9}}, "over the limit"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_refusals_name_what_is_wrong(shared: Any, what: str) -> None:
    body, message = REFUSED[what]
    answer = await infer(shared, **body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]
    assert not shared.engine.jobs


@pytest.mark.parametrize(
    ("about", "content", "message"),
    [
        ({"shape": [2, 2], "datatype": "FP32"}, b"\0" * 15, "has 15 bytes; FP32 of shape [2, 2] takes 16"),
        ({"shape": [2, 2], "datatype": "FP64"}, b"\0" * 16, "takes 32"),
        ({"shape": [1, 2], "datatype": "FP32"}, np.array([np.nan, 0], "<f4").tobytes(), "not finite"),
        ({"shape": [0, 2], "datatype": "FP32"}, b"", "num_samples = 0"),
    ],
)
async def test_binary_tensors_of_the_wrong_size(shared: Any, about: Any, content: bytes, message: str) -> None:
    answer = await infer_binary(shared, [({"name": "x0", **about}, content)])
    assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text


@pytest.mark.parametrize(
    ("content", "header", "status", "message"),
    [
        (b"{}", "x", 400, "must be a number of bytes up to 2"),
        (b"{}", "3", 400, "must be a number of bytes up to 2"),
        (b"{}abc", "2", 400, "3 bytes follow the last tensor"),
        (b"{", None, 400, "not valid JSON"),
        (b"[]", None, 400, "must be a JSON object"),
    ],
)
async def test_bodies_that_do_not_fit(
    shared: Any, content: bytes, header: str | None, status: int, message: str
) -> None:
    headers = {} if header is None else {HEADER: header}
    answer = await shared.http.post("/v2/models/moons/infer", content=content, headers=headers)
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


async def test_other_errors_keep_their_status(shared: Any) -> None:
    http, text = shared.http, {"Content-Type": "text/x"}
    found = {
        "nobody": (await infer(shared, "nobody")).status_code,
        "version": (await infer(shared, version="/versions/9")).status_code,
        "no number": (await infer(shared, version="/versions/x")).status_code,
        "broken": (await infer(shared, "broken")).status_code,
        "method": (await http.get("/v2/models/moons/infer")).status_code,
        "address": (await http.get("/v2/nothing")).status_code,
        "media": (await http.post("/v2/models/moons/infer", content=b"{}", headers=text)).status_code,
    }
    assert found == {
        "nobody": 404, "version": 404, "no number": 400, "broken": 503, "method": 405, "address": 404, "media": 415
    }  # fmt: skip
    shared.engine.fail = RuntimeError("boom")
    answer = await infer(shared)
    assert (answer.status_code, list(answer.json())) == (500, ["error"])


async def test_an_older_version(shared: Any) -> None:
    answer = await infer(shared, version="/versions/1", parameters=FIXED)
    assert answer.json()["model_version"] == "1"
    assert shared.engine.jobs[0].version == 1


async def test_bytes_that_are_not_there(shared: Any) -> None:
    content = X0.tobytes()
    body = {"inputs": [x0() | {"parameters": {"binary_data_size": len(content) + 100}}]}
    del body["inputs"][0]["data"]
    head = json.dumps(body).encode()
    answer = await shared.http.post("/v2/models/moons/infer", content=head + content, headers={HEADER: str(len(head))})
    assert answer.status_code == 400
    assert answer.json()["error"].endswith("has binary_data_size 116, but only 16 bytes follow")


async def test_priority_and_timeout_as_tritons_client_sends_them(shared: Any) -> None:
    for sent, priority, timeout_s in (
        ({"priority": 1, "timeout": 5_000_000}, "interactive", 5.0),
        ({"priority": 9, "timeout": 0}, "bulk", 30.0),
        ({"priority": "bulk", "timeout_s": 7.0}, "bulk", 7.0),
    ):
        before = time.monotonic()
        assert (await infer(shared, parameters=FIXED | sent)).status_code == 200
        job = shared.engine.jobs[-1]
        assert (job.priority, round(job.deadline - before)) == (priority, round(timeout_s))
    for sent in ({"timeout": 1.5}, {"timeout": "1"}, {"timeout": -1}, {"priority": -1}, {"timeout": 9, "timeout_s": 1}):
        answer = await infer(shared, parameters=FIXED | sent)
        assert (answer.status_code, next(iter(sent)) in answer.json()["error"]) == (400, True)


async def test_the_index_says_why_a_version_does_not_answer(running: Any) -> None:
    found = (await running.http.post("/v2/repository/index")).json()
    states = {(entry["name"], entry["version"]): (entry["state"], entry["reason"]) for entry in found}
    assert states["moons", "2"] == ("READY", "")
    assert states["moons", "1"] == ("UNAVAILABLE", UNTRIED)
    assert states["broken", "1"][0] == "UNAVAILABLE"
    assert "is damaged" in states["broken", "1"][1]
    ready = (await running.http.post("/v2/repository/index", json={"ready": True})).json()
    assert {entry["name"] for entry in ready} == {"moons", "gaussian", "digits"}
    assert (await running.http.post("/v2/repository/index", json={"red": True})).status_code == 400
    assert (await running.http.get("/v2/models/nobody/config")).status_code == 404
    assert (await running.http.get("/v2/models/broken/stats")).status_code == 503
