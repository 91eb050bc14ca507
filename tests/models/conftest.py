from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder


def small_network(seed: int = 0) -> ResidualMLP:
    torch.manual_seed(seed)
    return ResidualMLP(ResidualMLPConfig(dim=2, hidden=8, blocks=1, time_width=8))


@pytest.fixture
def network() -> ResidualMLP:
    return small_network()


@pytest.fixture
def folder(tmp_path: Path, network: ResidualMLP) -> Path:
    """A valid checkpoint."""
    decoder = Decoder.affine(torch.tensor([2.0, 2.0]), torch.tensor([1.0, 1.0]))
    return save(
        tmp_path / "repository",
        "moons",
        network,
        decoder,
        dataset={"name": "moons", "samples": 2000},
        training={"epochs": 300, "loss": 0.25},
        seed=7,
    )


@pytest.fixture
def close(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make a folder unreadable; its mode alone would not stop tests that run as root."""

    def closed(folder: Path) -> None:
        iterdir = Path.iterdir

        def refuse(self: Path) -> Iterator[Path]:
            if self == folder:
                raise PermissionError(13, "Permission denied")
            return iterdir(self)

        monkeypatch.setattr(Path, "iterdir", refuse)

    return closed
