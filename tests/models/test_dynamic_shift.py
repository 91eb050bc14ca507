"""The shift of the default grid follows from the size of a state, as diffusers computes it."""

import math
from typing import Any

import numpy as np
import pytest

from models.checkpoint.card import SamplingCard
from models.dynamic_shift import DynamicShift
from models.importing.declared import Declared
from models.importing.files import ForeignError
from models.shapes import Axis
from solvers.grids import times
from solvers.spec import SolverSpec

AXES = {"H": Axis(min=2, max=128, multiple=2), "W": Axis(min=2, max=128, multiple=2)}


def sigmas(tokens: int, steps: int, first: float, last: float, few: int, many: int) -> list[float]:
    """The formula of diffusers: mu on a line, and time_shift of type "exponential" of 1, 1 - 1/N, ..., 1/N."""
    slope = (last - first) / (many - few)
    mu = tokens * slope + first - slope * few
    return [math.exp(mu) / (math.exp(mu) + (1 / s - 1)) for s in np.linspace(1, 1 / steps, steps)]


@pytest.mark.parametrize("height", [2, 32, 64, 128])
def test_the_grid_has_the_sigmas_of_diffusers(height: int) -> None:
    grid = DynamicShift(patch=2).grid((16, "H", "W"), {"H": height, "W": 64})
    found = 1 - times(grid, 28, (0.0, 1.0))
    np.testing.assert_allclose(found[:-1], sigmas(height // 2 * 32, 28, 0.5, 1.15, 256, 4096), rtol=1e-12)


def test_an_axis_that_occurs_twice_counts_twice() -> None:
    assert DynamicShift(patch=2).grid((4, "T", "T"), {"T": 64}) == DynamicShift(patch=2).grid(
        (4, "H", "W"), {"H": 64, "W": 64}
    )


def test_the_solver_keeps_its_other_options() -> None:
    card = SamplingCard(solver=str(SolverSpec.of("ab2-8", start="rk")), dynamic_shift=DynamicShift(patch=2))
    text = card.text((16, "H", "W"), {"H": 32, "W": 32})
    assert SolverSpec.parse(text) == SolverSpec.of("ab2-8", start="rk", grid=f"shift({math.exp(0.5)!r})")
    assert SamplingCard(solver="euler-28/shift(3)").model_dump() == {"solver": "euler-28/shift(3)"}


@pytest.mark.parametrize(
    ("solver", "shift", "message"),
    [
        (None, {}, "needs --solver"),
        ("euler-28/shift(3)", {}, "give one of them"),
        ("dopri5@1e-4", {}, "fixed steps"),
        ("tuned-6", {}, "a solver with a grid"),
        ("euler-28", {"base_tokens": 4096}, "below max_tokens"),
        ("euler-28", {"patch": 0}, "patch"),
        ("euler-28", {"base_shift": float("nan")}, "base_shift"),
        ("euler-28", {"shift": 3}, "shift"),
        ("nothing-3", {}, "nothing"),
    ],
)
def test_contradictions_are_refused(solver: str | None, shift: dict[str, Any], message: str) -> None:
    with pytest.raises(ForeignError, match=message):
        Declared().sampled(solver, None, shift)


def test_two_grids_are_refused() -> None:
    with pytest.raises(ForeignError, match="leave one of them out"):
        Declared().sampled("euler", [1.0, 0.0], {})


def test_states_of_one_size_and_sizes_without_a_grid_are_refused() -> None:
    with pytest.raises(ValueError, match=r"give the solver a grid, such as shift\(3\)"):
        DynamicShift().check((16, 64, 64), {})
    DynamicShift().check((16, "H", "W"), AXES)
    with pytest.raises(ValueError, match="largest state"):
        DynamicShift(max_tokens=512).check((16, "H", "W"), AXES)
