"""The convention is detected from a trained network, whichever it is."""

import pytest
import torch
from torch import Tensor

from models.architectures.analytic import Gaussian
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.importing.detection import detect
from models.importing.weights import Declared

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

    found = detect(foreign, (2,), torch.float32).time
    assert found is not None
    assert not detect(foreign, (2,), torch.float32).predicts_noise
    assert (found.noise_at, found.scale, found.sign) == (noise_at, scale, sign)


def test_a_convention_that_cannot_be_detected_is_said() -> None:
    # with Gaussian data noise is as good as data at either end
    found = detect(Gaussian(), (2,), torch.float64)
    assert found.time is None
    assert "declare it with --noise-at, --time-scale and --sign" in str(found)
    assert detect(lambda x, t: torch.zeros_like(x), (2,), torch.float32).time is None
    assert detect(lambda x, t: torch.full_like(x, torch.nan), (2,), torch.float32).time is None


@pytest.mark.parametrize("spread", [0.3, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_a_network_that_predicts_noise_is_noticed(spread: float, scale: float) -> None:
    """The exact prediction for Gaussian data of this spread, on a variance-preserving path with a linear schedule."""

    def foreign(x: Tensor, t: Tensor) -> Tensor:
        s = t[:, None] / scale
        alpha = torch.exp(-0.05 * s - 5.0 * s.square()).clamp(max=0.9999)
        sigma = (1 - alpha.square()).sqrt()
        return sigma * x / ((alpha * spread).square() + sigma.square())

    found = detect(foreign, (2,), torch.float32)
    assert found.predicts_noise
    _, report = Declared(noise_at=1).resolve(found)
    assert any("predict noise" in line for line in report)
