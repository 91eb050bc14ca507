"""A posterior of simulation-based inference: an estimator called like sbi's FMPE, served with samples and log_prob.

sbi's `FMPE(prior).train()` returns an estimator that is called as estimator(theta, y, t), with data at t = 0 and noise
at t = 1. `Posterior` wraps it for the export; where an observation is missing it returns the velocity of the prior,
N(0, 1), so that several observations can be combined. The estimator of this script is exact: y is a linear function of
theta with Gaussian noise, so log_prob can be compared with the closed form.

    PATHLINE_ALLOW_PROGRAMS=true python examples/sbi_posterior.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from models.importing.declared import Declared
from models.importing.weights import import_program

THETA, Y = 2, 3
MIX = torch.tensor([[1.0, 0.5], [-0.4, 0.8], [0.3, 0.3]])
DEVIATION = 0.5
CONDITIONS = {"y": {"null": {"flag": "missing"}}}


def prior_velocity(theta: Tensor, t: Tensor) -> Tensor:
    """Return the velocity (rows, THETA) between a prior N(0, 1) at t = 0 and noise N(0, 1) at t = 1."""
    return ((2 * t - 1) / ((1 - t) ** 2 + t**2))[:, None] * theta


class LinearGaussian(nn.Module):
    """The exact estimator for theta ~ N(0, 1) and y ~ N(MIX theta, DEVIATION^2); yours is trained."""

    axes: Tensor
    variances: Tensor
    gain: Tensor

    def __init__(self) -> None:
        super().__init__()
        covariance = torch.linalg.inv(torch.eye(THETA) + MIX.T @ MIX / DEVIATION**2)
        variances, axes = torch.linalg.eigh(covariance)
        self.register_buffer("axes", axes.contiguous())
        self.register_buffer("variances", variances)
        self.register_buffer("gain", covariance @ MIX.T / DEVIATION**2)

    def forward(self, theta: Tensor, y: Tensor, t: Tensor) -> Tensor:
        """Return E[noise - data | state] (rows, THETA) for states theta (rows, THETA), y (rows, Y) and t (rows,)."""
        t, mean = t[:, None], y @ self.gain.T
        factor = (t - (1 - t) * self.variances) / ((1 - t) ** 2 * self.variances + t**2)
        return (theta - (1 - t) * mean) @ self.axes * factor @ self.axes.T - mean

    def posterior(self, y: Tensor) -> torch.distributions.MultivariateNormal:
        """Return the closed form for one observation (Y,)."""
        covariance = self.axes * self.variances @ self.axes.T
        return torch.distributions.MultivariateNormal(self.gain @ y, covariance)


class Posterior(nn.Module):
    """The velocity of theta: the estimator's, or the prior's where the observation is missing."""

    def __init__(self, estimator: nn.Module) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, x: Tensor, t: Tensor, y: Tensor, missing: Tensor) -> Tensor:
        """Return velocities (rows, THETA), given whether each y (rows, Y) is missing, (rows,) bool."""
        return torch.where(missing[:, None], prior_velocity(x, t), self.estimator(x, y, t))


def imported(repository: Path, estimator: nn.Module) -> Path:
    """Export an estimator and import it as the model `posterior`; return its checkpoint."""
    network, rows = Posterior(estimator).eval().requires_grad_(False), torch.export.Dim("rows", min=1, max=8192)
    arguments = torch.randn(4, THETA), torch.rand(4), torch.randn(4, Y), torch.zeros(4, dtype=torch.bool)
    sbi = Declared(noise_at=1, scale=1.0, sign=1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "posterior.pt2"
        program = torch.export.export(network, arguments, dynamic_shapes=({0: rows},) * 4)
        torch.export.save(program.run_decompositions(), file)  # sbi's embedding of times fills a tensor in place
        inputs = ["x", "t", "y", "missing"]
        more = {"inputs": inputs, "conditions": CONDITIONS, "declared": sbi}
        return import_program(file, repository, "posterior", (THETA,), **more).path


def main() -> int:
    """Import the model and print how to request its posterior."""
    repository = Path(tempfile.mkdtemp()) / "checkpoints"
    print(f"saved: {imported(repository, LinearGaussian())}", "Serve it:", sep="\n")
    print(f"  PATHLINE_ALLOW_PROGRAMS=true PATHLINE_MODELS_DIR={repository} python -m service")
    print("Samples and their log-density, given one observation:")
    print('  client.sample("posterior", 1000, conditions={"y": [0.3, 1.2, -0.1]})')
    print('  client.log_prob("posterior", samples, conditions={"y": [0.3, 1.2, -0.1]})')
    print("Given two, independent of each other: the sum of both velocities, less that of the prior:")
    print('  terms = [{"weight": 1, "conditions": {"y": y}} for y in observations]')
    print('  client.sample("posterior", 1000, guidance={"terms": [*terms, {"weight": -1, "condition": "null"}]})')
    return 0


if __name__ == "__main__":
    sys.exit(main())
