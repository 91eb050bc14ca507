"""Start states from JSON."""

from typing import Any

import numpy as np
import pytest

from service.errors import ProblemError
from service.requests.arrays import to_array


@pytest.mark.parametrize("x0", [[[1, 2], [3, 4]], [[1, 2.0], [3, 4]]])
def test_numbers(x0: Any) -> None:
    array = to_array(x0, (2, 2))
    assert array.dtype == np.float64
    assert array.tolist() == [[1, 2], [3, 4]]


def test_integers_beyond_64_bits_are_numbers() -> None:
    assert to_array([[10**20, -(10**20)]], (1, 2)).tolist() == [[1e20, -1e20]]


def test_more_dimensions() -> None:
    assert to_array([[[1], [2]]], (1, 2, 1)).shape == (1, 2, 1)


@pytest.mark.parametrize("x0", [[[True, False]], [[True, 0]], [[1.5, False]], [["1", 2]], [[None, 1]], True, "x"])
def test_what_is_no_number(x0: Any) -> None:
    with pytest.raises(ProblemError, match="numbers only"):
        to_array(x0, (1, 2))


@pytest.mark.parametrize("other", [1, 1.5])
def test_too_large(other: float) -> None:
    with pytest.raises(ProblemError, match="too large for a double"):
        to_array([[10**400, other]], (1, 2))
