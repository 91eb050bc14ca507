import pytest
import torch
from scipy.integrate import solve_ivp

from models.architectures.analytic import Gaussian, GaussianConfig, Mixture, MixtureConfig
from models.noise import noise
from models.velocity import VelocityError


@pytest.mark.parametrize(("m", "s"), [(2.0, 0.5), (-1.0, 3.0), (0.0, 1.0)])
def test_the_gaussian_field_integrates_to_its_exact_solution(m: float, s: float) -> None:
    field = Gaussian(GaussianConfig(m=m, s=s))
    x0 = noise(0, 0, 1, (2,), torch.float64)

    def rhs(t: float, x):
        return field(torch.from_numpy(x)[None], torch.tensor([t], dtype=torch.float64))[0].numpy()

    path = solve_ivp(rhs, (0.0, 1.0), x0[0].numpy(), t_eval=[0.3, 1.0], rtol=1e-11, atol=1e-12, method="DOP853")
    torch.testing.assert_close(torch.from_numpy(path.y[:, 0]), field.exact(x0, 0.3)[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(torch.from_numpy(path.y[:, 1]), field.exact(x0)[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(field.exact(x0), m + s * x0)


def test_a_mixture_of_one_is_the_gaussian_with_that_mean() -> None:
    field = Mixture(MixtureConfig(components=1, radius=3.0, s=0.7))
    x, t = noise(1, 0, 50, (2,), torch.float64), torch.linspace(0, 1, 50, dtype=torch.float64)
    mean = torch.tensor([3.0, 0.0], dtype=torch.float64)
    sigma2 = (1 - t) ** 2 + (0.7 * t) ** 2
    expected = mean + ((t * 0.49 - (1 - t)) / sigma2)[:, None] * (x - t[:, None] * mean)
    torch.testing.assert_close(field(x, t), expected)


def test_the_mixture_field_is_the_mean_velocity_of_the_paths_through_a_point() -> None:
    # v(x, t) = E[x1 - x0 | x_t = x], by a weighted average over draws of x1: x0 follows from x_t and x1.
    field = Mixture(MixtureConfig(s=0.5))
    generator = torch.Generator().manual_seed(0)
    which = torch.randint(8, (400_000,), generator=generator)
    x1 = field.means[which] + 0.5 * torch.randn(400_000, 2, generator=generator, dtype=torch.float64)
    x, t = torch.tensor([0.4, -0.9], dtype=torch.float64), 0.45
    x0 = (x - t * x1) / (1 - t)
    weights = (-0.5 * x0.square().sum(1)).softmax(0)
    expected = (weights[:, None] * (x1 - x0)).sum(0)
    found = field(x[None], torch.tensor([t], dtype=torch.float64))[0]
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.03)


def test_the_mixture_is_stable_far_out_and_at_the_ends() -> None:
    field = Mixture()
    x = torch.tensor([[1e6, -1e6], [0.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    for t in (0.0, 0.5, 1.0):
        assert field(x, torch.full((3,), t, dtype=torch.float64)).isfinite().all()


def test_the_mixture_ring_has_eight_separated_modes_of_radius_four() -> None:
    means = Mixture().means
    assert means.shape == (8, 2)
    torch.testing.assert_close(means.norm(dim=1), torch.full((8,), 4.0, dtype=torch.float64))
    assert torch.pdist(means).min() > 3.0


@pytest.mark.parametrize("field", [Gaussian(), Mixture()])
def test_a_condition_is_refused(field: Gaussian | Mixture) -> None:
    x = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(VelocityError, match="unconditional"):
        field(x, torch.zeros(1, dtype=torch.float64), condition=x)
