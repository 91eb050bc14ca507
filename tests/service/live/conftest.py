"""A real service: `python -m service` in its own process, on a free port, with small models."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from tests.processes import Process
from tests.service.serving import serving


@dataclass
class Live:
    """A running service."""

    process: Process
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
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
    with serving(models, **settings) as (url, process):
        yield Live(process, url)


@pytest.fixture
def launch(models: Path) -> Iterator[Callable[..., Live]]:
    """Start services, each with its own settings."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(launched(models, **settings))


@pytest.fixture(scope="session")
def live(models: Path) -> Iterator[Live]:
    """A service shared by all tests that leave it unchanged."""
    with launched(models) as service:
        yield service
