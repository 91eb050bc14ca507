"""Jacobians along the path against known slopes, and against the offline function."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from models.checkpoint.loading import load
from models.noise import noise
from solvers.diagnose import spectrum, stiffness

from .conftest import Real

pytestmark = pytest.mark.anyio


async def test_the_gaussian_field_has_its_known_eigenvalues(real: Real) -> None:
    found = await real.ask("gaussian", "diagnose", num_samples=3, seed=0)
    t, s = np.array(found["times"]), 0.5
    assert t.tolist() == [k / 10 for k in range(11)]
    slope = (t * s**2 - (1 - t)) / ((1 - t) ** 2 + (t * s) ** 2)
    known = np.broadcast_to(slope[None, :, None], (3, 11, 2))
    np.testing.assert_allclose(found["eigenvalues_real"], known, rtol=1e-12)
    assert np.all(np.array(found["eigenvalues_imag"]) == 0)
    np.testing.assert_allclose(found["condition_number"], 1.0)
    np.testing.assert_allclose(found["stiffness"], np.maximum(0, -known[:, :, 0]), rtol=1e-12)
    np.testing.assert_allclose(found["stiffness_ratio"], 1.0)
    assert found["solver"] == {"name": "rk4", "steps": 20, "grid": "uniform", "max_nfe": 10_000, "text": "rk4-20"}
    assert (found["nfe"], found["shape"]) == (80, [3, 11, 2])
    assert found["network_rows"] == 3 * 80 + 3 * 11 * 2


@pytest.mark.parametrize(("model", "shape"), [("net", (2,)), ("pictures", (1, 6, 6))])
async def test_results_equal_those_of_the_offline_function(real: Real, model: str, shape: tuple[int, ...]) -> None:
    times = [0.0, 0.5]
    found = await real.ask(model, "diagnose", num_samples=2, seed=4, first_index=3, times=times)
    velocity = load(real.service.settings.models_dir / model / "1").velocity
    offline = spectrum(velocity, noise(4, 3, 2, shape), times)
    np.testing.assert_allclose(found["eigenvalues_real"], offline.real, atol=2e-4)
    np.testing.assert_allclose(found["condition_number"], offline.condition, rtol=0.05)
    np.testing.assert_allclose(found["stiffness"], stiffness(offline.real), atol=2e-4)


async def test_sample_i_does_not_depend_on_the_number_of_samples(real: Real) -> None:
    many = await real.ask("net", "diagnose", num_samples=9, seed=1, times=[0.3])
    one = await real.ask("net", "diagnose", num_samples=1, seed=1, first_index=8, times=[0.3])
    for name in ("eigenvalues_real", "eigenvalues_imag", "condition_number"):
        assert one[name][0] == many[name][8]
    assert one["deterministic"] is True


async def test_other_solvers_and_given_starts(real: Real) -> None:
    body: dict[str, Any] = {"num_samples": 2, "x0": [[0.1, 0.2], [0.3, 0.4]]}
    adaptive = await real.ask("net", "diagnose", solver="dopri5", rtol=1e-6, atol=1e-6, times=[0.123, 0.9], **body)
    assert adaptive["solver"]["name"] == "dopri5"
    fixed = await real.ask("net", "diagnose", solver="rk4", steps=1000, times=[0.123, 0.9], **body)
    np.testing.assert_allclose(adaptive["eigenvalues_real"], fixed["eigenvalues_real"], atol=1e-3)


async def test_conditions(real: Real) -> None:
    x0 = [[0.1, 0.2]] * 2
    body: dict[str, Any] = {"num_samples": 2, "x0": x0, "times": [0.0]}
    found = await real.ask("labels", "diagnose", condition=[0, 1], **body)
    assert found["eigenvalues_real"][0] != found["eigenvalues_real"][1]
    guided = await real.ask("labels", "diagnose", condition=[0, 1], guidance=3.0, **body)
    assert guided["eigenvalues_real"] != found["eigenvalues_real"]
    assert guided["network_rows"] == 2 * found["network_rows"]


async def test_a_path_that_ends_early_has_no_jacobian_after_it(real: Real) -> None:
    found = await real.ask(
        "net", "diagnose", num_samples=1, seed=0, solver="dopri5", rtol=1e-6, max_nfe=20, times=[0.0, 1.0]
    )
    assert found["status"] == "max_nfe"
    assert found["eigenvalues_real"][0][0][0] is not None
    assert found["eigenvalues_real"][0][1] == [None, None]
    assert found["condition_number"][0][1] is None


@pytest.mark.parametrize(
    "times", [[0.0, *accumulate([0.1] * 10)], np.array(range(11), dtype=np.float32) / np.float32(10)], ids=str
)
async def test_rounded_times_snap_to_their_grid_points(real: Real, times: Any) -> None:
    body: dict[str, Any] = {"num_samples": 1, "seed": 0}
    found = await real.ask("net", "diagnose", **body, times=list(map(float, times)))
    exact = await real.ask("net", "diagnose", **body)
    assert found["times"] == exact["times"]
    assert found["eigenvalues_real"] == exact["eigenvalues_real"]


@pytest.mark.parametrize(
    ("model", "body", "field", "match"),
    [
        ("net", {"num_samples": 41}, "num_samples", "over the limit of 40 samples in one diagnosis"),
        ("pictures", {"num_samples": 5}, "num_samples", "over the limit of 20000"),
        ("net", {"times": [0.0, 0.512]}, "times", "the nearest is 0.5"),
        ("net", {"times": [0.5, 0.5]}, "times", "must move strictly"),
        ("net", {"times": [2.0]}, "times", "outside the span"),
        ("net", {"times": []}, "times", "at least 1"),
        ("net", {"times": [k / 1001 for k in range(1001)]}, "times", "over the limit of 1000"),
        ("net", {"steps": 100_000}, "steps", "over the limit of 10000"),
        ("net", {"num_samples": 1, "x0": [[1.0]]}, "x0", "must be (num_samples, *event_shape)"),
        ("net", {"save_at": [0.5]}, "save_at", "unknown field"),
        ("net", {"rtol": 1e-3}, "rtol", "rk4"),
        ("net", {"first_index": 3, "solver": "dopri5", "error_control": "batch"}, "first_index", "use first_index 0"),
    ],
)
async def test_refusals(real: Real, model: str, body: dict[str, Any], field: str, match: str) -> None:
    found = await real.ask(model, "diagnose", 422, **body)
    assert found["errors"][0]["field"] == field
    assert match in found["detail"]


async def test_npz(real: Real, arrays_of: Callable[..., Any]) -> None:
    found = await arrays_of("gaussian", "diagnose", num_samples=2, seed=0, times=[0.0, 1.0])
    assert found["eigenvalues_real"].shape == (2, 2, 2)
    names = {"eigenvalues_real", "eigenvalues_imag", "condition_number", "stiffness", "stiffness_ratio", "meta"}
    assert set(found) == names
