"""Log-densities against closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.architectures.analytic import Gaussian, GaussianConfig
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from solvers import SolverError, Status, log_density
from tests.solvers.support import FIFTH_ORDER, Watched, gaussian


def normal(x: Tensor, m: float, s: float) -> Tensor:
    width = x[0].numel()
    return -0.5 * ((x - m) / s).square().flatten(1).sum(1) - width * (math.log(s) + 0.5 * math.log(2 * math.pi))


@pytest.mark.parametrize("dim", [1, 2, 16])
@pytest.mark.parametrize("solver", FIFTH_ORDER)
def test_the_gaussian_field_matches_the_closed_form(dim: int, solver: str) -> None:
    x = 2 + 0.5 * torch.randn(20, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    field = Gaussian(GaussianConfig(dim=dim)).double()
    found = log_density(field, x, solver=solver, rtol=1e-7, atol=1e-7)
    assert found.divergence == "exact"
    assert set(found.status) == {Status.SUCCESS}
    assert (found.log_p - normal(x, 2.0, 0.5)).abs().max() < 1e-5
    assert torch.allclose(found.latent, (x - 2) / 0.5, atol=1e-5)


def test_float32_and_fixed_steps() -> None:
    x = 2 + 0.5 * torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    found = log_density(gaussian, x, rtol=1e-6, atol=1e-6)
    assert found.latent.dtype == torch.float32
    assert found.log_p.dtype == torch.float64
    assert (found.log_p - normal(x.double(), 2.0, 0.5)).abs().max() < 1e-4
    fixed = log_density(gaussian, x, solver="rk4", steps=100)
    assert fixed.nfe.tolist() == [400] * 20
    assert (fixed.log_p - normal(x.double(), 2.0, 0.5)).abs().max() < 1e-4


class Linear(nn.Module):
    """dx/dt = A x with a full matrix: log p(1) is that of N(0, e^A e^A')."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        matrix = torch.randn(dim, dim, generator=torch.Generator().manual_seed(3), dtype=torch.float64) / dim
        self.matrix = nn.Parameter(matrix + torch.eye(dim, dtype=torch.float64) * 0.3)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return x @ self.matrix.T

    def log_p(self, x: Tensor) -> Tensor:
        latent = torch.linalg.solve(torch.matrix_exp(self.matrix.detach()), x.T).T
        return normal(latent, 0.0, 1.0) - self.matrix.detach().trace()


def test_hutchinson_is_exact_on_diagonal_fields() -> None:
    x = 2 + 0.5 * torch.randn(10, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def field(x: Tensor, t: Tensor) -> Tensor:
        return gaussian(x.flatten(1), t).view_as(x)

    found = log_density(field, x, rtol=1e-7, atol=1e-7)
    assert found.divergence == "hutchinson"
    assert found.latent.shape == x.shape
    assert (found.log_p - normal(x, 2.0, 0.5)).abs().max() < 1e-5


def test_hutchinson_is_unbiased_and_its_spread_falls() -> None:
    field, dim, count = Linear(20), 20, 1000
    x = torch.randn(1, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64).expand(count, dim)
    exact = log_density(field, x[:3], divergence="exact").log_p
    assert torch.allclose(exact, field.log_p(x[:3]), atol=1e-4)
    one, eight = (log_density(field, x, probes=probes, seed=7).log_p for probes in (1, 8))
    for estimate in (one, eight):
        assert abs(estimate.mean() - exact[0]) < 4 * estimate.std() / math.sqrt(count)
    assert eight.std().item() == pytest.approx(one.std().item() / math.sqrt(8), rel=0.15)


def test_a_seed_fixes_the_answer_of_each_sample() -> None:
    field = Linear(20)
    x = torch.randn(9, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first = log_density(field, x, seed=5)
    assert torch.equal(log_density(field, x, seed=5).log_p, first.log_p)
    assert not torch.equal(log_density(field, x, seed=6).log_p, first.log_p)
    assert torch.allclose(log_density(field, x[:4], seed=5).log_p, first.log_p[:4], atol=1e-12)


def test_a_network_integrates_to_one() -> None:
    """The density of an untrained network, summed over the plane."""
    torch.manual_seed(0)
    network = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, time_width=8)).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    side = torch.linspace(-8, 8, 81)
    points = torch.cartesian_prod(side, side)
    watched = Watched(network)
    found = log_density(watched, points, rtol=1e-4, atol=1e-4, solver="tsit5")
    assert found.log_p.exp().sum() * (side[1] - side[0]) ** 2 == pytest.approx(1.0, abs=0.02)
    assert watched.calls == found.nfe.max()
    assert watched.rows == found.nfe.sum()
    assert not found.log_p.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_paths_and_densities_in_single(dtype: torch.dtype) -> None:
    """dx/dt = -x from the data back: x grows by e, and log p with it, in steps far below the rounding of half."""
    x = torch.tensor([[1.0, -0.5]], dtype=dtype)
    kinds: set[torch.dtype] = set()

    def field(x: Tensor, t: Tensor) -> Tensor:
        kinds.update((x.dtype, t.dtype))
        return -x

    found = log_density(field, x, solver="euler", steps=1000)
    exact = log_density(lambda x, t: -x, x.double(), solver="euler", steps=1000)
    assert kinds == {dtype}
    assert found.latent.dtype == dtype
    assert found.latent.double()[0].tolist() == pytest.approx(exact.latent[0].tolist(), rel=0.01)
    assert found.log_p.item() == pytest.approx(exact.log_p.item(), abs=0.05)


def test_a_sample_that_fails_has_no_density() -> None:
    def field(x: Tensor, t: Tensor) -> Tensor:
        return torch.where((x > 5) & (t[:, None] < 0.5), math.nan, -x)

    found = log_density(field, torch.tensor([[0.5], [9.0]]))
    assert found.status == (Status.SUCCESS, Status.NON_FINITE)
    assert found.log_p.isnan().tolist() == [False, True]
    assert len(log_density(field, torch.empty(0, 1)).log_p) == 0


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"divergence": "trace"}, "divergence", "unknown divergence 'trace'; use one of auto, exact, hutchinson"),
        ({"probes": 0}, "probes", "at least 1, got 0"),
        ({"probes": 1.5}, "probes", "at least 1, got 1.5"),
        ({"seed": -1}, "seed", r"in \[0, 2\^63\), got -1"),
        ({"seed": 2**63}, "seed", "got 9223372036854775808"),
        ({"solver": "rk4"}, "steps", "rk4 has no error estimate and needs steps"),
        ({"t_span": (1.0, 1.0)}, "t_span", "the ends must differ"),
    ],
)
def test_bad_input(settings: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SolverError, match=words) as caught:
        log_density(gaussian, torch.ones(1, 2), **settings)
    assert caught.value.field == field


def test_bad_fields() -> None:
    with pytest.raises(SolverError, match="must return a tensor like x"):
        log_density(lambda x, t: x[:, :1], torch.ones(3, 2))
    with pytest.raises(SolverError, match="floating-point tensor"):
        log_density(gaussian, torch.ones(3, 2, dtype=torch.int64))
