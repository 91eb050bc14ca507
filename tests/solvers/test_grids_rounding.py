"""Rounded times: which ones mean a grid point or an end of the span, and messages with numbers that differ."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solvers import SolverError, integrate, resolve
from solvers.diagnose import spectrum
from solvers.grids import distinct_texts, nearest, snapped
from solvers.saving import check_save_at
from tests.solvers.support import decay, ones

TENTHS = [k / 10 for k in range(11)]
WHOLE = (0.0, 1.0)
ROUNDED: dict[str, Any] = {
    "sums": [0.0, *accumulate([0.1] * 10)],
    "float32": np.array(TENTHS, dtype=np.float32),
    "float32 in a list": np.array(TENTHS, dtype=np.float32).tolist(),
    "float32 scalars": [np.float32(t) for t in TENTHS],
    "float32 sums": [0.0, *np.cumsum(np.full(10, 0.1, dtype=np.float32)).tolist()],
    "torch": torch.linspace(0, 1, 11),
    "float16": np.array(TENTHS, dtype=np.float16),
    "float16 linspace": np.linspace(0, 1, 11, dtype=np.float16),
    "six digits": [round(t, 6) for t in TENTHS],
}


@pytest.mark.parametrize("times", ROUNDED.values(), ids=ROUNDED)
def test_rounded_times_are_the_grid_points_that_they_stand_for(times: Any) -> None:
    plan = resolve(solver="euler", steps=10)
    found = check_save_at(plan, times)
    assert found is not None
    assert found.dtype == np.float64
    assert found.tolist() == plan.times.tolist()  # type: ignore[union-attr]
    solution = integrate(decay, ones(), solver="euler", steps=10, save_at=times)
    assert solution.saved is not None
    assert solution.saved.flatten().tolist() == pytest.approx([0.9**k for k in range(11)])


@pytest.mark.parametrize("times", ROUNDED.values(), ids=ROUNDED)
def test_so_are_those_of_a_span_that_runs_backwards(times: Any) -> None:
    plan = resolve(solver="euler", steps=10, t_span=(1.0, 0.0))
    found = check_save_at(plan, np.asarray(times)[::-1])
    assert found is not None
    assert found.tolist() == plan.times.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("steps", [3, 7, 100, 600])
def test_every_point_of_a_grid_may_come_in_half_precision(steps: int, dtype: Any) -> None:
    plan = resolve(solver="euler", steps=steps)
    found = check_save_at(plan, plan.times.astype(dtype))  # type: ignore[union-attr]
    assert found is not None
    assert found.tolist() == plan.times.tolist()  # type: ignore[union-attr]


def test_ends_of_spans() -> None:
    for save_at in ([0.1 + 0.2], np.array([0.3], dtype=np.float32), np.array([0.3], dtype=np.float16)):
        for settings in ({}, {"solver": "rk4", "steps": 3}):
            given_: dict[str, Any] = {"t_span": (0.0, 0.3), "save_at": save_at, **settings}
            solution = integrate(decay, ones(), **given_)
            assert solution.saved is not None
            assert torch.equal(solution.saved[:, 0], solution.x)
    start = integrate(decay, ones(), t_span=(0.1, 1.0), save_at=np.array([0.1], dtype=np.float32)).saved
    assert start is not None
    assert torch.equal(start[:, 0], ones())


def test_under_error_control_times_inside_the_span_stay_as_they_are() -> None:
    times = [np.float64(t) for t in (0.1, float(np.float32(0.3)), 0.5 + 1e-9)]
    found = check_save_at(resolve(), times)
    assert found is not None
    assert found.tolist() == times


@pytest.mark.parametrize(
    ("grid", "t_span"),
    [
        ([0.0, 0.5, 1 - 2**-24], WHOLE),
        ([1e-8, 0.5, 1 + 2**-23], WHOLE),
        (np.cumsum(np.full(10, 0.1, dtype=np.float32)), (0.1, 1.0)),
        ([0.0, *accumulate([0.1] * 3)], (0.0, 0.3)),
        (np.array([0.3, 0.1, 0.0], dtype=np.float32), (0.3, 0.0)),
        (np.array([0.0, 0.1, 0.3], dtype=np.float16), (0.0, 0.3)),
    ],
    ids=str,
)
def test_grids_whose_ends_are_rounded_meet_the_span(grid: Any, t_span: tuple[float, float]) -> None:
    plan = resolve(solver="euler", grid=grid, t_span=t_span)
    assert plan.t_span == t_span
    assert plan.times[1:-1].tolist() == [float(t) for t in grid[1:-1]]  # type: ignore[union-attr]
    assert plan.settings["grid"] == plan.times.tolist()  # type: ignore[union-attr]
    assert integrate(decay, ones(), solver="euler", grid=grid, t_span=t_span).t.tolist() == [t_span[1]]


def test_a_first_step_of_the_whole_span_may_be_rounded() -> None:
    assert resolve(first_step=0.1 + 0.2, t_span=(0.0, 0.3)).settings["first_step"] == 0.3
    assert resolve(first_step=float(np.float32(0.3)), t_span=(0.3, 0.0)).settings["first_step"] == 0.3
    with pytest.raises(SolverError, match=r"at most the span 0.3, got 0.30001"):
        resolve(first_step=0.30001, t_span=(0.0, 0.3))


def test_a_span_far_from_zero_keeps_its_digits() -> None:
    """Float32 has steps of 6e-5 at 1000, but a time in float64 must not be moved by that much."""
    times = [1000.0 + 2e-5, 1000.5]
    found = check_save_at(resolve(t_span=(1000.0, 1001.0)), times)
    assert found is not None
    assert found.tolist() == times
    plan = resolve(solver="euler", steps=10, t_span=(1000.0, 1001.0))
    found = check_save_at(plan, plan.times.astype(np.float32))  # type: ignore[union-attr]
    assert found is not None
    assert found.tolist() == plan.times.tolist()  # type: ignore[union-attr]


REFUSED = [
    ({"solver": "euler", "steps": 10}, [0.1 + 1e-6], "save_at = 0.100001 is not a grid point; the nearest is 0.1"),
    ({"t_span": (0.0, 0.3)}, [0.3 + 2e-7], "save_at = 0.3000002 is outside the span from 0 to 0.3"),
    ({"t_span": (0.3, 0.0)}, [-5e-7], "save_at = -5e-07 is outside the span from 0.3 to 0"),
    ({}, [0.5, 0.5 - 1e-9], "from 0 to 1, but 0.499999999 follows 0.5"),
    ({}, [1.0, 1.0 + 1e-8], "save_at holds 1 and 1.00000001, which both stand for 1.0; leave one out"),
    (
        {"solver": "euler", "steps": 10},
        [0.3, 0.1 + 0.2],
        "save_at holds 0.3 and 0.30000000000000004, which both stand for 0.3; leave one out",
    ),
    ({"solver": "euler", "steps": 10}, np.array([0.16], dtype=np.float16), "the nearest is 0.2"),
    ({}, [True], "must hold numbers"),
    ({}, ["0.5"], "must hold numbers"),
    ({}, [10**400], "must hold numbers"),
    ({}, [[0.1], [0.2, 0.3]], "must hold numbers"),
]


@pytest.mark.parametrize(("settings", "save_at", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_refusals_print_numbers_that_differ(settings: dict[str, Any], save_at: Any, words: str) -> None:
    with pytest.raises(SolverError, match=re.escape(words)) as caught:
        integrate(decay, ones(), save_at=save_at, **settings)
    assert caught.value.field == "save_at"


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ([0.0, 0.5, 1.0 - 1e-6], "the grid runs from 0 to 0.999999, t_span from 0 to 1"),
        ([0.0, 0.5, 1.0 + 6e-7], "the grid runs from 0 to 1.0000006, t_span from 0 to 1"),
        ([0.0, 0.5 + 1e-9, 0.5, 1.0], "but 0.5 follows 0.500000001"),
        ([0.0, 1.0 + 1e-7, 1.0 + 1e-8], "but 1 follows 1.0000001"),
    ],
)
def test_refused_grids_print_numbers_that_differ(grid: list[float], words: str) -> None:
    with pytest.raises(SolverError, match=words):
        resolve(solver="euler", grid=grid)


def test_jacobians_are_taken_at_the_times_that_were_meant() -> None:
    x0 = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    found = spectrum(lambda x, t: -x * t[:, None], x0, np.array(TENTHS, dtype=np.float32), steps=10)
    assert found.times.tolist() == resolve(solver="rk4", steps=10).times.tolist()  # type: ignore[union-attr]
    assert found.real[0, :, 0].tolist() == (-found.times).tolist()
    with pytest.raises(SolverError, match=r"times = 0.26 is not a grid point; the nearest is 0.3") as caught:
        spectrum(lambda x, t: -x, x0, [0.26], steps=10)
    assert caught.value.field == "times"


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30, unique=True), st.lists(st.floats(-6, 6), max_size=20))
def test_nearest_is_the_nearest(points: list[float], times: list[float]) -> None:
    for ordered in (sorted(points), sorted(points, reverse=True)):
        found = nearest(np.array(times, dtype=np.float64), np.array(ordered))
        gaps = np.abs(np.array(times)[:, None] - np.array(ordered))
        assert np.abs(found - np.array(times)).tolist() == gaps.min(axis=1).tolist()
        assert set(found.tolist()) <= set(points)


@given(st.floats(0, 1), st.integers(1, 1000))
def test_what_is_snapped_once_stays(t: float, steps: int) -> None:
    points = np.linspace(0, 1, steps + 1)
    once = snapped(np.array([t]), points, WHOLE)
    assert abs(once[0] - t) <= 5e-7
    assert snapped(once, points, WHOLE).tolist() == once.tolist()


def test_digits_that_tell_numbers_apart() -> None:
    assert distinct_texts(0.1, 0.2, 0.1) == ["0.1", "0.2", "0.1"]
    assert distinct_texts(0.3, 0.1 + 0.2) == ["0.3", "0.30000000000000004"]
    assert distinct_texts(1.0, 1.0 + 1e-9, 0.5) == ["1", "1.000000001", "0.5"]
    assert distinct_texts(0.0, -0.0, 1 / 3) == ["0", "-0", "0.333333"]


def test_save_times_are_found_in_a_grid_of_a_million_points_without_comparing_each_with_all() -> None:
    plan = resolve(solver="euler", steps=1_000_000, max_nfe=1_000_000)
    found = check_save_at(plan, np.linspace(0, 1, 1001))
    assert found is not None
    assert found.tolist() == plan.times[::1000].tolist()  # type: ignore[union-attr]
