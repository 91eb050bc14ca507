"""A new user's table of houses, and pictures of shapes: trained in seconds, samples are like the data."""

from pathlib import Path

import numpy as np

from models.checkpoint.loading import load
from studies.own_data import c2st, houses, judge, samples_of, shapes, train


def test_samples_of_houses_are_like_houses(tmp_path: Path) -> None:
    path, _ = train(tmp_path, "houses", quick=True)
    share, correlations = judge(path, "houses")
    assert share < 0.65
    assert correlations < 0.05
    rooms, garden, _, price = samples_of(load(path), 500).T
    assert set(np.unique(rooms)) <= set(range(1, 8))
    assert set(np.unique(garden)) == {0.0, 1.0}
    assert price.min() > 0
    assert [column.transform for column in load(path).card.decoder.columns or ()] == [None, None, None, "log"]


def test_samples_of_shapes_are_like_shapes(tmp_path: Path) -> None:
    path, _ = train(tmp_path, "shapes", quick=True)
    assert judge(path, "shapes", 250)[0] < 0.65


def test_the_judge_of_the_study_tells_other_data_from_these() -> None:
    assert c2st(houses(300, 1), houses(300, 2)) < 0.58
    shuffled = np.random.default_rng(0).permuted(houses(300, 1), axis=0)
    assert c2st(shuffled, houses(300, 2)) > 0.7, "columns without their correlations"
    pictures = shapes(150, 1)[0]
    assert c2st(pictures, shapes(150, 3)[0]) < 0.6
    assert c2st(pictures[:, ::-1], shapes(150, 3)[0]) > 0.6, "triangles upside down"
