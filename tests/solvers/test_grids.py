"""Time grids: shapes, exact ends, and every kind of bad input."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers import SolverError, integrate
from solvers.grids import GRIDS, normalise, times
from tests.solvers.support import decay, ones

NAMED: list[Any] = [
    "uniform",
    {"name": "shift", "value": 3.0},
    {"name": "shift", "value": 0.25},
    "sway",
    {"name": "sway", "coefficient": 0.5},
    {"name": "power", "exponent": 2.0},
    "logit_normal",
    {"name": "logit_normal", "mean": -1.0, "std": 0.5},
    "karras",
    {"name": "karras", "rho": 2.0, "sigma_min": 0.05, "sigma_max": 10.0},
]


@pytest.mark.parametrize("grid", NAMED, ids=str)
def test_grids_have_exact_ends_and_move_strictly(grid: Any) -> None:
    for span, steps in product([(0.0, 1.0), (1.0, 0.0), (0.3, 0.8), (0.7, 0.1)], [1, 2, 7, 100]):
        points = times(grid, steps, span)
        assert len(points) == steps + 1
        assert (points[0], points[-1]) == span
        assert (np.diff(points) * np.sign(span[1] - span[0]) > 0).all()
        assert np.array_equal(times(grid, steps, (span[1], span[0])), points[::-1])


def test_formulas_at_the_middle() -> None:
    u = np.linspace(0, 1, 5)[1:-1]

    def inner(grid: Any) -> np.ndarray:
        return times(grid, 4, (0.0, 1.0))[1:-1]

    assert np.allclose(inner("uniform"), u)
    assert np.allclose(inner({"name": "shift", "value": 3.0}), u / (3 - 2 * u))
    # SD3 counts noise at 1: sigma' = a sigma / (1 + (a - 1) sigma).
    sigma = 1 - u
    assert np.allclose(inner({"name": "shift", "value": 3.0}), 1 - 3 * sigma / (1 + 2 * sigma))
    assert np.allclose(inner("sway"), u - (np.cos(np.pi * u / 2) - 1 + u))
    assert np.allclose(inner({"name": "power", "exponent": 2}), u**2)
    quartile = 0.6744897501960817
    assert np.allclose(inner("logit_normal"), 1 / (1 + np.exp([quartile, 0, -quartile])))


def test_the_karras_grid_has_the_noise_levels_of_edm() -> None:
    """EDM's sigma is the ratio of noise to data, (1 - t) / t here; its first level is at t = 0."""
    points = times("karras", 18, (0.0, 1.0))
    i = np.arange(18)
    sigma = (80 ** (1 / 7) + i / 17 * (0.002 ** (1 / 7) - 80 ** (1 / 7))) ** 7
    assert np.allclose((1 - points[1:-1]) / points[1:-1], sigma[1:])
    assert sigma[-1] == pytest.approx(0.002)


def test_explicit_times_are_taken_as_they_are() -> None:
    points = [0.0, 0.05, 0.3, 1.0]
    assert times(points, None, (0.0, 1.0)).tolist() == points
    solution = integrate(decay, ones(), solver="euler", grid=points)
    assert solution.x.item() == pytest.approx(0.95 * 0.75 * 0.3)
    assert solution.trace.t.tolist() == points[:-1]


@given(st.lists(st.floats(0.001, 0.999), min_size=0, max_size=20, unique=True))
def test_any_increasing_times_are_a_grid(inner: list[float]) -> None:
    points = [0.0, *sorted(inner), 1.0]
    assert times(points, len(points) - 1, (0.0, 1.0)).tolist() == points


@pytest.mark.parametrize(
    ("grid", "steps", "words"),
    [
        ("cosine", 4, f"unknown grid 'cosine'; use one of {', '.join(GRIDS)} or a list of times"),
        ({"value": 3.0}, 4, "a grid with parameters needs 'name' too, one of uniform, shift"),
        ({"name": ["shift"]}, 4, "unknown grid"),
        ("shift", 4, "needs 'value', from 0.001 to 1000"),
        ({"name": "shift", "value": 0.0}, 4, "value = 0 is outside 0.001 to 1000"),
        ({"name": "shift", "value": math.nan}, 4, "value = nan is outside"),
        ({"name": "shift", "value": "3"}, 4, "must hold numbers, not '3'"),
        ({"name": "shift", "value": True}, 4, "must hold numbers, not True"),
        ({"name": "shift", "value": 3, "scale": 1}, 4, "takes value, not 'scale'"),
        ({"name": "uniform", "value": 3}, 4, "takes no parameters, not 'value'"),
        ({"name": "sway", "coefficient": -2.0}, 4, "coefficient = -2 is outside -1 to 1.75"),
        ({"name": "power", "exponent": 1e9}, 4, "exponent = 1e.09 is outside 0.01 to 100"),
        ({"name": "logit_normal", "std": 0.0}, 4, "std = 0 is outside 0.01 to 10"),
        ({"name": "power", "exponent": 100.0}, 10_000, "10000 steps of grid 'power' are too many"),
        ([], None, "at least two times, got 0"),
        ([0.0], None, "at least two times, got 1"),
        ([0.0, math.inf, 1.0], None, "must be finite, got inf"),
        ([0.0, math.nan, 1.0], None, "must be finite, got nan"),
        ([0.0, 0.5, 0.5, 1.0], None, "must move strictly from 0 to 1, but 0.5 follows 0.5"),
        ([0.0, 0.7, 0.5, 1.0], None, "must move strictly from 0 to 1, but 0.5 follows 0.7"),
        ([1.0, 0.5, 0.0], None, "must move strictly from 0 to 1, but 0.5 follows 1"),
        ([0.1, 0.5, 1.0], None, "runs from 0.1 to 1, t_span from 0 to 1; make them match"),
        ([0.0, 0.5, 0.9], None, "runs from 0 to 0.9"),
        ([0.0, 0.5, 1.0], 3, "steps = 3, but the grid has 2 intervals; leave steps out"),
        ([0.0, "half", 1.0], None, "must hold numbers, not 'half'"),
    ],
)
def test_bad_grids_name_what_is_wrong(grid: Any, steps: int | None, words: str) -> None:
    with pytest.raises(SolverError, match=words) as caught:
        times(grid, steps, (0.0, 1.0))
    assert caught.value.field in {"grid", "steps"}
    with pytest.raises(SolverError, match=words):
        integrate(decay, ones(), solver="euler", grid=grid, steps=steps)


@pytest.mark.parametrize("grid", [None, 3, 0.5])
def test_a_grid_that_is_no_grid_is_refused(grid: Any) -> None:
    with pytest.raises(SolverError, match="grid") as caught:
        integrate(decay, ones(), solver="euler", grid=grid, steps=3)
    assert caught.value.field == "grid"


def test_every_grid_is_described() -> None:
    assert all(grid.formula for grid in GRIDS.values())
    assert normalise({"name": "sway", "coefficient": -1.0}) == "sway"


def test_sway_of_minus_one_is_the_cosine_grid() -> None:
    u = np.arange(9) / 8
    np.testing.assert_allclose(times("sway(-1)", 8, (0.0, 1.0)), 1 - np.cos(np.pi * u / 2), atol=1e-15)
