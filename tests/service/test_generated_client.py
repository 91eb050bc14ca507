"""A client that openapi-python-client generates from the description works against the service."""

import importlib
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.anyio

_SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.fixture
async def generated(running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a generated package `generated_client`, ready for import."""
    (tmp_path / "openapi.json").write_bytes((await running.http.get("/openapi.json")).content)
    (tmp_path / "config.json").write_text(json.dumps({"post_hooks": []}))  # its own formatting is not needed
    command = [str(_SCRIPTS / "openapi-python-client"), "generate", "--meta", "none", "--fail-on-warning"]
    files = ["--path", "openapi.json", "--config", "config.json", "--output-path", "generated_client"]
    done = subprocess.run(command + files, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "generated_client"


async def test_every_address_has_a_function_and_sampling_works(running: Any, generated: Path) -> None:
    operations = (await running.http.get("/openapi.json")).json()["paths"].values()
    names = {operation["operationId"] for methods in operations for operation in methods.values()}
    assert names <= {file.stem for file in generated.glob("api/*/*.py")}
    try:
        await _use(running)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "generated_client"]:
            del sys.modules[name]


async def _use(running: Any) -> None:
    client = importlib.import_module("generated_client").Client(base_url="http://test")
    client.set_async_httpx_client(httpx.AsyncClient(transport=running.http._transport, base_url="http://test"))
    models = importlib.import_module("generated_client.models")
    ask = importlib.import_module("generated_client.api.sampling.sample").asyncio

    body = models.SampleRequest(model="moons", num_samples=3, seed=2**63 - 1, solver="rk4-2")
    answer = await ask(client=client, body=body)
    assert isinstance(answer, models.SampleResponse)
    assert (answer.seed, answer.shape, answer.solver.name, len(answer.samples)) == (2**63 - 1, [3, 2], "rk4", 3)

    refused = await ask(client=client, body=models.SampleRequest(model="moons", steps=0))
    assert isinstance(refused, models.ProblemBody)
    assert (refused.status, refused.errors[0].field) == (422, "steps")

    listed = await importlib.import_module("generated_client.api.models_and_solvers.models").asyncio(client=client)
    assert "moons" in [model.name for model in listed.models]
