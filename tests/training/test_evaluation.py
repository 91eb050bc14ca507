import numpy as np
import ot
import pytest
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor, nn

from models.decoder import Decoder
from training.dataset import DataSet
from training.errors import TrainingError
from training.evaluation import evaluate, swd

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("n", "m"), [(50, 50), (50, 73), (7, 1), (3, 9)])
def test_one_dimension_agrees_with_scipy_for_any_two_sizes(n: int, m: int):
    a, b = RNG.normal(size=(n, 1)), RNG.normal(1, 2, size=(m, 1))
    assert swd(a, b, projections=3) == pytest.approx(wasserstein_distance(a[:, 0], b[:, 0]), rel=1e-12)


def test_identical_samples_in_any_order_have_distance_zero():
    a = RNG.normal(size=(40, 2, 3))
    assert swd(a, a[::-1]) == pytest.approx(0, abs=1e-12)


def test_a_shift_in_the_plane_costs_its_length_times_two_over_pi():
    a = RNG.normal(size=(30, 2))
    assert swd(a, a + np.array([3.0, 4.0]), projections=20_000) == pytest.approx(5 * 2 / np.pi, rel=0.01)


def test_symmetric_and_seeded():
    a, b = RNG.normal(size=(2, 20, 3))
    assert swd(a, b, seed=4) == pytest.approx(swd(b, a, seed=4))
    assert swd(a, b, seed=4) != swd(a, b, seed=5)


@pytest.mark.parametrize(
    ("a", "b", "match"),
    [
        (np.zeros((0, 2)), np.zeros((3, 2)), "shapes"),
        (np.zeros((3, 2)), np.zeros((3, 3)), "shapes"),
        (np.full((3, 2), np.nan), np.zeros((3, 2)), "finite"),
    ],
)
def test_bad_samples_are_refused(a: np.ndarray, b: np.ndarray, match: str):
    with pytest.raises(ValueError, match=match):
        swd(a, b)


class Constant(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.full_like(x, self.value)


def normal_data(mean: float) -> DataSet:
    data = RNG.normal(mean, 1, size=(3, 400, 2)).astype(np.float32)
    return DataSet(data[0], data[1], data[2], "400 points", Decoder.identity((2,)))


def test_evaluate_scores_the_right_field_like_real_data_and_a_wrong_one_badly():
    data = normal_data(3)
    right, wrong = evaluate(Constant(3.0), data, 0), evaluate(Constant(0.0), data, 0)
    assert right.samples == 400
    assert right.failed == 0
    assert right.swd < 3 * right.swd_real
    assert wrong.swd > 20 * wrong.swd_real
    assert 0 < right.nfe_mean <= right.nfe_max


def test_evaluate_refuses_a_network_that_brings_no_sample_to_the_end():
    with pytest.raises(TrainingError, match="none of 400 samples"):
        evaluate(Constant(float("nan")), normal_data(0), 0)


def test_swd_is_that_of_pot() -> None:
    """Python Optimal Transport, given the same directions."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((50, 3)), rng.standard_normal((70, 3)) + 0.3
    directions = np.random.default_rng(7).standard_normal((3, 40))
    directions /= np.linalg.norm(directions, axis=0)
    theirs = ot.sliced_wasserstein_distance(a, b, projections=directions, p=1)
    assert swd(a, b, projections=40, seed=7) == pytest.approx(theirs, rel=1e-12)
