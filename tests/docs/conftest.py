"""A real service with small models under the names that the examples use."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.checkpoint import save
from models.decoder import Decoder
from models.residual_mlp import ResidualMLP, ResidualMLPConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1))
    for name in ("moons", "circles"):
        save(root, name, model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
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
