"""The example with the real diffusers from the package index: its SD3 transformer is served at any size and length.

What `tests/models/scheduler_times.json` says of its schedulers is compared with them.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.system

PACKAGES = (
    "diffusers==0.42.1",
    "huggingface_hub==2.4.0",
    "importlib_metadata==10.2.0",
    "zipp==4.1.2",
    "regex==2026.11.19",
    "httpx2==2.16.2",
    "httpcore2==2.16.2",
    "truststore==0.10.5",
    "lazy-importer==0.1.0",
)

COMPARE = """
import asyncio, sys
from pathlib import Path
import httpx, numpy as np, torch
sys.path[:0] = ["examples"]
import text_to_image as example
from models.noise import noise
from service.app import create_app
from service.settings import Settings

network, path = example.imported(Path(sys.argv[1]) / "checkpoints")

def tensors(seed, length):
    made = np.random.default_rng(seed)
    return {"text": made.normal(size=(length, 32)).round(3), "pooled": made.normal(size=16).round(3)}

def body(seed, size, length, guidance, solver):
    request = {"model": "pictures", "num_samples": 1, "seed": seed, "solver": solver, "guidance": guidance}
    request["shape"] = {"H": size[0], "W": size[1]}
    for member, given in (("conditions", tensors(seed, length)), ("negative", tensors(seed + 100, length))):
        request[member] = {name: value.tolist() for name, value in given.items()}
    return request

def loop(seed, size, length, guidance, steps):
    x = noise(seed, 0, 1, (4, *size), free=(1, 2))
    both = [{k: torch.from_numpy(v).float()[None] for k, v in tensors(s, length).items()} for s in (seed, seed + 100)]
    grid = np.linspace(0, 1, steps + 1)
    with torch.no_grad():
        for start, end in zip(grid[:-1], grid[1:]):
            t = torch.full((1,), 1000 * (1 - start))
            plain, other = (network(x, t, given["text"], given["pooled"]) for given in both)
            x = x - float(end - start) * (other + guidance * (plain - other))
    return x.numpy()

async def main():
    settings = Settings(models_dir=path.parents[1], device="cpu", threads=1, watch_s=0, allow_programs=True)
    app = create_app(settings)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here", timeout=120)

    async def ask(*what):
        answer = await client.post("/v1/sample", json=body(*what))
        assert answer.status_code == 200, answer.text
        return np.float32(answer.json()["samples"])

    async with app.router.lifespan_context(app), client:
        for size, length in (((16, 12), 5), ((8, 20), 9)):
            found = await ask(3, size, length, 4.5, "euler-6")
            np.testing.assert_allclose(found, loop(3, size, length, 4.5, 6), rtol=0, atol=1e-3)
        sizes, solvers = ((16, 12), (8, 20)), ("euler-6", "heun2-4", "ab2-6", "rk4-2")
        calls = [(k, sizes[k % 2], 5, (1.5, 3.0, 4.5)[k % 3], solvers[k // 4]) for k in range(16)]
        alone = [await ask(*each) for each in calls]
        together = await asyncio.gather(*(ask(*each) for each in calls))
        assert all(np.array_equal(a, b) for a, b in zip(alone, together))
        plain = body(3, (16, 12), 5, None, "euler-6")
        del plain["solver"], plain["guidance"], plain["negative"]
        answer = (await client.post("/v1/sample", json=plain)).json()
        assert answer["solver"]["name"] == "euler" and answer["nfe"] == 8, answer["solver"]
    print("the same")

asyncio.run(main())
"""


SIGMAS = """
import json
import numpy as np
from tests.models.scheduler_times import CASES, FILE, theirs

for case, recorded in zip(CASES, json.loads(FILE.read_text()), strict=True):
    for name, values in theirs(case).items():
        np.testing.assert_allclose(values, recorded[name], rtol=1e-6, atol=1e-6, err_msg=f"{name} of {case}")
print("the same")
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages that diffusers' networks need; the environment stays unchanged."""
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    subprocess.run([*command, *PACKAGES], check=True)
    return folder


@pytest.mark.parametrize("script", [COMPARE, SIGMAS], ids=["transformer", "schedulers"])
def test_it_answers_as_diffusers_does(packages: Path, tmp_path: Path, script: str) -> None:
    environment = {"PYTHONPATH": f"{ROOT}:{packages}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the same\n")
