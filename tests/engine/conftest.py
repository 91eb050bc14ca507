"""An engine with small real networks, and one with a field that fails on request."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.admission import Queue
from engine.engine import Engine
from engine.job import Job
from models.architectures.analytic import Gaussian
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import Checkpoint, load
from models.checkpoint.saving import save
from models.condition_values import Distinct
from models.conditions import ONE
from models.decoder import Decoder
from models.guidance import guidance_of
from solvers import resolve


@dataclass(frozen=True)
class Settings:
    device: str = "cpu"
    threads: int = 1
    max_queue: int = 500
    compile: str = "auto"
    prelude_cache_bytes: int = 0


@dataclass
class Observed:
    """Records the reports of the engine."""

    batches: list[tuple[str, int, int, int]]
    cancelled_nfe: int = 0
    preludes: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def batch(self, model: str, operation: str, rows: int, requests: int, solvers: int, calls: int) -> None:
        self.batches += [(model, rows, requests, solvers)] * calls

    def cancelled(self, nfe: int) -> None:
        self.cancelled_nfe += nfe

    def prelude(self, model: str, hits: int, misses: int) -> None:
        self.preludes.append((hits, misses))


@dataclass
class Board:
    """The work in hand, as admission sees it."""

    queues: dict[int, Queue]
    stages_s: float = 0.0

    def __len__(self) -> int:
        return sum(len(each.entries) for queue in self.queues.values() for each in queue.schedulers)


class Field(nn.Module):
    """The network of `net`, with a hook that is called for every call and may raise."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.hook: Callable[[Tensor, Tensor], None] = lambda x, t: None

    def forward(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        self.hook(x, t)
        return self.inner(x, t, condition)


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    torch.manual_seed(0)
    model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=32, blocks=1))
    path = save(
        tmp_path_factory.mktemp("repository"), "net", model, Decoder.identity((2,)), dataset={}, training={}, seed=0
    )
    return load(path)


@pytest.fixture
def gaussian(tmp_path: Path) -> Checkpoint:
    return load(save(tmp_path, "gaussian", Gaussian(), Decoder.identity((2,)), dataset={}, training={}, seed=0))


@pytest.fixture
def observed() -> Observed:
    return Observed([])


@pytest.fixture
def field(net: Checkpoint) -> Field:
    return Field(net.velocity)


@pytest.fixture
def engine(net: Checkpoint, field: Field, observed: Observed) -> Iterator[Engine]:
    made = Engine(Settings(), observed)
    made.start()
    made.load("net", 1, Checkpoint(field, net.decoder, net.card, net.path, net.digest))
    yield made
    made.stop()


def job(num_samples: int = 1, *, model: str = "net", dtype: torch.dtype = torch.float32, **arguments: Any) -> Job:
    """Return a job from solver arguments and job fields; guidance may be a strength."""
    if isinstance(strength := arguments.get("guidance"), float):
        arguments["guidance"] = guidance_of(strength, (ONE,))
    if (given := arguments.pop("condition", None)) is not None:
        arguments["conditions"] = {"condition": Distinct.from_rows(given)}
    own = {key: arguments.pop(key) for key in tuple(arguments) if key in Job.__dataclass_fields__}
    return Job(model, 1, resolve(**arguments, dtype=dtype), num_samples, **own)
