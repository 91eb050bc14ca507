"""`encode`, `log_prob` and `diagnose` of both clients, against the real service in this process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from pathline import (
    AsyncClient,
    Client,
    DiagnoseResult,
    EncodeResult,
    InvalidRequest,
    InvalidValue,
    LogProbResult,
    NotFound,
)

from models.architectures.analytic import Gaussian, GaussianConfig
from models.checkpoint.saving import save
from models.decoder import Decoder
from service.app import create_app
from service.settings import Settings

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}


class Bridge(httpx.BaseTransport):
    """Passes requests of a blocking client to an application that runs in another thread."""

    def __init__(self, portal: BlockingPortal, inner: httpx.ASGITransport) -> None:
        self._portal, self._inner = portal, inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._portal.call(self._handle, request)

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        sent = httpx.Request(request.method, request.url, headers=request.headers, content=request.content)
        answer = await self._inner.handle_async_request(sent)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, AsyncClient, BlockingPortal]]:
    root: Path = tmp_path_factory.mktemp("checkpoints")
    save(root, "gaussian", Gaussian(GaussianConfig()), Decoder.identity((2,)), dataset={}, training={}, seed=0)
    app = create_app(Settings(models_dir=root, watch_s=0, device="cpu", threads=1))
    transport = httpx.ASGITransport(app)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
        Client("http://service", transport=Bridge(portal, transport)) as client,
    ):
        yield client, AsyncClient("http://service", transport=transport), portal


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, clients: tuple[Client, AsyncClient, BlockingPortal]) -> Any:
    """Call a method of either client by name."""
    client, other, portal = clients

    def call(name: str, *arguments: Any, **options: Any) -> Any:
        if request.param == "sync":
            return getattr(client, name)(*arguments, **options)

        async def sent() -> Any:
            return await getattr(other, name)(*arguments, **options)

        return portal.call(sent)

    return call


def test_a_round_trip(ask: Any) -> None:
    drawn = ask("sample", "gaussian", 7, seed=0, **TIGHT)
    found: EncodeResult = ask("encode", "gaussian", drawn.samples, **TIGHT)
    np.testing.assert_allclose(found.x0, (drawn.samples - 2.0) / 0.5, atol=1e-7)
    again = ask("sample", "gaussian", x0=found.x0, **TIGHT)
    np.testing.assert_allclose(again.samples, drawn.samples, atol=1e-7)
    assert found.ok
    assert found.residual is None
    assert (found.model, found.version, found.failed) == ("gaussian", 1, ())
    assert found.latency.total_s
    assert repr(found).startswith("EncodeResult(noise of 7 samples of gaussian v1 by dopri5@1e-9, nfe=")


def test_log_densities(ask: Any) -> None:
    data = np.array([[2.0, 2.0], [1.0, 3.0]])
    found: LogProbResult = ask("log_prob", "gaussian", data, **TIGHT)
    z = (data - 2.0) / 0.5
    expected = (-0.5 * z**2 - math.log(0.5) - 0.5 * math.log(2 * math.pi)).sum(axis=1)
    np.testing.assert_allclose(found.log_prob, expected, atol=1e-5)
    assert found.divergence == {"method": "exact"}
    assert found.standard_error is None
    estimate = ask("log_prob", "gaussian", data, divergence="hutchinson", probes=3, seed=5, **TIGHT)
    assert estimate.divergence == {"method": "hutchinson", "probes": 3, "seed": 5}
    assert estimate.standard_error.shape == (2,)
    assert repr(found).startswith("LogProbResult(2 log-densities of gaussian v1")


def test_diagnosis(ask: Any) -> None:
    found: DiagnoseResult = ask("diagnose", "gaussian", 3, seed=1, times=np.array([0.0, 0.5, 1.0]))
    t = found.times
    slope = (t * 0.25 - (1 - t)) / ((1 - t) ** 2 + t**2 * 0.25)
    np.testing.assert_allclose(found.eigenvalues, np.broadcast_to(slope[None, :, None], (3, 3, 2)), rtol=1e-12)
    np.testing.assert_allclose(found.stiffness[0], np.maximum(0.0, -slope))
    np.testing.assert_allclose(found.condition_number, 1.0)
    np.testing.assert_allclose(found.stiffness_ratio, 1.0)
    assert (found.seed, found.first_index) == (1, 0)
    assert repr(found).startswith("DiagnoseResult(3 samples at 3 times of gaussian v1 by rk4-20")
    given = ask("diagnose", "gaussian", x0=np.zeros((2, 2)), times=[0.0])
    assert given.eigenvalues.shape == (2, 1, 2)


def test_what_is_wrong(ask: Any) -> None:
    with pytest.raises(NotFound):
        ask("encode", "nothing", [[0.0, 0.0]])
    with pytest.raises(InvalidRequest, match="samples has the shape"):
        ask("log_prob", "gaussian", [[0.0]])
    with pytest.raises(InvalidValue, match=r"samples\[0\]\[1\]=nan is not finite"):
        ask("encode", "gaussian", [[0.0, float("nan")]])
    with pytest.raises(TypeError, match="did you mean 'rtol'"):
        ask("diagnose", "gaussian", rtoll=1e-3)
    with pytest.raises(InvalidValue, match="seed=-1"):
        ask("diagnose", "gaussian", seed=-1)
    with pytest.raises(ValueError, match="cannot be the name of a model"):
        ask("encode", "..", [[0.0, 0.0]])


def test_every_member_of_the_service_can_be_sent() -> None:
    from pathline._request import SolverOptions

    from service.analysis.diagnose import DiagnoseRequest
    from service.analysis.encode import EncodeRequest
    from service.analysis.log_prob import LogProbRequest

    own = {
        EncodeRequest: {"samples", "decode"},
        LogProbRequest: {"samples", "decode", "divergence", "probes", "seed"},
        DiagnoseRequest: {"num_samples", "times", "seed", "first_index", "x0"},
    }
    for body, extra in own.items():
        assert set(SolverOptions.__annotations__) | extra == set(body.model_fields)
