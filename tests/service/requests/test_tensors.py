"""Nested lists and arrays of numbers as tensors."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

from service.errors import ProblemError
from service.registry.version import ModelVersion
from service.requests.tensors import to_array


@pytest.mark.parametrize("x0", [[[1, 2], [3, 4]], [[1, 2.0], [3, 4]]])
def test_numbers(x0: Any) -> None:
    array = to_array(x0, (2, 2), torch.float64)
    assert array.dtype == torch.float64
    assert array.tolist() == [[1, 2], [3, 4]]


def test_integers_beyond_64_bits_are_numbers() -> None:
    assert to_array([[10**20, -(10**20)]], (1, 2), torch.float64).tolist() == [[1e20, -1e20]]


def test_more_dimensions() -> None:
    assert to_array([[[1], [2]]], (1, 2, 1), torch.float64).shape == (1, 2, 1)


@pytest.mark.parametrize("x0", [[[True, False]], [[True, 0]], [[1.5, False]], [["1", 2]], [[None, 1]], True, "x"])
def test_what_is_no_number(x0: Any) -> None:
    with pytest.raises(ProblemError, match="numbers only"):
        to_array(x0, (1, 2), torch.float64)


@pytest.mark.parametrize("other", [1, 1.5])
def test_too_large(other: float) -> None:
    with pytest.raises(ProblemError, match="too large for a double"):
        to_array([[10**400, other]], (1, 2), torch.float64)


def test_an_array_gets_the_dtype_of_its_model_without_a_detour(moons: ModelVersion) -> None:
    given = np.zeros((200_000, 2), np.int8)
    tracemalloc.start()
    states = to_array(given, given.shape, moons.dtype)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert states.dtype == torch.float32
    assert taken < 1.1 * 4 * given.size
