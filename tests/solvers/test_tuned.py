"""Tuned plans: the lanes run any weights as the plain loop does; and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from solvers import SolverError, SolverSpec, Status, catalogue, compile, integrate, resolve  # noqa: A004
from solvers.lanes import Admission, Lanes
from solvers.plan import B
from solvers.tuned import TunedPlan, TunedPlans
from tests.solvers import formulas
from tests.solvers.support import Watched, gaussian, ones, run, same_bits


def plan(steps: int, seed: int, x0: bool = False) -> TunedPlan:
    rng = np.random.default_rng(seed)
    times = np.concatenate([[0.0], np.sort(rng.uniform(0.001, 0.999, steps - 1)), [1.0]])
    weights = np.tril(rng.normal(0, 0.5, (steps, steps)))
    return TunedPlan(times, weights, rng.normal(0, 0.2, steps) if x0 else None)


def field(x: Any, t: Any) -> Any:
    """A field of products, sums and quotients only, which NumPy and torch round alike."""
    return (1 + t) * x * (1 - x) / (1 + x * x) - t * x


def plain(dtype: Any) -> Any:
    def v(x: NDArray[np.floating], t: float) -> NDArray[np.floating]:
        return field(x, dtype.type(t))

    return v


OTHERS = ("rk4-3", "ab4-7", "unipc3-6", "dopri5@1e-4", "ab3-5/tuned")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(
    steps=st.integers(1, 12),
    seed=st.integers(0, 999),
    x0_weights=st.booleans(),
    others=st.lists(st.sampled_from(OTHERS), max_size=4),
)
def test_any_weights_give_what_the_plain_loop_gives(
    compiled: bool, dtype: torch.dtype, steps: int, seed: int, x0_weights: bool, others: list[str]
) -> None:
    """Bit for bit, alone and with others, with as many slots as the plan or the others need."""
    tuned = TunedPlans({steps: plan(steps, seed, x0_weights)}, {"ab3-5": plan(5, seed + 1)})
    x0 = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    solve = resolve(solver=f"tuned-{steps}", dtype=dtype, tuned=tuned)
    assert solve.times is not None

    def velocity(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return field(x, t[:, None])

    company = [
        Admission(resolve(solver=text, dtype=dtype, tuned=tuned), x0 + k, owner=k + 1) for k, text in enumerate(others)
    ]
    lanes = Lanes((3,), dtype, slots=None if seed % 2 else max(tuned.slots, 7), compiled=compiled)
    together = run(lanes, velocity, [Admission(solve, x0, owner=0), *company])
    alone = run(Lanes((3,), dtype, compiled=compiled), velocity, [Admission(solve, x0, owner=0)])
    rows = solve.rows
    for k, start in enumerate(x0.numpy()):
        with np.errstate(over="ignore", invalid="ignore"):
            slots = (rows.weights[:, B], rows.records["slot"].tolist(), rows.records["keep"].tolist(), rows.origin)
            expected = torch.from_numpy(formulas.plan(plain(start.dtype), start, solve.times.tolist(), *slots))
        assert same_bits(together[0, k].x, alone[0, k].x)
        if alone[0, k].status == Status.SUCCESS:
            assert same_bits(alone[0, k].x, expected)
            assert alone[0, k].nfe == steps


def test_the_weights_are_those_of_the_formula() -> None:
    one = TunedPlan(np.array([0.0, 0.25, 1.0]), np.array([[0.3, 0.0], [0.1, 0.6]]))
    watched = Watched(gaussian)
    found = integrate(watched, ones(), solver="tuned-2", tuned=TunedPlans({2: one}))
    v0 = gaussian(ones(), torch.zeros(1).double())
    v1 = gaussian(1 + 0.3 * v0, torch.full((1,), 0.25).double())
    assert found.x.item() == pytest.approx((1 + 0.3 * v0 + 0.1 * v0 + 0.6 * v1).item(), rel=1e-15)
    assert watched.times == [0.0, 0.25]
    assert found.settings == {"name": "tuned", "steps": 2, "max_nfe": 10_000, "plan": one.digest, "text": "tuned-2"}


def test_the_starting_state_has_weights_of_its_own() -> None:
    times, weights = np.array([0.0, 0.25, 1.0]), np.array([[0.3, 0.0], [0.1, 0.6]])
    one = TunedPlan(times, weights, np.array([-0.2, 0.05]))
    start = 1.5 * ones()
    found = integrate(gaussian, start, solver="tuned-2", tuned=TunedPlans({2: one}))
    v0 = gaussian(start, torch.zeros(1).double())
    x1 = start - 0.2 * start + 0.3 * v0
    v1 = gaussian(x1, torch.full((1,), 0.25).double())
    assert found.x.item() == pytest.approx((x1 + 0.05 * start + 0.1 * v0 + 0.6 * v1).item(), rel=1e-14)
    assert (one.slots, TunedPlans({2: one}).slots) == (3, 3)
    assert one.digest != TunedPlan(times, weights).digest
    zero = TunedPlan(times, weights, np.zeros(2))
    without = integrate(gaussian, start, solver="tuned-2", tuned=TunedPlans({2: TunedPlan(times, weights)}))
    assert torch.equal(integrate(gaussian, start, solver="tuned-2", tuned=TunedPlans({2: zero})).x, without.x)


def test_weights_of_a_stock_method_give_that_method() -> None:
    times = np.array([0.0, 0.1, 0.4, 1.0])
    euler = TunedPlans({3: TunedPlan(times, np.diag(np.diff(times)))}, {"ab2-3": TunedPlan(times)})
    by_grid = integrate(gaussian, ones(), solver="euler", grid=times.tolist())
    assert torch.allclose(integrate(gaussian, ones(), solver="tuned-3", tuned=euler).x, by_grid.x, rtol=1e-15)
    on_grid = integrate(gaussian, ones(), solver="ab2-3/tuned", tuned=euler)
    assert torch.equal(on_grid.x, integrate(gaussian, ones(), solver="ab2", grid=times.tolist()).x)
    shown = {"name": "ab2", "steps": 3, "grid": "tuned", "start": "ramp", "plan": TunedPlan(times).digest}
    assert on_grid.settings == shown | {"max_nfe": 10_000, "text": "ab2-3/tuned"}
    assert euler.texts == ["tuned-3", "ab2-3/tuned"]


def test_specs_print_and_are_cached_for_each_plan() -> None:
    first, second = (TunedPlans({4: plan(4, seed)}) for seed in (1, 2))
    spec = SolverSpec.parse("TUNED-4")
    assert str(spec) == "tuned-4"
    assert str(SolverSpec.parse("ab4-9/tuned")) == "ab4-9/tuned"
    assert compile(spec, tuned=first) is compile(spec, tuned=first)
    assert compile(spec, tuned=first) is not compile(spec, tuned=second)
    assert compile(spec, tuned=first).tuned == plan(4, 1).digest != plan(4, 2).digest
    assert TunedPlan(plan(4, 1).times).digest != plan(4, 1).digest  # the grid alone is another solver
    assert "tuned" not in catalogue.solvers()


TUNED = TunedPlans({4: plan(4, 1), 6: plan(6, 1)}, {"ab4-9": plan(9, 1)})


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"solver": "tuned-5"}, "steps", "steps = 5: no such plan was tuned .* available: tuned-4, tuned-6"),
        ({"solver": "tuned"}, "steps", "tuned solvers need steps, for example tuned-6"),
        ({"solver": "tuned", "rtol": 1e-3}, "rtol", "has no error estimate"),
        ({"solver": "tuned-4", "t_span": (0.0, 0.5)}, "t_span", "from t = 0 to t = 1, not from 0 to 0.5"),
        ({"solver": "tuned-4", "t_span": (1.0, 0.0)}, "t_span", "not from 1 to 0"),
        ({"solver": "ab4-9/tuned", "t_span": (1.0, 0.0)}, "t_span", "not from 1 to 0"),
        ({"solver": "tuned-4/sway"}, "grid", "has its own times; leave grid out"),
        ({"solver": "tuned-4/tuned"}, "grid", "has its own times; leave grid out"),
        ({"solver": "tuned", "grid": [0, 0.5, 1]}, "grid", "has its own times; leave grid out"),
        ({"solver": "tuned-4", "start": "rk"}, "start", "start is for Adams-Bashforth methods"),
        ({"solver": "ab4-8/tuned"}, "grid", "no grid was tuned for ab4-8 on this model; available: ab4-9/tuned"),
        ({"solver": "ab4-9/tuned+rk"}, "grid", r"no grid was tuned for ab4-9\+rk"),
        ({"solver": "rk4-9/tuned(3)"}, "grid", "unknown grid|too many numbers"),
        ({"solver": "tuned-6", "max_nfe": 5}, "max_nfe", "takes 6 calls"),
    ],
    ids=str,
)
def test_refusals_name_what_there_is(given: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SolverError, match=words) as caught:
        resolve(tuned=TUNED, **given)
    assert caught.value.field == field


def test_without_tuned_plans() -> None:
    for text in ("tuned-6", "ab4-9/tuned"):
        with pytest.raises(SolverError, match="is for models with tuned plans, and this one has none"):
            resolve(solver=text)
    with pytest.raises(SolverError, match="available: none"):
        resolve(solver="tuned-6", tuned=TunedPlans())


@pytest.mark.parametrize(
    ("times", "weights", "words"),
    [
        ([0.0], None, "at least two"),
        ([0.0, np.nan, 1.0], None, "times: contain a non-finite number"),
        ([0.0, 0.5, 0.5, 1.0], None, "strictly from 0 to 1"),
        ([0.0, 0.5, 0.9], None, "strictly from 0 to 1"),
        ([0.0, 0.5, 1.0], [[1.0]], "shape"),
        ([0.0, 1.0], [[np.inf]], "weights: contain a non-finite number"),
        ([0.0, 0.5, 1.0], [[0.5, 0.1], [0.1, 0.4]], "not known yet"),
    ],
)
def test_numbers_that_are_no_plan(times: list[float], weights: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TunedPlan(np.array(times), None if weights is None else np.array(weights))


@pytest.mark.parametrize(
    ("weights", "x0_weights", "words"),
    [
        (None, [0.1, 0.1], "a tuned grid has the weights of its method"),
        ([[0.5, 0.0], [0.1, 0.4]], [0.1], r"shape \[1\], but 2 steps need \[2\]"),
        ([[0.5, 0.0], [0.1, 0.4]], [0.1, np.nan], "x0_weights: contain a non-finite number"),
    ],
)
def test_weights_of_the_starting_state_that_are_none(weights: Any, x0_weights: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TunedPlan(np.array([0.0, 0.5, 1.0]), None if weights is None else np.array(weights), np.array(x0_weights))
