"""Bulk jobs as training data: rows, and pairs for reflow, on which `training` fits and evaluates models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.checkpoint.card import read_card
from models.checkpoint.loading import load
from models.noise import noise
from solvers import integrate
from tests.fleet.conftest import Fleet
from training.__main__ import main

RECIPE = """
name = "moons"
epochs = 2
batch_size = 128

[data]
name = "moons"

[network]
hidden = 16
blocks = 1
"""
PLACES = ["--models-dir", "models", "--device", "cpu", "--seconds", "0"]
JOB: dict[str, Any] = {"seed": 5, "total": 200, "solver": "rk4-4", "shard_rows": 64}


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trained model in the repository that the commands use."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE)
    assert main(["fit", "moons", "--config", "small.toml", *PLACES]) == 0
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(tmp_path / "models"))
    return tmp_path / "models" / "moons" / "1"


def fit(*arguments: str) -> int:
    return main(["fit", *arguments, *PLACES, "--epochs", "2"])


def evaluate(folder: str) -> str:
    """Return the measured values as they are written."""
    assert main(["evaluate", folder, "--solver", "rk4-4", "--samples", "100", "--out", "out", "--seconds", "1"]) == 0
    return Path("out/evaluation.csv").read_text()


def test_a_model_is_reflowed_on_pairs_of_a_job_and_evaluated(fleet: Fleet, parent: Path) -> None:
    assert fleet("sample", "moons", "--states", to="job", **JOB) == 0
    assert fleet("export", "job", "pairs.npz", "--pairs") == 0
    with np.load("pairs.npz") as pairs:
        x0, states = pairs["noise"], pairs["states"]
    assert x0.tobytes() == noise(5, 0, 200, (2,)).numpy().tobytes()
    ends = integrate(load(parent).velocity, noise(5, 0, 200, (2,)), solver="rk4", steps=4).x
    np.testing.assert_allclose(states, ends.numpy(), atol=1e-5)
    assert fit("moons", "--config", "small.toml", "--reflow", str(parent), "--pairs", "pairs.npz") == 0
    card = read_card(Path("models/moons-reflow/1"))
    recorded: Any = card.dataset["reflow"]
    assert (recorded["pairs"], recorded["solver"], recorded["parent"]) == (200, "rk4-4", "moons")
    assert "rk4-4" in evaluate("models/moons-reflow/1")


def test_a_model_is_trained_on_rows_of_a_job_and_evaluated(fleet: Fleet, parent: Path) -> None:
    assert fleet("sample", "moons", to="job", **JOB) == 0
    assert fleet("export", "job", "moons.npz") == 0
    assert fit("vectors", "--data", "moons.npz", "--name", "copy") == 0
    assert read_card(Path("models/copy/1")).data_shape == (2,)
    assert "rk4-4" in evaluate("models/copy/1")


def test_pairs_that_do_not_fit_are_refused(fleet: Fleet, parent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: str) -> str:
        assert fit("moons", "--config", "small.toml", "--reflow", str(parent), *arguments) != 0
        return capsys.readouterr().err

    assert fleet("sample", "moons", to="data", **JOB) == 0
    assert fleet("export", "data", "pairs.npz", "--pairs") == 2
    assert "run the job with --states" in capsys.readouterr().err
    assert fleet("sample", "moons", "--states", to="job", **JOB) == 0
    assert fleet("export", "job", "pairs.npy", "--pairs") == 2
    assert fleet("export", "job", "pairs.npz", "--pairs") == 0
    assert "pairs missing.npz cannot be read" in refused("--pairs", "missing.npz")
    np.savez("other.npz", noise=np.zeros((3, 2)))
    assert "python -m fleet export --pairs writes them" in refused("--pairs", "other.npz")
    with np.load("pairs.npz") as pairs:
        arrays = dict(pairs)
    about = json.loads(arrays["about"].tobytes()) | {"checkpoint": "sha256:00"}
    np.savez("other.npz", **{**arrays, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    assert "pairs other.npz are from another checkpoint, sha256:00" in refused("--pairs", "other.npz")
    np.savez("other.npz", **{**arrays, "states": arrays["states"][:, :1]})
    assert "pairs other.npz has noise (200, 2), states (200, 1)" in refused("--pairs", "other.npz")
