"""Log-densities against closed forms."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from models.checkpoint.loading import load
from solvers import log_density

from .conftest import Real

pytestmark = pytest.mark.anyio

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def normal(x: np.ndarray, mean: float | np.ndarray, deviation: float | np.ndarray) -> np.ndarray:
    """Log-density of independent normal coordinates."""
    z = (x - mean) / deviation
    return (-0.5 * z**2 - np.log(deviation) - 0.5 * math.log(2 * math.pi)).sum(axis=1)


async def test_a_gaussian_has_its_closed_form(real: Real) -> None:
    data = np.random.default_rng(0).normal(2.0, 0.7, (30, 2))
    found = await real.ask("gaussian", "log_prob", samples=data.tolist(), **TIGHT)
    np.testing.assert_allclose(found["log_prob"], normal(data, 2.0, 0.5), rtol=0, atol=1e-5)
    assert found["divergence"] == {"method": "exact"}
    assert found["shape"] == [30]
    assert "standard_error" not in found
    assert found["deterministic"] is True


async def test_a_mixture_has_its_closed_form(real: Real) -> None:
    data = np.random.default_rng(1).normal(0.0, 3.0, (10, 2))
    found = await real.ask("mixture", "log_prob", samples=data.tolist(), **TIGHT)
    turn = 2 * np.pi * np.arange(8) / 8
    means = 4.0 * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    exact = np.logaddexp.reduce([normal(data, mean, 0.3) for mean in means]) - math.log(8)
    np.testing.assert_allclose(found["log_prob"], exact, rtol=1e-6, atol=1e-5)


async def test_scaling_changes_the_density_of_data(real: Real) -> None:
    """Data are scale * state + shift with states N(0.5, 0.5^2)."""
    scale, shift = np.array([2.0, 0.5, 1.0]), np.array([1.0, 0.0, -1.0])
    data = np.random.default_rng(2).normal(0.0, 1.0, (5, 3))
    found = await real.ask("scaled", "log_prob", samples=data.tolist(), **TIGHT)
    np.testing.assert_allclose(found["log_prob"], normal(data, 0.5 * scale + shift, 0.5 * scale), atol=1e-5)
    states = ((data - shift) / scale).tolist()
    latent = await real.ask("scaled", "log_prob", samples=states, decode=False, **TIGHT)
    np.testing.assert_allclose(np.subtract(latent["log_prob"], found["log_prob"]), np.log(scale).sum(), atol=1e-6)


async def test_components_have_a_density_in_the_space_that_they_span(real: Real) -> None:
    data = (await real.sample("components", num_samples=4, seed=0, **TIGHT))["samples"]
    states = (await real.sample("components", num_samples=4, seed=0, decode=False, **TIGHT))["samples"]
    found = await real.ask("components", "log_prob", samples=data, **TIGHT)
    expected = normal(np.array(states), 0.5, 0.5) - 3 * math.log(2.0)
    np.testing.assert_allclose(found["log_prob"], expected, atol=1e-5)


async def test_results_equal_the_offline_function_and_do_not_depend_on_neighbours(real: Real) -> None:
    data = [[0.3, -0.2], [1.0, 1.0], [-0.4, 0.9]]
    found = await real.ask("net", "log_prob", samples=data)
    net = load(real.service.settings.models_dir / "net" / "1")
    offline = log_density(net.velocity, torch.tensor(data))
    np.testing.assert_allclose(found["log_prob"], offline.log_p.numpy(), atol=1e-3)
    assert found["nfe"] == offline.nfe.max()
    alone = await real.ask("net", "log_prob", samples=data[2:])
    assert alone["log_prob"] == found["log_prob"][2:]


async def test_an_estimate_is_close_and_reports_its_standard_error(real: Real) -> None:
    data = [[0.3, -0.2], [1.0, 1.0]]
    exact = np.array((await real.ask("net", "log_prob", samples=data, rtol=1e-4, atol=1e-4))["log_prob"])
    body: dict[str, Any] = {"divergence": "hutchinson", "probes": 200, "rtol": 1e-3, "atol": 1e-3}
    found = await real.ask("net", "log_prob", samples=data, seed=0, **body)
    error = np.array(found["standard_error"])
    assert np.all(error > 0)
    assert np.all(np.abs(found["log_prob"] - exact) < 5 * error + 0.01)
    assert found["divergence"] == {"method": "hutchinson", "probes": 200, "seed": 0}
    assert found["network_rows"] > 200 * found["nfe_per_sample"]["min"]
    again = await real.ask("net", "log_prob", samples=data[:1], seed=0, **body)
    assert again["log_prob"] == found["log_prob"][:1]
    other = await real.ask("net", "log_prob", samples=data[:1], seed=1, **body)
    assert other["log_prob"] != found["log_prob"][:1]


async def test_pictures_get_an_estimate(real: Real) -> None:
    data = np.random.default_rng(3).normal(0.0, 1.0, (2, 1, 6, 6)).tolist()
    solver = {"solver": "rk4", "steps": 2}
    found = await real.ask("pictures", "log_prob", samples=data, seed=0, **solver)
    assert found["divergence"] == {"method": "hutchinson", "probes": 1, "seed": 0}
    assert found["nfe"] == 8
    checked = await real.ask("pictures", "log_prob", samples=data, divergence="exact", **solver)
    assert np.all(np.isfinite(checked["log_prob"]))
    np.testing.assert_allclose(found["log_prob"], checked["log_prob"], atol=60.0)  # one probe of 36 numbers


async def test_conditions_and_guidance(real: Real) -> None:
    data = [[1.0, 0.5]] * 2
    body: dict[str, Any] = {"samples": data, "solver": "rk4", "steps": 4}
    first = await real.ask("labels", "log_prob", condition=[0, 2], **body)
    assert first["log_prob"][0] != first["log_prob"][1]
    off = await real.ask("labels", "log_prob", condition=[0, 2], guidance=0.0, **body)
    null = await real.ask("labels", "log_prob", **body)
    assert off["log_prob"] == null["log_prob"]
    guided = await real.ask("labels", "log_prob", condition=[0, 2], guidance=2.0, **body)
    assert guided["network_rows"] == 2 * first["network_rows"]
    probes = await real.ask(
        "labels", "log_prob", condition=[0, 2], divergence="hutchinson", probes=3, seed=0, guidance=2.0, **body
    )
    assert len(probes["standard_error"]) == 2


async def test_one_error_norm_for_all_samples(real: Real) -> None:
    found = await real.ask("gaussian", "log_prob", samples=[[2.0, 2.0], [9.0, 9.0]], error_control="batch", **TIGHT)
    np.testing.assert_allclose(found["log_prob"], normal(np.array([[2.0, 2.0], [9.0, 9.0]]), 2.0, 0.5), rtol=1e-6)


async def test_a_sample_that_does_not_reach_the_end_has_no_density(real: Real) -> None:
    found = await real.ask("net", "log_prob", samples=[[0.0, 0.0]], max_nfe=9, rtol=1e-6, atol=1e-6)
    assert found["log_prob"] == [None]
    assert found["status"] == "max_nfe"


@pytest.mark.parametrize(
    ("model", "body", "field", "match"),
    [
        ("net", {"samples": [[0, 0]], "probes": 2}, "probes", "which needs none"),
        ("net", {"samples": [[0, 0]], "probes": 0}, "probes", "greater than or equal to 1"),
        ("net", {"samples": [[0, 0]] * 500, "divergence": "hutchinson", "probes": 256}, "probes", "128000 paths"),
        (
            "net",
            {"samples": [[0, 0]] * 101, "divergence": "hutchinson", "probes": 100},
            "samples",
            "at most 100 samples",
        ),
        ("net", {"samples": [[0, 0]], "divergence": "guess"}, "divergence", "'auto', 'exact' or 'hutchinson'"),
        ("net", {"samples": [[0, 0]], "seed": -1}, "seed", "greater than or equal to 0"),
    ],
)
async def test_refusals(real: Real, model: str, body: dict[str, Any], field: str, match: str) -> None:
    found = await real.ask(model, "log_prob", 422, **body)
    assert found["errors"][0]["field"] == field
    assert match in found["detail"]


async def test_npz(real: Real, arrays_of: Callable[..., Any]) -> None:
    found = await arrays_of("gaussian", "log_prob", samples=[[2.0, 2.0]], divergence="hutchinson", probes=2, seed=0)
    assert set(found) == {"log_prob", "standard_error", "meta"}
    assert found["log_prob"].dtype == np.float64


async def test_data_far_from_zero_have_the_density_of_their_states_over_the_volume(real: Real) -> None:
    data = (await real.sample("far", num_samples=4, seed=0))["samples"]
    states = (await real.sample("far", num_samples=4, seed=0, decode=False))["samples"]
    found = await real.ask("far", "log_prob", samples=data)
    same = await real.ask("net", "log_prob", samples=states)
    np.testing.assert_allclose(found["log_prob"], np.array(same["log_prob"]) - np.log(0.1), atol=1e-3)
