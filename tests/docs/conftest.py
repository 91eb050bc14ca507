"""A real service with small models under the names that the examples use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from tests.processes import stop
from tests.service.serving import serving


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
    # Making a derivative ready takes time on a busy machine.
    with serving(models_dir, watch_s=0.2, timeout_s=300) as (url, process):
        yield url
        assert stop(process) == 0
