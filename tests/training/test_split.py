import numpy as np
import pytest

from training.dataset import split
from training.errors import DataError


@pytest.mark.parametrize("seed", range(8))
def test_a_class_of_one_is_trained_and_the_held_out_share_is_exact(seed: int):
    labels = np.array([0] * 199 + [1])
    train, held_out = split("data", 200, 0.1, seed, labels)
    assert (len(train), len(held_out)) == (180, 20)
    assert sorted([*train, *held_out]) == list(range(200))
    assert 199 in train


def test_every_class_gives_its_share_and_keeps_a_row():
    labels = np.repeat(np.arange(5), [400, 100, 50, 2, 1])
    train, held_out = split("data", len(labels), 0.1, 0, labels)
    assert np.bincount(labels[held_out], minlength=5).tolist() == [40, 10, 5, 0, 0]
    assert (np.bincount(labels[train]) > 0).all()
    train, held_out = split("data", len(labels), 0.5, 0, labels)
    assert np.bincount(labels[held_out], minlength=5).tolist() == [200, 50, 25, 1, 0]


def test_rows_of_equal_classes_are_held_out_from_random_ones():
    labels = np.arange(100) // 5
    classes = [set(labels[split("data", 100, 0.1, seed, labels)[1]]) for seed in range(4)]
    assert all(len(found) == 10 for found in classes)
    assert len(set().union(*classes)) > 12


def test_both_parts_are_in_random_order():
    labels = np.repeat([0, 1], 500)
    for part in split("data", 1000, 0.5, 0, labels):
        assert 80 < labels[part[:250]].sum() < 170


@pytest.mark.parametrize("seed", range(8))
def test_vectors_that_repeat_are_classes_too(seed: int):
    one_hot = np.eye(2)[[0] * 30 + [1]]
    assert 30 in split("data", 31, 0.4, seed, one_hot)[0]
    assert len(split("data", 31, 0.4, seed, np.arange(31.0)[:, None])[1]) == 12


def test_without_conditions_the_split_is_that_of_one_class():
    for one, other in zip(split("data", 50, 0.2, 3), split("data", 50, 0.2, 3, np.zeros(50, int)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_cannot_be_split_is_refused():
    with pytest.raises(DataError, match=r"^a\.csv has 2 samples; at least 3 are needed"):
        split("a.csv", 2, 0.1, 0)
    with pytest.raises(DataError, match="has 5 samples, each in a class of its own"):
        split("a.csv", 5, 0.1, 0, np.arange(5))
