"""The example with the real TorchCFM from the package index: its UNet is imported as a program, with equal results."""

import gzip
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.system

COMPARE = """
import sys, torch
sys.path[:0] = ["examples"]
import torchcfm_mnist as example
from models.checkpoint.loading import load
from models.importing.weights import import_program
from pathlib import Path

out = Path(sys.argv[1])
network = example.torchcfm_unet()
data = example.digits(out)
example.train(lambda x, t: network(t, x), network, example.torchcfm_matcher(), data, 2)
example.export(network, out / "net.pt2")
velocity = load(import_program(out / "net.pt2", out / "checkpoints", "torchcfm", (1, 14, 14)).path).velocity
x, t = torch.randn(5, 1, 14, 14), torch.rand(5)
with torch.no_grad():
    torch.testing.assert_close(velocity(x, t), network(t, x), rtol=0, atol=1e-5)
    assert float(velocity(x, t).abs().max()) > 0
print("the same")
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with TorchCFM and the part of POT that it needs; the environment stays unchanged."""
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(folder)]
    subprocess.run([*command, "torchcfm==1.0.7", "pot==0.9.7.post1"], check=True)
    return folder


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (80, 28, 28), dtype=np.uint8)
    content = gzip.compress(struct.pack(">IIII", 0x803, *pixels.shape) + pixels.tobytes())
    for name in ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
        (tmp_path / name).write_bytes(content)
    return tmp_path


def python(packages: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": f"{ROOT}:{packages}", "PATHLINE_ALLOW_PROGRAMS": "true", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_unet_of_torchcfm_answers_as_before(packages: Path, data_dir: Path) -> None:
    assert python(packages, "-c", COMPARE, str(data_dir)) == "the same\n"


@pytest.mark.parametrize("network", ["torchcfm", "pathline"])
def test_the_command_that_is_printed_imports_it(packages: Path, data_dir: Path, network: str) -> None:
    options = ["--network", network, "--steps", "2", "--data-dir", str(data_dir), "--out", str(data_dir / "out")]
    message = python(packages, "examples/torchcfm_mnist.py", *options).strip()
    command = f"{message} --models-dir {data_dir / 'models'}".replace(".venv/bin/python", sys.executable)
    command = command.replace(" --check", "")  # takes a while
    command = command.removeprefix("PATHLINE_ALLOW_PROGRAMS=true ")
    done = subprocess.run(
        shlex.split(command),
        cwd=ROOT,
        env={"PATHLINE_ALLOW_PROGRAMS": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "convention: noise at 0, time scale 1, sign +1" in done.stdout
