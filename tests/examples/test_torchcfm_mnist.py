"""The example trains, saves and imports on both routes; a stand-in replaces TorchCFM (see tests/system)."""

import gzip
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.checkpoint.loading import load
from models.importing.weights import import_program, import_weights
from tests.examples.support import load_example


class Matcher:
    """Straight paths without a coupling, with the arguments and results of TorchCFM's matchers."""

    def sample_location_and_conditional_flow(self, x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        t = torch.rand(len(x0))
        part = t[:, None, None, None]
        return t, (1 - part) * x0 + part * x1, x1 - x0


class Net(nn.Module):
    """A network with the signature of TorchCFM's UNet: f(t, x)."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.first, self.last = nn.Linear(1, 8), nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        return self.last(nn.functional.silu(self.first(x) + self.time(t[:, None])[:, :, None, None]))


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_example("torchcfm_mnist")
    monkeypatch.setattr(module, "torchcfm_matcher", Matcher)
    monkeypatch.setattr(module, "torchcfm_unet", Net)
    return module


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IDX files of a few pictures."""
    folder = tmp_path_factory.mktemp("mnist")
    pixels = np.random.default_rng(0).integers(0, 256, (80, 28, 28), dtype=np.uint8)
    content = gzip.compress(struct.pack(">IIII", 0x803, *pixels.shape) + pixels.tobytes())
    for name in ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        (folder / name).write_bytes(content)
    return folder


def run(example: ModuleType, data_dir: Path, out: Path, *more: str) -> int:
    return example.main(["--data-dir", str(data_dir), "--out", str(out), "--steps", "3", *more])


def test_the_digits_are_pictures_from_minus_one_to_one(example: ModuleType, data_dir: Path) -> None:
    found = example.digits(data_dir)
    assert found.shape == (80, 1, 14, 14)
    assert found.dtype == torch.float32
    assert -1 <= float(found.min()) < float(found.max()) <= 1


def test_a_network_that_is_unknown_goes_as_a_program(
    example: ModuleType, data_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    assert run(example, data_dir, tmp_path) == 0
    assert "--program --event-shape 1x14x14" in capsys.readouterr().out
    imported = import_program(tmp_path / "unet.pt2", tmp_path / "checkpoints", "torchcfm", (1, 14, 14))
    checkpoint = load(imported.path)
    assert checkpoint.velocity(torch.randn(5, 1, 14, 14), torch.rand(5)).shape == (5, 1, 14, 14)
    assert "arguments (t, x)" in imported.report[0]


@pytest.mark.parametrize("which", ["ema", "raw"])
def test_our_own_goes_as_a_state_dict(example: ModuleType, data_dir: Path, tmp_path: Path, which: Any) -> None:
    assert run(example, data_dir, tmp_path, "--network", "pathline") == 0
    config = example.CONFIG.model_dump(mode="json")
    imported = import_weights(tmp_path / "weights.pt", tmp_path / "out", "torchcfm", "unet", config, which=which)
    assert f"{which}, under the prefix" in imported.report[0]


def test_what_is_missing_is_said(
    example: ModuleType, tmp_path: Path, data_dir: Path, monkeypatch: Any, capsys: Any
) -> None:
    assert run(example, tmp_path, tmp_path) == 1
    assert "has no MNIST" in capsys.readouterr().err

    def nothing() -> None:
        raise ModuleNotFoundError("No module named 'torchcfm'")

    monkeypatch.setattr(example, "torchcfm_matcher", nothing)
    assert run(example, data_dir, tmp_path) == 1
    assert "pip install --no-deps torchcfm pot" in capsys.readouterr().err
