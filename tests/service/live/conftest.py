"""A real service: `python -m service` in a process of its own, on a free port, with small models."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import save
from models.decoder import Decoder

ROOT = Path(__file__).parents[3]


@dataclass
class Live:
    """A running service."""

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        return sum(float(value) for value in re.findall(rf"^pathline_{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))

    def idle(self) -> bool:
        return self.metric("active_jobs") == self.metric("active_lanes") == self.metric("queue_depth") == 0

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("live")
    torch.manual_seed(0)
    about: dict[str, Any] = {"dataset": {}, "training": {}, "seed": 0}
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=32, blocks=1))
    for name, model in (("net", net), ("gaussian", Gaussian()), ("mixture", Mixture())):
        save(root, name, model, Decoder.identity((2,)), **about)
    return root


@contextlib.contextmanager
def launched(models: Path, **settings: object) -> Iterator[Live]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PATHLINE_")}
    own = {"PATHLINE_MODELS_DIR": str(models), "PATHLINE_PORT": "0", "PATHLINE_THREADS": "1"}
    own |= {f"PATHLINE_{name.upper()}": str(value) for name, value in settings.items()}
    running = subprocess.Popen(
        [sys.executable, "-m", "service"],
        cwd=ROOT,
        env=clean | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    said = []
    try:
        for line in running.stdout:
            said.append(line)
            if found := re.search(r" on (http://[\d.]+:\d+)", line):
                yield Live(running, found.group(1))
                break
        else:
            pytest.fail("the service did not start: " + "".join(said))
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


@pytest.fixture
def launch(models: Path) -> Iterator[Callable[..., Live]]:
    """Starts services with settings of their own."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(launched(models, **settings))


@pytest.fixture(scope="session")
def live(models: Path) -> Iterator[Live]:
    """One service for all tests that leave it as they found it."""
    with launched(models) as service:
        yield service
