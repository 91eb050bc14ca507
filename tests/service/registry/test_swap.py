"""New versions take over under load: no request fails, and each is answered by a single version."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import torch

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.app import create_app
from service.settings import Settings
from service.state import Service
from tests.service.registry.asking import loaded
from tests.service.serving import calling

pytestmark = pytest.mark.anyio

VERSIONS = 5


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built")
    for number in range(1, VERSIONS + 1):
        torch.manual_seed(number)
        model = ResidualMLP(ResidualMLPConfig(dim=2, hidden=32, blocks=1))
        save(root, "net", model, Decoder.identity((2,)), dataset={}, training={}, seed=number)
    return root


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built / "net" / "1", tmp_path / "net" / "1")
    return tmp_path


@pytest.fixture
async def served(root: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    app = create_app(Settings(models_dir=root, device="cpu", threads=1, watch_s=0.02))
    async with calling(app) as http:
        yield http, app.state.service


async def test_swaps_under_load(served: tuple[httpx.AsyncClient, Service], built: Path, root: Path) -> None:
    http, service = served
    answers: list[httpx.Response] = []
    done = asyncio.Event()

    async def client(number: int) -> None:
        body = {"model": "net", "num_samples": 1 + number, "seed": number, "solver": "rk4", "steps": 10 + number}
        while not done.is_set():
            answers.append(await http.post("/v1/sample", json=body))

    clients = [asyncio.create_task(client(number)) for number in range(6)]
    for number in range(2, VERSIONS + 1):
        copying = root / "net" / f".{number}"
        shutil.copytree(built / "net" / str(number), copying)
        copying.rename(root / "net" / str(number))
        while service.registry.current() != [("net", number)]:
            await asyncio.sleep(0.005)
        while not any(answer.json()["version"] == number for answer in answers[-20:]):
            await asyncio.sleep(0.005)
    done.set()
    await asyncio.gather(*clients)
    assert {answer.status_code for answer in answers} == {200}
    bodies = [answer.json() for answer in answers]
    assert {body["version"] for body in bodies} == set(range(1, VERSIONS + 1))
    digests = {number: load(built / "net" / str(number)).digest for number in range(1, VERSIONS + 1)}
    ends: dict[tuple[int, int], list[list[float]]] = {}
    for body in bodies:
        assert body["checkpoint"] == digests[body["version"]]
        assert ends.setdefault((body["version"], body["seed"]), body["samples"]) == body["samples"]
    assert [each.version for each in loaded(service.registry)] == [VERSIONS]


async def test_a_version_that_was_unloaded_is_loaded_once_for_all_who_wait(
    served: tuple[httpx.AsyncClient, Service],
) -> None:
    http, service = served
    service.registry.unload("net")
    body = {"model": "net", "num_samples": 1, "seed": 0, "solver": "euler", "steps": 2}
    answers = await asyncio.gather(*(http.post("/v1/sample", json=body) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({str(answer.json()["samples"]) for answer in answers}) == 1
    assert len(loaded(service.registry)) == 1
