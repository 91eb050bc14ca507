from pathlib import Path

import numpy as np
import pytest
import torch

from models.noise import noise
from training.config import CONFIGS, Recipe, load_recipe
from training.data import prepare
from training.errors import DataError
from training.evaluation import swd


def shipped(name: str, **changes: object) -> Recipe:
    recipe = load_recipe(CONFIGS / f"{name}.toml")
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=changes)})


@pytest.mark.parametrize(("name", "radius"), [("moons", 2.2), ("circles", 1.3)])
def test_points_are_2000_in_scikit_learns_own_coordinates(name: str, radius: float):
    data = prepare(shipped(name))
    assert data.train.shape == data.reference.shape == (2000, 2)
    assert data.train.dtype == np.float32
    assert 0.9 < np.linalg.norm(data.train, axis=1).max() < radius
    assert data.card["noise"] == 0.05
    assert data.card["sha256"] == data.digest


def test_points_follow_the_seed_and_fresh_ones_differ():
    recipe = shipped("moons")
    data = prepare(recipe)
    assert np.array_equal(data.train, prepare(recipe).train)
    assert not np.array_equal(data.train, prepare(recipe.model_copy(update={"seed": 1})).train)
    assert not np.array_equal(data.train, data.reference)
    assert 0 < swd(data.train, data.reference) < 0.02


def test_digits_are_split_scaled_and_decoded_back():
    from sklearn.datasets import load_digits

    data = prepare(shipped("digits"))
    assert (data.train.shape, data.reference.shape) == ((1536, 64), (261, 64))
    assert (data.train.min(), data.train.max()) == (-1, 1)
    pictures = data.decoder.decode(torch.from_numpy(np.concatenate([data.reference, data.train]))).numpy()
    assert pictures.shape == (1797, 8, 8)
    real = np.asarray(load_digits(return_X_y=True)[0]) / 16
    assert np.array_equal(np.sort(pictures.reshape(1797, 64), axis=0), np.sort(real, axis=0))


def test_pixels_that_no_training_digit_uses_are_decoded_to_black():
    data = prepare(shipped("digits"))
    unused = (data.train == -1).all(0).reshape(8, 8)
    pictures = data.decoder.decode(noise(0, 0, 50, (64,))).numpy()
    assert unused.sum() >= 3
    assert (pictures[:, unused] == 0).all()
    assert (pictures[:, ~unused] > 0).any(0).all()


def test_mnist_latents_decode_to_the_pictures_they_came_from(mnist_dir: Path):
    data = prepare(shipped("mnist", samples=300, components=64), mnist_dir)
    assert data.train.shape == (300, 64)
    assert data.train.std() == pytest.approx(1, rel=1e-5)
    pictures = data.decoder.decode(torch.from_numpy(data.train))
    assert pictures.shape == (300, 28, 28)
    assert 0 <= float(pictures.min()) <= float(pictures.max()) <= 1
    assert 0.5 < data.card["variance_retained"] < 1
    # All of the variance reproduces the pixels themselves, which have a mean of 0.5 here.
    whole = prepare(shipped("mnist", samples=300, components=299), mnist_dir)
    decoded = whole.decoder.decode(torch.from_numpy(whole.train)).reshape(300, -1)
    assert torch.allclose((decoded * 255).round(), decoded * 255, atol=0.02)


def test_too_few_digits_for_the_components(mnist_dir: Path):
    with pytest.raises(DataError, match=r"50 digits are too few for data\.components = 64"):
        prepare(shipped("mnist", samples=50), mnist_dir)


def test_a_class_that_no_training_sample_has_is_refused(mnist_dir: Path):
    with pytest.raises(DataError, match=r"none of the 3 training samples has the label \d, \d"):
        prepare(shipped("mnist_conditional", samples=3, components=2), mnist_dir)
