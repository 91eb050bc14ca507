"""A real service with small models under the names that the examples use."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import save
from models.decoder import Decoder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the repository of the service."""
    root = tmp_path_factory.mktemp("checkpoints")
    torch.manual_seed(0)
    model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1))
    save(root, "moons", model, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return root


@pytest.fixture(scope="session")
def service(models_dir: Path) -> Iterator[str]:
    places = {"PATHLINE_MODELS_DIR": str(models_dir), "PATHLINE_PORT": "0", "PATHLINE_WATCH_S": "0.2"}
    long = {"PATHLINE_TIMEOUT_S": "300"}  # on a busy machine it takes time to make a derivative ready
    environment = {**os.environ, **long, **places}
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
