"""A real training process that is killed."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.training.forked import Command

RECIPE = """
name = "tiny"
epochs = 60
batch_size = 64
ema = 0.99
[data]
name = "moons"
samples = 500
[network]
hidden = 32
blocks = 2
"""


def start(folder: Path, place: str) -> tuple[Command, Path]:
    """Start a training that writes only under folder/place; return it and the folder of its runs."""
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE)
    runs = folder / place / "runs"
    arguments = ["fit", "moons", "--config", str(recipe), "--device", "cpu", "--save-every", "0.02", "--seconds", "0"]
    arguments += ["--models-dir", str(folder / place / "models"), "--runs-dir", str(runs)]
    return Command(arguments, folder / f"{place}.log"), runs


def send_in_training(command: Command, runs: Path, signum: signal.Signals, delay: float) -> bool:
    """Send a signal `delay` seconds after the process has written a state; return False if it had ended by then."""
    before = [path.stat().st_mtime_ns for path in runs.glob("*/state.safetensors")]
    while command.process.is_alive():
        try:
            now = [path.stat().st_mtime_ns for path in runs.glob("*/state.safetensors")]
        except FileNotFoundError:  # published at this moment
            return False
        if now != before:
            time.sleep(delay)
            os.kill(command.process.pid or 0, signum)
            return True
        time.sleep(0.002)
    return False


def weights(folder: Path) -> bytes:
    return (folder / "models" / "tiny" / "1" / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("unbroken")
    start(folder, "whole")[0].finish()
    return weights(folder / "whole")


def test_killed_at_random_moments_ends_at_the_same_bytes(tmp_path: Path, unbroken: bytes):
    moments = random.Random(0)
    kills = 0
    for _ in range(2):
        command, runs = start(tmp_path, "killed")
        killed = send_in_training(command, runs, signal.SIGKILL, moments.uniform(0, 0.1))
        command.finish(-signal.SIGKILL if killed else 0)
        kills += killed
    assert kills >= 1
    # If it was killed before publishing, the repository has nothing: a version is complete or absent.
    out = start(tmp_path, "killed")[0].finish()
    assert "resuming at step" in out or "already has this recipe" in out
    assert weights(tmp_path / "killed") == unbroken
    assert list((tmp_path / "killed" / "runs").iterdir()) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_polite_stop_saves_says_how_to_go_on_and_does(
    tmp_path: Path, unbroken: bytes, signum: signal.Signals, code: int
):
    command, runs = start(tmp_path, "stopped")
    assert send_in_training(command, runs, signum, 0.02)
    message = command.finish(code)
    assert "run the same command to resume" in message
    assert "Traceback" not in message
    assert "resuming at step" in start(tmp_path, "stopped")[0].finish()
    assert weights(tmp_path / "stopped") == unbroken
