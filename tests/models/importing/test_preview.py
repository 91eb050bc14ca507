"""Previews of samples as text."""

import numpy as np
import pytest

from models.importing.preview import sketch


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (3, 8, 8)])
def test_pictures_side_by_side(shape: tuple[int, ...]) -> None:
    samples = np.zeros((3, *shape))
    samples[..., 0] = 1.0  # a bright vertical line on the left
    lines = sketch(samples).splitlines()
    assert lines == ["@         @         @"] * 8


def test_density_has_the_point_where_it_is() -> None:
    points = np.concatenate([np.full((50, 2), 1.0), np.full((1, 2), -1.0)])
    lines = sketch(points).splitlines()
    assert lines[0].endswith("@")
    assert lines[-1].startswith(":")


def test_vectors_and_nothing_finite() -> None:
    assert sketch(np.ones((2, 3))) == "   1.000    1.000    1.000\n   1.000    1.000    1.000"
    assert sketch(np.full((2, 3), np.nan)) == "(no finite sample)"
