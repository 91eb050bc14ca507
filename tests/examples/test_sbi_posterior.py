"""The example's posterior: log_prob is the closed form, and the terms of several observations those of a plain loop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from models.noise import noise
from tests.examples.support import load_example
from tests.service.serving import calling_models

pytestmark = pytest.mark.anyio

ONE, OTHER = [0.3, 1.2, -0.1], [0.5, -0.2, 0.4]


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # of torch's run_decompositions
async def test_log_prob_is_the_closed_form_and_observations_are_combined(tmp_path: Path) -> None:
    example = load_example("sbi_posterior")
    estimator = example.LinearGaussian()
    example.imported(tmp_path, estimator)
    request = {"solver": "dopri5", "rtol": 1e-6, "atol": 1e-6, "conditions": {"y": ONE}}
    terms = [{"weight": 1, "conditions": {"y": y}} for y in (ONE, OTHER)]
    async with calling_models(tmp_path) as http:
        one = {"model": "posterior", "num_samples": 200, "seed": 0}
        samples = (await http.post("/v1/sample", json=one | request)).json()["samples"]
        answer = await http.post("/v1/models/posterior/log_prob", json=request | {"samples": samples})
        guidance = {"terms": [*terms, {"weight": -1, "condition": "null"}]}
        both = {"model": "posterior", "num_samples": 5, "seed": 1, "solver": "rk4-8", "guidance": guidance}
        combined = (await http.post("/v1/sample", json=both)).json()
    posterior = estimator.posterior(torch.tensor(ONE))
    closed = posterior.log_prob(torch.tensor(samples))
    np.testing.assert_allclose(answer.json()["log_prob"], closed.numpy(), rtol=0, atol=1e-4)
    error = np.mean(samples, axis=0) - posterior.mean.numpy()
    assert (np.abs(error) < 4 * posterior.stddev.numpy() / 200**0.5).all()

    def velocity(x: Tensor, t: float) -> Tensor:
        at, rows = torch.full((len(x),), t), [torch.tensor([y]).expand(len(x), -1) for y in (ONE, OTHER)]
        return estimator(x, rows[0], at) + estimator(x, rows[1], at) - example.prior_velocity(x, at)

    x, h = noise(1, 0, 5, (example.THETA,)), -1 / 8
    for t in (1 - k / 8 for k in range(8)):
        k1 = velocity(x, t)
        k2 = velocity(x + h / 2 * k1, t + h / 2)
        k3 = velocity(x + h / 2 * k2, t + h / 2)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(x + h * k3, t + h))
    np.testing.assert_allclose(combined["samples"], x.numpy(), rtol=0, atol=1e-5)
    assert combined["network_rows"] == 3 * 5 * 32
