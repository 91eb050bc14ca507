"""The whole service in one process, with the real engine and a model with known results."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from models.checkpoint.loading import load
from models.noise import noise
from service.app import create_app
from service.settings import Settings, StartError
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def http(repository: Path, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with calling_models(repository) as http:
        yield http


async def _samples(http: httpx.AsyncClient, **ask: Any) -> np.ndarray[Any, Any]:
    answer = await http.post("/v1/sample", json=ask, headers={"Accept": "application/x-npy"})
    assert answer.status_code == 200, answer.text
    return np.load(io.BytesIO(answer.content))


async def test_known_answer(http: httpx.AsyncClient, repository: Path) -> None:
    samples = await _samples(http, model="gaussian", num_samples=64, seed=3, rtol=1e-8, atol=1e-8)
    gaussian: Any = load(repository / "gaussian" / "1").velocity
    exact = gaussian.exact(noise(3, 0, 64, (2,), torch.float64)).numpy()
    assert np.abs(samples - exact).max() < 1e-6


async def test_reported_calls(http: httpx.AsyncClient) -> None:
    for solver, steps, nfe in (("euler", 7, 7), ("midpoint", 7, 14), ("rk4", 7, 28)):
        ask = {"model": "moons", "num_samples": 3, "seed": 0, "solver": solver, "steps": steps}
        body = (await http.post("/v1/sample", json=ask)).json()
        assert (body["nfe"], body["network_rows"], body["status"]) == (nfe, 3 * nfe, "success")


async def test_requests_of_many_kinds_at_once_keep_their_answers(http: httpx.AsyncClient) -> None:
    kinds: list[dict[str, Any]] = [
        {"solver": "euler", "steps": 11},
        {"solver": "rk4", "steps": 4},
        {"solver": "dopri5", "rtol": 1e-4},
        {"solver": "midpoint", "steps": 6},
    ]
    asks = [{"model": "moons", "num_samples": 1 + k, "seed": k, **kinds[k % 4]} for k in range(24)]
    alone = [await _samples(http, **ask) for ask in asks]
    together = await asyncio.gather(*(_samples(http, **ask) for ask in asks))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


async def test_pages_of_one_seed_are_one_stream(http: httpx.AsyncClient) -> None:
    ask = {"model": "digits", "seed": 8, "solver": "dopri5"}
    whole = await _samples(http, num_samples=30, **ask)
    pages = [await _samples(http, num_samples=10, first_index=first, **ask) for first in (0, 10, 20)]
    np.testing.assert_array_equal(np.concatenate(pages), whole)


async def test_there_and_back(http: httpx.AsyncClient) -> None:
    ask = {"model": "gaussian", "num_samples": 2, "rtol": 1e-9, "atol": 1e-9}
    start = [[0.3, -0.2], [1.5, 0.1]]
    there = await _samples(http, x0=start, **ask)
    back = await _samples(http, x0=there.tolist(), t_span=[1, 0], **ask)
    np.testing.assert_allclose(back, start, atol=1e-6)


async def test_saved_states(http: httpx.AsyncClient) -> None:
    ask = {"model": "gaussian", "num_samples": 2, "seed": 0, "save_at": [0.0, 0.5, 1.0]}
    body = (await http.post("/v1/sample", json=ask)).json()
    states = np.array(body["saved"]["states"])
    assert states.shape == (2, 3, 2)
    np.testing.assert_array_equal(states[:, 0], noise(0, 0, 2, (2,), torch.float64).numpy())
    np.testing.assert_array_equal(states[:, 2], np.array(body["samples"]))


async def test_full_trace(http: httpx.AsyncClient) -> None:
    ask = {"model": "moons", "num_samples": 3, "seed": 0, "trace": "full"}
    trace = (await http.post("/v1/sample", json=ask)).json()["trace"]
    for sample in range(3):
        mine = np.array(trace["sample"]) == sample
        taken = np.array(trace["h"])[mine & np.array(trace["accepted"])]
        assert taken.sum() == pytest.approx(1.0)


async def test_out_of_calls(http: httpx.AsyncClient) -> None:
    ask = {"model": "gaussian", "num_samples": 2, "seed": 0, "rtol": 1e-10, "atol": 1e-10, "max_nfe": 30}
    body = (await http.post("/v1/sample", json=ask)).json()
    assert body["status"] == "max_nfe"
    assert [fault["index"] for fault in body["failed"]] == [0, 1]
    assert all(0 < fault["t"] < 1 for fault in body["failed"])
    assert body["nfe"] <= 30


@pytest.mark.parametrize("on_timeout", ["error", "partial"])
async def test_deadline(http: httpx.AsyncClient, on_timeout: str) -> None:
    ask = {
        "model": "digits",
        "num_samples": 10_000,
        "seed": 0,
        "solver": "rk4",
        "steps": 1_000,
        "timeout_s": 0.2,
        "on_timeout": on_timeout,
    }
    answer = await http.post("/v1/sample", json=ask)
    if on_timeout == "error":  # known in advance: the cost of a plan is exact
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["field"] == "timeout_s"
        return
    body = answer.json()
    assert answer.status_code == 200
    assert body["status"] == "deadline"
    assert len(body["failed"]) == 10_000
    assert all(fault["t"] < 1 for fault in body["failed"])


async def test_metrics_tell_of_the_engine(repository: Path) -> None:
    async with calling_models(repository) as http:
        await _samples(http, model="moons", num_samples=5, solver="rk4", steps=2)
        text = (await http.get("/metrics")).text
    assert 'pathline_batch_rows_sum{model="moons",operation="sample"} 40.0' in text
    assert "pathline_active_lanes 0.0" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="the error for a machine without CUDA")
def test_device_that_is_not_there(repository: Path) -> None:
    with pytest.raises(StartError, match="PATHLINE_DEVICE=cuda, but torch finds no CUDA device"):
        create_app(Settings(models_dir=repository, watch_s=0, device="cuda"))


async def test_engine_is_stopped_with_the_application(settings: Settings, engine: Any) -> None:
    app = create_app(settings, engine)
    async with app.router.lifespan_context(app):
        assert engine.alive
    assert not engine.alive


async def test_engine_is_stopped_when_there_is_nothing_to_serve(tmp_path: Path, engine: Any) -> None:
    app = create_app(Settings(models_dir=tmp_path, watch_s=0), engine)
    with pytest.raises(StartError, match="is empty"):
        app.state.service.start()
    assert not engine.alive
