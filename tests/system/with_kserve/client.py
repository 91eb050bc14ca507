"""Runs with kserve's own packages: sends a request with kserve's client and writes the result to an npz file.

Arguments: the address of the service, the file, and the parameters of a request as JSON.
"""

import asyncio
import json
import sys
from typing import Any

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig  # pyright: ignore[reportMissingImports]
from kserve.protocol.infer_type import RequestedOutput  # pyright: ignore[reportMissingImports]

X0 = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)


async def main(url: str, file: str, fixed: str) -> None:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        found = await health(client, url)
        for binary in (True, False):
            kind = "binary" if binary else "json"
            found |= {
                f"{kind}_{name}": array for name, array in (await drawn(client, url, binary, json.loads(fixed))).items()
            }
            found[f"{kind}_from_x0"] = await from_x0(client, url, binary)
        found["error"] = await refused(client, url)
    np.savez(file, x0=X0, **found)


async def health(client: Any, url: str) -> dict[str, Any]:
    return {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model_ready": await client.is_model_ready(url, "moons"),
        "nobody_ready": await client.is_model_ready(url, "nobody"),
    }


async def drawn(client: Any, url: str, binary: bool, fixed: dict[str, Any]) -> dict[str, np.ndarray]:
    parameters = {**fixed, "binary_data_output": binary}
    answer = await client.infer(url, InferRequest("moons", [], parameters=parameters), model_name="moons")
    assert answer.parameters["seed"] == fixed["seed"]
    names = ("samples", "nfe", "t", "trace_h")
    return {name: answer.get_output_by_name(name).as_numpy() for name in names}


async def from_x0(client: Any, url: str, binary: bool) -> np.ndarray:
    x0 = InferInput("x0", list(X0.shape), "FP32")
    x0.set_data_from_numpy(X0, binary_data=binary)
    wanted = [RequestedOutput("samples", {"binary_data": binary})]
    parameters = {"solver": "heun2", "steps": 5}
    request = InferRequest("moons", [x0], parameters=parameters, request_outputs=wanted, request_id="seven")
    answer = await client.infer(url, request, model_name="moons")
    assert answer.id == "seven"
    assert [output.name for output in answer.outputs] == ["samples"]
    return answer.outputs[0].as_numpy()


async def refused(client: Any, url: str) -> str:
    request = InferRequest("moons", [], parameters={"stepz": 3})
    try:
        await client.infer(url, request, model_name="moons")
    except httpx.HTTPStatusError as error:
        return str(error)
    return "nothing was refused"


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
