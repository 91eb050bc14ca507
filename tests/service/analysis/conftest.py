"""Fixtures: a real engine behind an in-process client, with models of every kind that the operations distinguish."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.architectures.analytic import Gaussian, GaussianConfig, Mixture, MixtureConfig
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.architectures.unet import UNet, UNetConfig
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import ColumnCard, Decoder
from service.app import create_app
from service.settings import Settings
from service.state import Service
from tests.service.serving import calling


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """net and far (float32, 2-D), gaussian and mixture (float64), scaled, components, flat, table, pictures, labels."""
    root = tmp_path_factory.mktemp("kinds")
    about: dict[str, Any] = {"dataset": {"name": "none"}, "training": {}, "seed": 0}
    torch.manual_seed(0)
    net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=32, blocks=1))
    three = Gaussian(GaussianConfig(dim=3, m=0.5, s=0.5))
    basis = torch.linalg.qr(torch.randn(6, 3, dtype=torch.float64))[0].T
    save(root, "net", net, Decoder.identity((2,)), **about)
    near_1e9 = Decoder.affine(torch.tensor([1.0, 0.1]).double(), torch.full((2,), 1e9).double(), dtype="float64")
    save(root, "far", net, near_1e9, **about)
    save(root, "gaussian", Gaussian(), Decoder.identity((2,)), **about)
    save(root, "mixture", Mixture(MixtureConfig()), Decoder.identity((2,)), **about)
    affine = Decoder.affine(torch.tensor([2.0, 0.5, 1.0]).double(), torch.tensor([1.0, 0.0, -1.0]).double())
    save(root, "scaled", three, affine, **about)
    pca = Decoder.pca(torch.ones(6).double(), basis, torch.full((3,), 2.0).double(), (2, 3), clip=(-9.0, 9.0))
    save(root, "components", three, pca, **about)
    save(root, "flat", three, Decoder.affine(torch.zeros(3).double(), torch.zeros(3).double()), **about)
    columns = (
        ColumnCard(name="x", low=-2, high=2, unit="m", decimals=2),
        ColumnCard(name="c", low=0.0016, high=0.0016),
        ColumnCard(name="n", kind="whole", low=0, high=4),
    )
    shift = torch.tensor([0.0, 0.0016, 2.0], dtype=torch.float64)
    table = {"constants": (torch.tensor([1]), shift[1:2]), "columns": columns}
    save(root, "table", three, Decoder.affine(torch.ones(3).double(), shift, **table), **about)
    save(root, "table-unrounded", three, Decoder.affine(torch.ones(3).double(), shift), **about)
    unet = UNet(UNetConfig(shape=(1, 6, 6), hidden=4, levels=2))
    save(root, "pictures", unet, Decoder.identity((1, 6, 6)), **about)
    labels = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, condition=NamedCondition.label(classes=3)))
    save(root, "labels", labels, Decoder.identity((2,)), **about)
    return root


@dataclass
class Real:
    """A started service and a client for it."""

    http: httpx.AsyncClient
    service: Service

    async def ask(self, model: str, operation: str, status: int = 200, /, **body: Any) -> dict[str, Any]:
        answer = await self.http.post(f"/v1/models/{model}/{operation}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def sample(self, model: str, /, **body: Any) -> dict[str, Any]:
        answer = await self.http.post("/v1/sample", json={"model": model, "trace": "none", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="session")
async def real(kinds: Path, anyio_backend: str) -> AsyncIterator[Real]:
    app = create_app(Settings(models_dir=kinds, watch_s=0, threads=1, max_diagnosed=40, max_derivatives=20_000))
    async with calling(app) as http:
        await asyncio.sleep(0)
        yield Real(http, app.state.service)


@pytest.fixture
def arrays_of(real: Real) -> Callable[..., Awaitable[dict[str, np.ndarray]]]:
    """Request the arrays of an npz response."""

    async def ask(model: str, operation: str, **body: Any) -> dict[str, np.ndarray]:
        headers = {"Accept": "application/x-npz"}
        answer = await real.http.post(f"/v1/models/{model}/{operation}", json=body, headers=headers)
        assert answer.headers["content-type"] == "application/x-npz"
        with np.load(io.BytesIO(answer.content)) as archive:
            return dict(archive)

    return ask
