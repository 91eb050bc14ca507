"""States at requested times: grid points for plans, dense output under error control, never an additional call."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from solvers import SolverError, Status, integrate
from tests.solvers.support import DENSE, Watched, cases, decay, fall, fall_exact, gaussian, ones, slope

TIMES = [0.0, 0.1, 1 / 3, 0.5, 0.77, 1.0]


@pytest.mark.parametrize("solver", DENSE)
@pytest.mark.parametrize("backwards", [False, True])
def test_saved_states_are_right_and_free(solver: str, backwards: bool) -> None:
    x0 = torch.linspace(-2, 2, 9).double()[:, None]
    points = TIMES[::-1] if backwards else TIMES
    t_span = (1.0, 0.0) if backwards else (0.0, 1.0)
    start = gaussian_exact(x0, 1.0) if backwards else x0
    plain, watched = Watched(gaussian), Watched(gaussian)
    without = integrate(plain, start, solver=solver, rtol=1e-7, atol=1e-7, t_span=t_span)
    solution = integrate(watched, start, solver=solver, rtol=1e-7, atol=1e-7, t_span=t_span, save_at=points)
    assert watched.calls == plain.calls
    assert torch.equal(solution.x, without.x)
    assert solution.saved is not None
    assert torch.equal(solution.saved[:, 0], start)
    assert torch.equal(solution.saved[:, -1], solution.x)
    for place, t in enumerate(points):
        assert torch.allclose(solution.saved[:, place], gaussian_exact(x0, t), atol=2e-6)
    assert without.saved is None


def gaussian_exact(x0: torch.Tensor, t: float) -> torch.Tensor:
    return 2 * t + math.sqrt((1 - t) ** 2 + 0.25 * t**2) * x0


@pytest.mark.parametrize(("solver", "order"), [("dopri5", 4), ("tsit5", 4), ("bosh3", 3)])
def test_order_of_the_dense_output(solver: str, order: int) -> None:
    """One accepted step of size h: the error inside falls as h^(order + 1)."""
    sizes, errors = [1, 2, 4, 8], []
    for size in sizes:
        h = 0.4 / size
        points = (h * np.linspace(0.1, 0.9, 9)).tolist()
        solution = integrate(
            fall, ones(), solver=solver, rtol=1e3, atol=1e3, t_span=(0.0, h), first_step=h, save_at=points
        )
        assert len(solution.trace) == 1
        assert solution.saved is not None
        exact = torch.cat([fall_exact(ones(), t) for t in points])
        errors.append((solution.saved[0] - exact).abs().max().item())
    assert slope(sizes, errors) == pytest.approx(order + 1, abs=0.5)


def test_many_times_inside_one_step_and_many_steps_between_two() -> None:
    points = np.linspace(0.2, 0.8, 101).tolist()
    solution = integrate(decay, ones(3), rtol=1e-8, atol=1e-10, save_at=points)
    assert solution.saved is not None
    assert np.allclose(solution.saved[1, :, 0].numpy(), np.exp(-np.array(points)), atol=1e-7)


@pytest.mark.parametrize(("solver", "start"), [("rk4", None), ("ab4", "rk"), ("dopri5", None)])
def test_fixed_steps_save_at_grid_points(solver: str, start: str | None) -> None:
    watched = Watched(decay)
    solution = integrate(watched, ones(2), solver=solver, steps=8, start=start, save_at=[0.0, 0.125, 0.5, 1.0])
    assert solution.saved is not None
    assert tuple(solution.saved.shape) == (2, 4, 1)
    assert np.allclose(solution.saved[0, :, 0].numpy(), np.exp([0, -0.125, -0.5, -1.0]), atol=1e-3)
    assert torch.equal(solution.saved[:, 0], ones(2))
    assert torch.equal(solution.saved[:, -1], solution.x)
    assert watched.calls == integrate(decay, ones(2), solver=solver, steps=8, start=start).nfe[0]
    # A decimal that rounds to a grid point is that point.
    third = integrate(decay, ones(), solver="euler", steps=10, save_at=[0.3]).saved
    assert third is not None
    assert third.item() == pytest.approx(0.9**3)


def test_a_failed_sample_has_nan_where_it_did_not_get() -> None:
    def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.where((x > 1.5) & (t[:, None] > 0.5), float("nan"), torch.zeros_like(x))

    for settings in cases({"solver": "euler", "steps": 10}, {"first_step": 0.1, "controller": "i"}):
        solution = integrate(velocity, torch.tensor([[1.0], [2.0]]), save_at=[0.0, 0.1, 1.0], **settings)
        assert solution.status == (Status.SUCCESS, Status.NON_FINITE)
        assert solution.saved is not None
        assert solution.saved[0].flatten().tolist() == [1.0, 1.0, 1.0]
        assert solution.saved[1, :2].flatten().tolist() == [2.0, 2.0]
        assert solution.saved[1, 2].isnan()


def test_event_shapes_are_kept() -> None:
    solution = integrate(lambda x, t: -x, torch.ones(4, 2, 3), save_at=[0.5, 1.0])
    assert solution.saved is not None
    assert tuple(solution.saved.shape) == (4, 2, 2, 3)
    empty = integrate(decay, ones(2), save_at=[]).saved
    assert empty is not None
    assert tuple(empty.shape) == (2, 0, 1)


@pytest.mark.parametrize(
    ("save_at", "words"),
    [
        ([0.5, math.nan], "finite times, got nan"),
        ([math.inf], "finite times, got inf"),
        ([-0.1], "save_at = -0.1 is outside the span from 0 to 1"),
        ([0.5, 1.1], "save_at = 1.1 is outside the span"),
        ([0.5, 0.4], "move strictly from 0 to 1, but 0.4 follows 0.5"),
        ([0.5, 0.5], "move strictly from 0 to 1, but 0.5 follows 0.5"),
        (["half"], "numbers"),
        (0.5, "list of times"),
        ([[0.1, 0.2]], "list of times"),
    ],
)
def test_bad_save_times(save_at: object, words: str) -> None:
    for settings in cases({}, {"solver": "rk4", "steps": 10}):
        with pytest.raises(SolverError, match=words) as caught:
            integrate(decay, ones(), save_at=save_at, **settings)  # type: ignore[arg-type]
        assert caught.value.field == "save_at"


def test_off_the_grid_names_the_nearest_point() -> None:
    with pytest.raises(SolverError, match=r"save_at = 0.26 is not a grid point; the nearest is 0.25"):
        integrate(decay, ones(), solver="euler", steps=4, save_at=[0.26])
    with pytest.raises(SolverError, match=r"from 1 to 0, but 0.2 follows 0.1"):
        integrate(decay, ones(), t_span=(1.0, 0.0), save_at=[0.1, 0.2])


def test_a_sample_without_a_single_call_left_has_its_start() -> None:
    solution = integrate(decay, ones(2), max_nfe=3, save_at=[0.0, 0.5])
    assert set(solution.status) == {Status.MAX_NFE}
    assert solution.saved is not None
    assert torch.equal(solution.saved[:, 0], ones(2))
    assert solution.saved[:, 1].isnan().all()
