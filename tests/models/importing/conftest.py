"""A small trained network, so that its convention can be detected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig

CONFIG: dict[str, Any] = {"dim": 2, "hidden": 64, "blocks": 2, "time_width": 16, "max_frequency": 20.0}


@pytest.fixture(scope="session")
def trained() -> dict[str, Tensor]:
    """The state dict of a network trained for a few seconds on four distant points."""
    torch.manual_seed(0)
    network = ResidualMLP(ResidualMLPConfig(**CONFIG))
    points = torch.tensor([[2.0, 2.0], [-2.0, 2.0], [2.0, -2.0], [-2.0, -2.0]])
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(400):
        x1 = points[torch.randint(4, (256,))] + 0.1 * torch.randn(256, 2)
        x0, t = torch.randn(256, 2), torch.rand(256)
        target = x1 - x0
        loss = (network(x0 + t[:, None] * target, t) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {key: tensor.detach().clone() for key, tensor in network.state_dict().items()}


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Save an object with torch.save under a name."""

    def save(content: object, name: str = "weights.pt") -> Path:
        torch.save(content, tmp_path / name)
        return tmp_path / name

    return save
