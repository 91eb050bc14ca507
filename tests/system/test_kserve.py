"""KServe from the package index: its client reads our responses, and its model of a manifest accepts ours.

Its pins contradict ours, so it has its own environment, which `make test-system` creates.
"""

import io
import json
import re
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from tests.processes import ROOT

pytestmark = pytest.mark.system

PYTHON = ROOT / ".venv" / "kserve" / "bin" / "python"
HERE = Path(__file__).parent / "with_kserve"
FIXED = {"num_samples": 64, "seed": 11, "solver": "rk4", "steps": 6}
MANIFEST = ROOT / "deploy" / "kubernetes" / "kserve.yaml"


def run(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    assert PYTHON.is_file(), f"{PYTHON} is missing; run: make test-system"
    return subprocess.run([PYTHON, HERE / script, *arguments], capture_output=True, text=True, timeout=120)


def v1(url: str, **body: object) -> dict[str, np.ndarray]:
    answer = httpx.post(f"{url}/v1/sample", json={"model": "moons", **body}, headers={"Accept": "application/x-npz"})
    with np.load(io.BytesIO(answer.content)) as archive:
        return dict(archive)


def test_the_client_reads_the_bits_of_v1_sample(service: str, tmp_path: Path) -> None:
    done = run("client.py", service, str(tmp_path / "found.npz"), json.dumps(FIXED))
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "found.npz") as archive:
        found = dict(archive)
    assert [bool(found[name]) for name in ("live", "ready", "model_ready", "nobody_ready")] == [True, True, True, False]
    expected = v1(service, **FIXED)
    moved = v1(service, x0=found["x0"].tolist(), num_samples=len(found["x0"]), solver="heun2", steps=5)["samples"]
    for kind in ("binary", "json"):
        for name in ("samples", "nfe", "t", "trace_h"):
            assert found[f"{kind}_{name}"].dtype == expected[name].dtype
            np.testing.assert_array_equal(found[f"{kind}_{name}"], expected[name])
        np.testing.assert_array_equal(found[f"{kind}_from_x0"], moved)
    assert "did you mean 'steps'" in str(found["error"])
    assert "400" in str(found["error"])


def test_the_model_of_a_manifest_takes_ours() -> None:
    done = run("model.py", str(MANIFEST))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == yaml.safe_load(MANIFEST.read_text())


def test_the_model_of_a_manifest_takes_the_scale_metric_of_the_docs(tmp_path: Path) -> None:
    [block] = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "kserve.md").read_text(), re.MULTILINE | re.DOTALL)
    added, manifest = yaml.safe_load(block), yaml.safe_load(MANIFEST.read_text())
    predictor = manifest["spec"]["predictor"]
    del predictor["scaleMetric"], predictor["scaleTarget"]
    manifest["metadata"]["annotations"] |= added["metadata"]["annotations"]
    predictor |= added["spec"]["predictor"]
    (tmp_path / "scaled.yaml").write_text(yaml.safe_dump(manifest))
    done = run("model.py", str(tmp_path / "scaled.yaml"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == manifest


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"minReplica": 1}, "V1beta1PredictorSpec has no minReplica"),
        ({"scaleTarget": "70"}, "scaleTarget is '70'; expected int"),
    ],
)
def test_the_model_sees_a_mistake(tmp_path: Path, wrong: dict[str, object], message: str) -> None:
    content = yaml.safe_load(MANIFEST.read_text())
    content["spec"]["predictor"] |= wrong
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(content))
    done = run("model.py", str(tmp_path / "wrong.yaml"))
    assert done.returncode == 1
    assert message in done.stderr
