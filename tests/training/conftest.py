import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.selection.support import only
from training.config import Recipe
from training.fit import Options


@pytest.fixture
def recipe() -> Recipe:
    """A run of 4 epochs of 4 steps; the last step of each is smaller than the others."""
    return Recipe.model_validate(
        {
            "name": "tiny",
            "epochs": 4,
            "batch_size": 16,
            "ema": 0.9,
            "data": {"name": "moons", "samples": 60},
            "network": {"hidden": 8, "blocks": 1, "time_width": 4},
        }
    )


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(models_dir=tmp_path / "models", runs_dir=tmp_path / "runs", device="cpu", seconds=0)


def idx(pictures: np.ndarray) -> bytes:
    """A gzipped IDX file of pictures (n, 28, 28)."""
    header = struct.pack(">IIII", 0x803, *pictures.shape)
    return gzip.compress(header + pictures.astype(np.uint8).tobytes(), compresslevel=1)


@pytest.fixture
def mnist_dir(tmp_path: Path) -> Path:
    """A data folder with a small stand-in for MNIST in its subfolder: smooth random pictures."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    source = np.random.default_rng(0)
    for name, count in (("train", 400), ("t10k", 120)):
        coarse = source.integers(0, 256, size=(count, 14, 14))
        fine = np.kron(coarse, np.ones((2, 2))) // 2 + source.integers(0, 64, size=(count, 28, 28))
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(idx(fine))
        labels = struct.pack(">II", 0x801, count) + (np.arange(count) % 10).astype(np.uint8).tobytes()
        (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return folder.parent


@pytest.fixture
def quick_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few solvers are candidates, and models of points are judged by a tenth of the usual number."""
    monkeypatch.setattr("selection.candidates.catalogue.solvers", only("euler", "rk4"))
    monkeypatch.setattr("selection.candidates.GRIDS", ())
    monkeypatch.setattr("selection.candidates.ADAPTIVE", ())
    monkeypatch.setattr("training.known_data._FRESH", 200)
