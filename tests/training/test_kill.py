"""A real process, really killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RECIPE = """
name = "tiny"
epochs = 30
batch_size = 64
ema = 0.99
[data]
name = "moons"
samples = 500
[network]
hidden = 32
blocks = 2
"""


def start(folder: Path, place: str) -> tuple[subprocess.Popen[str], Path]:
    """Start a training that keeps all it writes under folder/place; return it and where its runs are."""
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    runs = folder / place / "runs"
    command = [sys.executable, "-m", "training", "fit", "moons", "--config", str(recipe), "--device", "cpu"]
    command += ["--models-dir", str(folder / place / "models"), "--runs-dir", str(runs), "--save-every", "0.02"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    return process, runs


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def send_in_training(process: subprocess.Popen[str], runs: Path, signum: signal.Signals, delay: float) -> bool:
    """Send a signal `delay` seconds after the process has written a state; False if it was done before that."""
    before = [path.stat().st_mtime_ns for path in runs.glob("*/state.safetensors")]
    while process.poll() is None:
        try:
            now = [path.stat().st_mtime_ns for path in runs.glob("*/state.safetensors")]
        except FileNotFoundError:  # published in this moment
            return False
        if now != before:
            time.sleep(delay)
            process.send_signal(signum)
            return True
        time.sleep(0.002)
    return False


def weights(folder: Path) -> bytes:
    return (folder / "models" / "tiny" / "1" / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("unbroken")
    finish(start(folder, "whole")[0])
    return weights(folder / "whole")


def test_killed_at_random_moments_ends_at_the_same_bytes(tmp_path: Path, unbroken: bytes):
    moments = random.Random(0)
    kills = 0
    for _ in range(2):
        process, runs = start(tmp_path, "killed")
        kills += send_in_training(process, runs, signal.SIGKILL, moments.uniform(0, 0.1))
        process.communicate(timeout=120)
    assert kills >= 1
    # Killed before it was published, nothing is in the repository: whole or not at all.
    out = finish(start(tmp_path, "killed")[0])
    assert "going on at step" in out or "already has this recipe" in out
    assert weights(tmp_path / "killed") == unbroken
    assert list((tmp_path / "killed" / "runs").iterdir()) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_polite_stop_saves_says_how_to_go_on_and_does(
    tmp_path: Path, unbroken: bytes, signum: signal.Signals, code: int
):
    process, runs = start(tmp_path, "stopped")
    assert send_in_training(process, runs, signum, 0.02)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert "run the same command to go on" in err
    assert "Traceback" not in err
    assert "going on at step" in finish(start(tmp_path, "stopped")[0])
    assert weights(tmp_path / "stopped") == unbroken
