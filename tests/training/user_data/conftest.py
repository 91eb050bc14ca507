from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(50, 3)) * [1, 20, 0.1] + [0, 5, -3]


@pytest.fixture
def table(tmp_path: Path, rows: np.ndarray) -> Path:
    lines = [f"{a},{b},{c},{'cat' if a > 0 else 'dog'}" for a, b, c in rows]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["a,b,c,kind", *lines]) + "\n")
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    source = np.random.default_rng(0)
    for name in ("left", "right"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            pixels = source.integers(0, 256, (8, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"
