"""Fixtures: a repository of small real checkpoints, and the command run in this process."""

import os
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fleet import workers
from fleet.__main__ import main
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from tests.processes import FORK

Fleet = Callable[..., int]


def _work(environment: Mapping[str, str], target: Callable[..., object], arguments: tuple[object, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)


class _Forking:
    """Starts local workers from a process that has imported torch, with this process's environment."""

    Pipe = staticmethod(FORK.Pipe)

    @staticmethod
    def Process(target: Callable[..., object], args: tuple[object, ...], daemon: bool) -> ForkServerProcess:  # noqa: N802
        return FORK.Process(target=_work, args=(dict(os.environ), target, args), daemon=daemon)


@pytest.fixture(autouse=True)
def _fork_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "multiprocessing", SimpleNamespace(get_context=lambda kind: _Forking))


def write_net(repository: Path, seed: int = 0) -> Path:
    """Save the next version of the model `net`."""
    torch.manual_seed(seed)
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1))
    return save(repository, "net", net, Decoder.identity((2,)), dataset={}, training={}, seed=0)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    write_net(repository)
    torch.manual_seed(1)
    pets = NamedCondition.label(classes=3, names=("cat", "dog", "eel"))
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, condition=pets))
    save(repository, "pets", net, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    return repository


@pytest.fixture
def repository(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(trained))
    return trained


@pytest.fixture
def fleet(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Run a command; `sample` makes its shards in this process."""

    def run(command: str, *arguments: object, **options: object) -> int:
        if command == "sample" and "on" not in options:
            monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
            options = {"on": "indexed"} | options
        if command != "export":
            arguments = (*arguments, "--quiet")
        named = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
        return main([command, *map(str, arguments), *named])

    return run


@pytest.fixture
def job() -> dict[str, object]:
    """A job of four shards, the last of them short."""
    return {"seed": 5, "total": 200, "solver": "rk4-4", "shard_rows": 64}
