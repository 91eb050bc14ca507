"""The README's examples, against a real service with a small model under the name it uses."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch

from models.checkpoint import save
from models.decoder import Decoder
from models.residual_mlp import ResidualMLP, ResidualMLPConfig

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1))
    save(root, "moons", model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    environment = {**os.environ, "PATHLINE_MODELS_DIR": str(root), "PATHLINE_PORT": "0"}
    running = subprocess.Popen(
        [sys.executable, "-m", "service"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if found := re.search(r" on (http://[\d.]+:\d+)", line):
            break
    else:
        pytest.fail("the service did not start")
    yield found.group(1)
    running.terminate()
    running.communicate(timeout=30)
    assert running.returncode == 0


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_curl_request_gets_the_members_that_are_shown(service: str) -> None:
    [command], [answer] = blocks("sh"), blocks("json")
    body = re.search(r"-d '(.*)'", command)
    assert body is not None
    found = httpx.post(
        f"{service}/v1/sample", content=body.group(1), headers={"Content-Type": "application/json"}, timeout=60
    ).json()
    shown = json.loads(answer)
    assert shown.keys() <= found.keys()
    for name in shown.keys() - {"samples"}:
        assert found[name] == shown[name]


def test_the_python_examples_print_what_is_shown(service: str) -> None:
    outputs = []
    for code in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PATHLINE_URL": service},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    [shown] = blocks("text")
    assert outputs[0].splitlines()[:4] == shown.splitlines()[:4]
    assert "SUCCESS" in outputs[1]


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
