from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from models.architectures.analytic import Gaussian, GaussianConfig
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.noise import noise
from solvers import SolverError, Status
from solvers.derived import jacobian
from solvers.diagnose import MAX_NUMBERS, MAX_TIMES, MAX_WIDTH, spectrum, stiffness, stiffness_ratio

TIMES = [0.0, 0.3, 0.5, 1.0]


def linear(matrix: list[list[float]]) -> Callable[[Tensor, Tensor], Tensor]:
    a = torch.tensor(matrix, dtype=torch.float64)
    return lambda x, t: (1 + t[:, None]) * (x @ a.T)


def test_a_linear_field_has_its_own_eigenvalues_times_what_multiplies_it():
    found = spectrum(linear([[-3.0, 5.0], [0.0, 1.0]]), noise(0, 0, 3, (2,), torch.float64), TIMES)
    scale = 1 + np.array(TIMES)
    assert found.real.shape == found.imag.shape == (3, 4, 2)
    for sample in range(3):
        np.testing.assert_allclose(found.real[sample], np.outer(scale, [-3.0, 1.0]), rtol=1e-12)
        np.testing.assert_allclose(found.condition[sample], np.linalg.cond([[-3.0, 5.0], [0.0, 1.0]]), rtol=1e-12)
    assert np.all(found.imag == 0)
    assert set(found.status) == {Status.SUCCESS}


def test_a_rotation_has_imaginary_eigenvalues_and_condition_one():
    found = spectrum(linear([[0.0, -2.0], [2.0, 0.0]]), noise(0, 0, 2, (2,), torch.float64), [0.0])
    np.testing.assert_allclose(found.real, 0, atol=1e-14)
    np.testing.assert_allclose(np.sort(found.imag, axis=2)[:, 0], [[-2.0, 2.0]] * 2)
    np.testing.assert_allclose(found.condition, 1)


def test_half_precision_follows_its_paths_in_single():
    def field(x: Tensor, t: Tensor) -> Tensor:
        return torch.where(t[:, None] < 1, torch.ones_like(x), x * x / 2)

    found = spectrum(field, torch.ones(1, 1).bfloat16(), [1.0], solver="euler", steps=1000)
    assert found.real.tolist() == [[[2.0]]]  # the slope where the path ends, at 2


def test_the_gaussian_field_has_its_known_slope_at_every_time():
    s = 0.5
    field = Gaussian(GaussianConfig(dim=3, m=2.0, s=s))
    found = spectrum(field, noise(0, 0, 5, (3,), torch.float64), TIMES, solver="dopri5", steps=None)
    t = np.array(TIMES)
    slope = (t * s**2 - (1 - t)) / ((1 - t) ** 2 + (t * s) ** 2)
    np.testing.assert_allclose(found.real, np.broadcast_to(slope[None, :, None], (5, 4, 3)), rtol=1e-9)


def test_the_jacobian_of_a_network_agrees_with_differences_and_rows_stay_apart():
    torch.manual_seed(0)
    network = ResidualMLP(ResidualMLPConfig(dim=20, hidden=16, blocks=2, time_width=8)).double().eval()
    x = noise(1, 0, 4, (20,), torch.float64)
    t = torch.full((4,), 0.4, dtype=torch.float64)
    found = jacobian(network, x, t)
    step = 1e-6
    for j in range(20):
        shift = torch.zeros(20, dtype=torch.float64)
        shift[j] = step
        with torch.no_grad():
            difference = (network(x + shift, t) - network(x - shift, t)) / (2 * step)
        np.testing.assert_allclose(found[:, :, j], difference.numpy(), atol=1e-8)
    np.testing.assert_allclose(jacobian(network, x[2:3], t[2:3])[0], found[2], rtol=1e-12, atol=1e-14)


def test_pictures_are_flattened():
    found = spectrum(lambda x, t: -x, noise(0, 0, 2, (2, 3)), [1.0])
    np.testing.assert_allclose(found.real, -np.ones((2, 1, 6)), rtol=1e-6)


def test_a_singular_jacobian_has_an_infinite_condition_number():
    found = spectrum(linear([[1.0, 0.0], [0.0, 0.0]]), noise(0, 0, 1, (2,), torch.float64), [0.5])
    assert np.isinf(found.condition).all()


def test_a_path_that_fails_gives_nan_from_there_on_and_spoils_no_other():
    def breaks(x: Tensor, t: Tensor) -> Tensor:
        late = (t[:, None] > 0.6) & (x[:, :1] > 0)
        return torch.where(late, torch.full_like(x, float("nan")), -x)

    x0 = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    found = spectrum(breaks, x0, [0.5, 1.0])
    assert found.status == (Status.NON_FINITE, Status.SUCCESS)
    assert np.isfinite(found.real[0, 0]).all()
    assert np.isnan(found.real[0, 1]).all()
    assert np.isnan(found.condition[0, 1])
    assert np.isfinite(found.real[1]).all()


def test_no_samples_is_a_valid_question():
    assert spectrum(lambda x, t: x, torch.zeros(0, 2), [0.0, 1.0]).real.shape == (0, 2, 2)


@pytest.mark.parametrize(
    ("shape", "times", "match"),
    [
        ((1, MAX_WIDTH + 1), [0.0], f"has {MAX_WIDTH + 1} numbers; spectra allow at most {MAX_WIDTH}"),
        ((1, 2), [], "there are 0 times"),
        ((1, 2), [0.0] * (MAX_TIMES + 1), f"1 to {MAX_TIMES} are allowed"),
        ((MAX_NUMBERS // 64**2 + 1, 64), [0.0], f"at most {MAX_NUMBERS // 64**2} samples"),
    ],
)
def test_what_costs_too_much_is_refused_before_the_field_is_asked(shape: tuple[int, int], times: list[float], match):
    def never(x: Tensor, t: Tensor) -> Tensor:
        raise AssertionError

    with pytest.raises(SolverError, match=match):
        spectrum(never, torch.zeros(shape), times)


def test_times_off_the_grid_are_named():
    with pytest.raises(SolverError, match="not a grid point"):
        spectrum(lambda x, t: x, torch.zeros(1, 2), [0.33], steps=20)


def test_stiffness_is_the_fastest_contraction_and_the_ratio_of_the_ends():
    found = spectrum(linear([[-3.0, 5.0], [0.0, 1.0]]), noise(0, 0, 3, (2,), torch.float64), TIMES)
    scale = 1 + np.array(TIMES)
    np.testing.assert_allclose(stiffness(found.real), np.tile(3.0 * scale, (3, 1)), rtol=1e-12)
    np.testing.assert_allclose(stiffness_ratio(found.real), 3.0, rtol=1e-12)
    growing = spectrum(linear([[2.0, 0.0], [0.0, 0.0]]), noise(0, 0, 1, (2,), torch.float64), [0.5])
    assert stiffness(growing.real).tolist() == [[0.0]]
    assert np.isinf(stiffness_ratio(growing.real)).all()
