"""A prelude over texts of free length: one arena for each length, and results of another length are refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.files import ForeignError
from models.importing.weights import import_program
from models.noise import noise
from solvers import integrate
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio

LONGEST = 6
TEXT = {"null": "zeros", "shape": ["L", 4], "max": {"L": LONGEST}}
CONDITIONS: dict[str, Any] = {"text": TEXT, "tokens": {"shape": ["L", 8], "max": {"L": LONGEST}}}


class Reader(nn.Module):
    """Tokens (L, 8) of a text (L, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 8))

    def forward(self, text: Tensor) -> Tensor:
        return self.layers(text) + text.mean(1, keepdim=True).mean(2, keepdim=True)


class Velocity(nn.Module):
    """A velocity of 3 numbers, given tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.ask, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, t: Tensor, tokens: Tensor) -> Tensor:
        query = self.ask(torch.cat((x, t[:, None]), 1))
        weights = torch.softmax((tokens * query[:, None]).sum(2), dim=1)
        return self.last(torch.tanh(query + (weights[..., None] * tokens).sum(1)))


def export(module: nn.Module, given: tuple[Tensor, ...], free: tuple[bool, ...], file: Path) -> Path:
    rows, length = torch.export.Dim("rows", max=512), torch.export.Dim("length", max=64)
    dims = tuple({0: rows, 1: length} if each else {0: rows} for each in free)
    torch.export.save(torch.export.export(module.eval(), given, dynamic_shapes=dims), file)
    return file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("texts")


def imported(root: Path, reader: nn.Module, velocity: nn.Module) -> None:
    given = (torch.randn(4, 3), torch.rand(4), torch.randn(4, 5, 8))
    import_program(
        export(velocity, given, (False, False, True), root / "velocity.pt2"),
        *(root / "repository", "texts"),
        inputs=["x", "t", "tokens"],
        conditions=CONDITIONS,
        declared=Declared(noise_at=0, scale=1.0, sign=1),
        prelude=export(reader, (torch.randn(4, 5, 4),), (True,), root / "reader.pt2"),
    )


@pytest.fixture(scope="module")
def made(root: Path) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    reader, velocity = (each.eval().requires_grad_(False) for each in (Reader(), Velocity()))
    imported(root, reader, velocity)
    return reader, velocity


@pytest.fixture(scope="module")
async def http(made: tuple[nn.Module, nn.Module], root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(root / "repository") as client:
        yield client


async def test_texts_of_any_length(http: httpx.AsyncClient, made: tuple[nn.Module, nn.Module]) -> None:
    reader, velocity = made
    for length in (1, 3, LONGEST):
        text = torch.randn(length, 4)
        body = {"model": "texts", "num_samples": 3, "seed": 1, "solver": "rk4-4", "guidance": 2.0}
        answer = await http.post("/v1/sample", json=body | {"conditions": {"text": text.tolist()}})
        assert answer.status_code == 200, answer.text
        tokens, none = (reader(each[None]).expand(3, -1, -1) for each in (text, torch.zeros_like(text)))

        def field(x: Tensor, t: Tensor, tokens: Tensor = tokens, none: Tensor = none) -> Tensor:
            return 2.0 * velocity(x, t, tokens) - velocity(x, t, none)

        wanted = integrate(field, noise(1, 0, 3, (3,)), solver="rk4", steps=4).x
        np.testing.assert_allclose(answer.json()["samples"], wanted.numpy(), atol=1e-4)
    refused = await http.post("/v1/sample", json={"model": "texts", "conditions": {"text": [[0.0] * 4] * 7}})
    assert refused.status_code == 422
    assert "expected 1 to 6" in refused.text


class Longer(Reader):
    def forward(self, text: Tensor) -> Tensor:
        tokens = super().forward(text)
        return torch.cat((tokens, tokens[:, :1]), dim=1)


def test_a_prelude_of_another_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignError, match="prelude made tokens as"):
        imported(tmp_path, Longer(), Velocity())
