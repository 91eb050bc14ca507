"""Every convention is detected from a trained network."""

import pytest
import torch
from torch import Tensor

from models.architectures.analytic import Gaussian
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.importing.detection import detect

from .conftest import CONFIG


@pytest.mark.parametrize("noise_at", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_every_convention_is_detected(trained: dict[str, Tensor], noise_at: int, scale: float, sign: int) -> None:
    network = ResidualMLP(ResidualMLPConfig(**CONFIG))
    network.load_state_dict(trained)

    def foreign(x: Tensor, t: Tensor) -> Tensor:
        own = t / scale
        v = network(x, own if noise_at == 0 else 1 - own)
        return sign * v if noise_at == 0 else -sign * v

    found, _ = detect(foreign, (2,), torch.float32)
    assert found is not None
    assert (found.noise_at, found.scale, found.sign) == (noise_at, scale, sign)


def test_a_convention_that_cannot_be_detected_is_said() -> None:
    # with Gaussian data, noise and data fit either end equally well
    found, evidence = detect(Gaussian(), (2,), torch.float64)
    assert found is None
    assert "declare it with --noise-at, --time-scale and --sign" in evidence
    assert detect(lambda x, t: torch.zeros_like(x), (2,), torch.float32)[0] is None
    assert detect(lambda x, t: torch.full_like(x, torch.nan), (2,), torch.float32)[0] is None
