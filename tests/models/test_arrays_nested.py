"""Nested lists become arrays without NumPy guessing their types."""

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

from models.arrays import NestedError, to_floats
from models.messages import shown

LONG = "a" * 30_000
HUGE = 10**400

REFUSED: list[tuple[Any, tuple[int, ...], str]] = [
    ([[0, 1], [2, "x"]], (2, 2), r'x[1][1] is "x"; x must hold numbers only'),
    ([[0, 1], [None, 0]], (2, 2), "x[1][0] is null; x must hold numbers only"),
    ([[0, 1.5], [2, True]], (2, 2), "x[1][1] is true; x must hold numbers only"),
    ([[0, {"a": 1}]], (1, 2), "x[0][1] is an object of 1; x must hold numbers only"),
    ([[0, [1]]], (1, 2), "x[0][1] is a list of 1; x must hold numbers only"),
    ([[[0], [0]], [[0], "b"]], (2, 2, 1), 'x[1][1] is "b"; x must hold numbers only'),
    ([LONG, *[0] * 9], (10, 2), 'x[0] is "aaaa'),
    ([0, 1, 2], (3, 2), "x has the shape [3]; it must be shape [3, 2]"),
    ([[0, 1]], (2, 2), "x has the shape [1, 2]; it must be shape [2, 2]"),
    ([[[0], [1]]], (1, 2), "x[0][0] is a list of 1; x must hold numbers only"),
    ([[0, 1], [2]], (2, 2), "x is ragged: x[1] has 1 entries, not 2"),
    ([[0, 1], 2], (2, 2), "x is ragged: x[1] is 2, not 2"),
    ([], (1, 2), "x has the shape [0]"),
    ([[], []], (2, 2), "x has the shape [2, 0]"),
    (7, (1, 2), "x has the shape []"),
    (LONG, (1, 2), 'x is "aaaa'),
    (None, (1,), "x is null"),
    ({"a": 1}, (1,), "x is an object of 1"),
    ([[0, HUGE]], (1, 2), "x[0][1] is an integer that is too large for a double"),
    ([[0, -HUGE], [0, 0]], (2, 2), "x[0][1] is an integer that is too large for a double"),
]


@pytest.mark.parametrize(("value", "shape", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_refused_is_named_with_its_place(value: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(NestedError, match=re.escape(message)) as caught:
        to_floats(value, shape, "x")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ([1, 2.5, 10**20], (3,)),
        ([[1, 2], [3, 4.0]], (2, 2)),
        (((1, 2), [3, 4]), (2, 2)),
        ([[[1], [2]], [[3], [4]]], (2, 2, 1)),
        ([[2**53 + 1, -(2**63), 0.1]], (1, 3)),
    ],
)
def test_numbers(value: Any, shape: tuple[int, ...]) -> None:
    array = to_floats(value, shape, "x")
    assert array.dtype == np.float64
    assert array.tolist() == np.array(value, dtype=np.float64).tolist()


@pytest.mark.parametrize(
    "value",
    [
        [LONG, *[0.0] * 14_000],
        [[0.0, LONG], *[[0.0, 0.0]] * 14_000],
        [[0.0, 0.0]] * 14_000 + [[0.0, "a" * 10**6]],
        [[0.0, 0.0]] * 14_000 + [[0.0, HUGE]],
        [[0.0, 0.0]] * 14_000 + [[0.0, True]],
        [[0.0, 0.0]] * 14_000 + [[0.0, {}]],
        [[0.0, 0.0]] * 14_000 + [[0.0]],
    ],
)
def test_a_refusal_takes_little_memory(value: list[Any]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(NestedError):
            to_floats(value, (14_001, 2), "x")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # a few times the pointers to 28,002 numbers
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("a", '"a"'),
        ([1, 2], "a list of 2"),
        ({}, "{}"),
        ([], "[]"),
        (HUGE, "an integer of over 200 bits"),
        (LONG, '"' + "a" * 59 + "…"),
        (1.5, "1.5"),
    ],
)
def test_values_are_shown_as_json_has_them(value: Any, text: str) -> None:
    assert shown(value) == text
